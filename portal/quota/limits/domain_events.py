"""Domain events of limits."""

from __future__ import annotations

from dataclasses import dataclass

from portal.common.domain_events import DomainEvent


@dataclass(frozen=True, slots=True)
class LimitsChanged(DomainEvent):
    """Limits have changed: quotas, cohorts, caps, grants, budgets or reservations."""
