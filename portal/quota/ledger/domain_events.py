"""What ledgers tell the rooms above them."""

from __future__ import annotations

from dataclasses import dataclass

from portal.common.domain_events import DomainEvent
from portal.people.accounts.models import Team


@dataclass(frozen=True, slots=True)
class BudgetChanged(DomainEvent):
    """A team has another budget in money than before: what it has spent is asked for."""

    team: Team
