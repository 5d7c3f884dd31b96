"""Port that counts the contents of a team, to show them before it is archived or deleted."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from portal.common.ports import Port
from portal.people.accounts.models import Team


@dataclass(frozen=True, slots=True)
class TeamContents:
    """Counts of a team's contents. `active` workspaces run or wait.

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
    """Counts the contents of a team."""

    def contents_of(self, team: Team) -> TeamContents:
        """Return the current counts."""


team_contents = Port[TeamContentsSource]("TeamContentsSource")
