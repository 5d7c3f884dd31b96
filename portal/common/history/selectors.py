"""Queries for revisions. Callers check permission to see the object."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

from django.db.models import QuerySet

from portal.common.errors import NotFound
from portal.common.history.codes import HistoryCode
from portal.common.history.models import Revision, SubjectKind
from portal.common.reasons.reason import Reason


@dataclass(frozen=True, slots=True)
class Difference:
    """A field that differs between two documents. None means that the value is missing."""

    field: str
    before: Any
    after: Any


def revisions(kind: SubjectKind, key: UUID) -> QuerySet[Revision]:
    """Return all revisions of an object, newest first."""
    return Revision.objects.filter(kind=kind, key=key).order_by("-number")


def revision(kind: SubjectKind, key: UUID, number: int) -> Revision:
    """Return one revision. Raises `NotFound`."""
    row = revisions(kind, key).filter(number=number).first()
    if row is None:
        raise NotFound(Reason(HistoryCode.NO_SUCH_REVISION, {"number": number}))
    return row


def last_label(kind: SubjectKind, key: UUID) -> str:
    """Return the display name of the author of the latest revision, or ""."""
    return revisions(kind, key).values_list("actor_label", flat=True).first() or ""


def document_at(kind: SubjectKind, key: UUID, moment: datetime) -> dict[str, Any] | None:
    """Return the document as of `moment`, or None if there is no revision from then."""
    data = revisions(kind, key).filter(at__lte=moment).values_list("data", flat=True).first()
    return dict(data) if data is not None else None


def differences(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[Difference]:
    """Return the differences, in field order."""
    fields = [*before, *(name for name in after if name not in before)]
    return [
        Difference(name, before.get(name), after.get(name))
        for name in fields
        if before.get(name) != after.get(name)
    ]


def revisions_with_changes(rows: Sequence[Revision]) -> list[tuple[Revision, list[Difference]]]:
    """Return each revision of one object with its changes from the previous one. Runs one query."""
    if not rows:
        return []
    lowest = min(row.number for row in rows)
    before = revisions(SubjectKind(rows[0].kind), rows[0].key).filter(number=lowest - 1).first()
    by_number = {row.number: row for row in (*rows, *([before] if before else []))}
    pairs = []
    for row in rows:
        earlier = by_number.get(row.number - 1)
        pairs.append((row, differences(earlier.data, row.data) if earlier else []))
    return pairs
