"""Port that counts what a team has, to show it before the team is archived or deleted."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from portal.common.ports import Port
from portal.people.accounts.models import Team


@dataclass(frozen=True, slots=True)
class TeamContents:
    """Numbers of workspaces (`active` ones run or wait) and of home folders."""

    workspaces: int
    active: int
    homes: int


class TeamContentsSource(Protocol):
    """Counts the workspaces and homes of a team."""

    def contents_of(self, team: Team) -> TeamContents:
        """Return what the team has now."""

    def require_unused(self, team: Team) -> None:
        """Raise `StateConflict` if workspaces, accounts or catalog entries ever belonged to the team."""


team_contents = Port[TeamContentsSource]("TeamContentsSource")
