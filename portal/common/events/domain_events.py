"""What notices tell the rooms above them."""

from __future__ import annotations

from dataclasses import dataclass

from portal.common.domain_events import DomainEvent
from portal.common.events.models import Notification


@dataclass(frozen=True, slots=True)
class NoticesWritten(DomainEvent):
    """People have been told something: one notice for each of them, all alike."""

    notices: tuple[Notification, ...]
