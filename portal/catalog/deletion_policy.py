"""Port through which other packages prevent the deletion of templates and flavors in use."""

from __future__ import annotations

from typing import Protocol

from portal.catalog.models import Flavor, Template
from portal.common.ports import Port


class EntryDeletionPolicy(Protocol):
    """Prevents the deletion of templates and flavors in use."""

    def require_deletable(self, entry: Template | Flavor) -> None:
        """Raise `StateConflict` while the locked entry is in use."""


deletion_policy = Port[EntryDeletionPolicy]("EntryDeletionPolicy")
