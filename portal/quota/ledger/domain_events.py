"""Domain events of ledgers."""

from __future__ import annotations

from dataclasses import dataclass

from portal.common.domain_events import DomainEvent
from portal.people.accounts.models import Team


@dataclass(frozen=True, slots=True)
class BudgetChanged(DomainEvent):
    """A team's budget in money has changed, so its spending has to be reported."""

    team: Team
