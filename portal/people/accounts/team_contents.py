"""Port that counts what a team has, to show it before the team is archived or deleted."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from portal.common.ports import Port
from portal.people.accounts.models import Team


@dataclass(frozen=True, slots=True)
class TeamContents:
    """Numbers of what a team has. `active` workspaces run or wait.

    `tokens` are those of service accounts. `quotas` are limits of the team and of its members.
    """

    members: int
    service_accounts: int
    tokens: int
    workspaces: int
    active: int
    homes: int
    templates: int
    environments: int
    secrets: int
    webhooks: int
    channels: int
    quotas: int
    has_gpu_hours: bool
    has_budget: bool


class TeamContentsSource(Protocol):
    """Counts what a team has."""

    def contents_of(self, team: Team) -> TeamContents:
        """Return what the team has now."""


team_contents = Port[TeamContentsSource]("TeamContentsSource")
