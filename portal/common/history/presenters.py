"""Revisions as shown by `templates/history/versions.html`."""

from __future__ import annotations

from dataclasses import dataclass
from uuid import UUID

from django.utils.functional import Promise

from portal.common.history import selectors
from portal.common.history.models import Revision, SubjectKind
from portal.common.history.selectors import Difference

VERSIONS_SHOWN = 20


@dataclass(frozen=True, slots=True)
class ChangedField:
    """A field changed by a revision, as text."""

    label: str | Promise
    before: str
    after: str


@dataclass(frozen=True, slots=True)
class Version:
    """A revision with its changes. `restore` is the URL of the confirmation page, or empty."""

    row: Revision
    changes: tuple[ChangedField, ...]
    restore: str

    @property
    def what(self) -> str:
        """Short label of the change."""
        label: str = self.row.get_act_display()
        return label


def newest(kind: SubjectKind, key: UUID) -> list[tuple[Revision, list[Difference]]]:
    """Return the latest revisions, newest first, each with its changes. Runs two queries."""
    rows = list(selectors.revisions(kind, key)[: VERSIONS_SHOWN + 1])
    return selectors.revisions_with_changes(rows)[:VERSIONS_SHOWN]
