"""Whether a template or flavor may be deleted, asked of those who use it."""

from __future__ import annotations

from typing import Protocol

from portal.catalog.models import Flavor, Template
from portal.common.ports import Port


class EntryDeletionPolicy(Protocol):
    """Refuses to delete templates and flavors in use."""

    def require_deletable(self, entry: Template | Flavor) -> None:
        """Raises `StateConflict` while the entry, which is locked, is in use."""


deletion_policy = Port[EntryDeletionPolicy]("EntryDeletionPolicy")
