"""Port that counts what a team has, to show it before the team is archived."""

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


team_contents = Port[TeamContentsSource]("TeamContentsSource")
