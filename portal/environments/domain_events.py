"""What environments tell to the rooms above them."""

from __future__ import annotations

from dataclasses import dataclass

from portal.common.domain_events import DomainEvent


@dataclass(frozen=True, slots=True)
class BuildsChanged(DomainEvent):
    """A build has been asked for, has come to another stage or has ended: who waits for it is told anew."""
