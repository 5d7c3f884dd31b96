"""Domain events of the catalog; portal/wiring.py connects them to handlers."""

from __future__ import annotations

from dataclasses import dataclass

from portal.catalog.models import Flavor, Template
from portal.common.domain_events import DomainEvent


@dataclass(frozen=True, slots=True)
class EntryChanged(DomainEvent):
    """A template or flavor has been created, changed or deleted."""

    entry: Template | Flavor


@dataclass(frozen=True, slots=True)
class EntryDeleted(DomainEvent):
    """A template or flavor has been deleted."""

    entry: Template | Flavor
