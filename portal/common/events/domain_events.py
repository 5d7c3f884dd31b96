"""Domain events of notices."""

from __future__ import annotations

from dataclasses import dataclass

from portal.common.domain_events import DomainEvent
from portal.common.events.models import Notification


@dataclass(frozen=True, slots=True)
class NoticesWritten(DomainEvent):
    """Notices with the same content were written, one per recipient."""

    notices: tuple[Notification, ...]
