"""What ledgers tell the rooms above them."""

from __future__ import annotations

from dataclasses import dataclass

from portal.accounts.models import Team
from portal.common.domain_events import DomainEvent


@dataclass(frozen=True, slots=True)
class BudgetChanged(DomainEvent):
    """A team has another budget in money than before: what it has spent is asked for."""

    team: Team
