"""What limits tell the rooms above them."""

from __future__ import annotations

from dataclasses import dataclass

from portal.common.domain_events import DomainEvent


@dataclass(frozen=True, slots=True)
class LimitsChanged(DomainEvent):
    """Who may hold how much has changed: quotas, cohorts, caps, grants, budgets or reservations."""
