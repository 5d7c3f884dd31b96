"""Kept versions as pages show them: `templates/history/versions.html`."""

from __future__ import annotations

from dataclasses import dataclass
from uuid import UUID

from django.utils.functional import Promise

from portal.common.history import selectors
from portal.common.history.models import Revision, SubjectKind
from portal.common.history.selectors import Difference

VERSIONS_SHOWN = 20


@dataclass(frozen=True, slots=True)
class Changed:
    """A field that a version changed, in words."""

    label: str | Promise
    before: str
    after: str


@dataclass(frozen=True, slots=True)
class Version:
    """A kept version. `restore` is the address that asks before it is restored, empty where there is none."""

    row: Revision
    changes: tuple[Changed, ...]
    restore: str

    @property
    def what(self) -> str:
        """What was done, in a few words."""
        words: str = self.row.get_act_display()
        return words


def newest(kind: SubjectKind, key: UUID) -> list[tuple[Revision, list[Difference]]]:
    """The versions that a page shows, the newest first, each with what it changed; two queries."""
    kept = list(selectors.revisions(kind, key)[: VERSIONS_SHOWN + 1])
    return selectors.with_predecessors(kept)[:VERSIONS_SHOWN]
