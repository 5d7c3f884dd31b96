"""Reading the audit log on from where one stopped, in order and without missing an entry.

An id is given when an entry is written and seen when its transaction is committed, so on PostgreSQL an entry
may appear before ones that are there already. The reader waits at a gap until whatever could fill it has
ended: a rollback leaves a gap for good. On SQLite writers follow each other, and there are no such gaps.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from django.db import connection
from django.db.models import Max
from django.utils import timezone

from portal.common.events.models import Cursor, Event
from portal.common.events.sealing import SETTLED

STRIDE = 1000
"""So many ids are read at once."""


@dataclass(slots=True)
class Position:
    """As a `Cursor`, but kept in memory: of readers that keep no place of their own."""

    last_id: int = 0
    settled_id: int = 0
    horizon_id: int = 0
    horizon_at: datetime | None = None


def begin_at_the_end(cursor: Cursor) -> None:
    """Pass over all entries that there are; the caller saves the cursor."""
    newest = Event.objects.aggregate(newest=Max("pk"))["newest"] or 0
    cursor.last_id = cursor.settled_id = newest
    cursor.horizon_id, cursor.horizon_at = 0, None


def entries_after(cursor: Cursor, *, limit: int) -> list[Event]:
    """The next entries, oldest first, at most `limit`; none of an earlier id can appear any more.

    `cursor.last_id` is not moved, for the caller has not done anything with them yet. Its other columns
    are, and the caller saves them.
    """
    rows = _rows(cursor, limit)
    ids = [row.pk for row in rows]
    if _gap(ids, cursor) is None:
        return rows
    if _look_again(cursor, ids[-1]):
        # What came in between, and so is settled, is not among the rows that were read before.
        rows = _rows(cursor, limit)
    return rows[: _gap([row.pk for row in rows], cursor)]


def advance(position: Position) -> int:
    """Move `position` over all entries before which none can appear any more; returns the last one's id."""
    newest = Event.objects.order_by("-pk").values_list("pk", flat=True).first() or 0
    if newest < position.last_id:
        # Another database than before, as one that was restored.
        position.last_id = position.settled_id = position.horizon_id = 0
        position.horizon_at = None
    if not position.last_id or newest - position.last_id > STRIDE:
        old = Event.objects.filter(at__lte=timezone.now() - SETTLED).aggregate(last=Max("pk"))["last"] or 0
        position.last_id = max(position.last_id, old)
    while position.last_id < newest:
        ids = _ids(position)
        gap = _gap(ids, position)
        if gap is not None and _look_again(position, ids[-1]):
            ids = _ids(position)
            gap = _gap(ids, position)
        position.last_id = max([position.last_id, *ids[:gap]])
        if gap is not None or not ids:
            break
    return position.last_id


def lag(cursor: Cursor) -> int:
    """How many entries have not been read."""
    return Event.objects.filter(pk__gt=cursor.last_id).count()


def _ids(position: Position) -> list[int]:
    found = Event.objects.filter(pk__gt=position.last_id).order_by("pk")
    return list(found.values_list("pk", flat=True)[:STRIDE])


def _rows(cursor: Cursor, limit: int) -> list[Event]:
    found = Event.objects.filter(pk__gt=cursor.last_id).select_related("team", "pool", "workspace")
    return list(found.prefetch_related("targets").order_by("pk")[:limit])


def _gap(ids: list[int], cursor: Cursor | Position) -> int | None:
    """The place of the first id before which an entry may still appear; None where there is none."""
    expected = cursor.last_id + 1
    for place, key in enumerate(ids):
        if key != expected and key - 1 > cursor.settled_id:
            return place
        expected = key + 1
    return None


def _look_again(cursor: Cursor | Position, newest: int) -> bool:
    """Note what there is behind a gap, and say whether the gap is settled by now."""
    if cursor.horizon_at is None:
        cursor.horizon_id, cursor.horizon_at = newest, timezone.now()
    return _settle(cursor)


def _settle(cursor: Cursor | Position) -> bool:
    """Take the horizon for settled if no transaction from before it is left; says whether it is."""
    if cursor.horizon_at is None:
        return False
    over = cursor.horizon_at < timezone.now() - SETTLED
    if connection.vendor == "postgresql" and not over and _writes_since(cursor.horizon_at):
        return False
    cursor.settled_id = max(cursor.settled_id, cursor.horizon_id)
    cursor.horizon_id, cursor.horizon_at = 0, None
    return True


def _writes_since(moment: datetime) -> bool:
    """Whether a transaction is open that began before this moment, other than the present one.

    The clocks of portal and database may differ by two seconds.
    """
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT EXISTS (SELECT 1 FROM pg_stat_activity WHERE datname = current_database()"
            " AND backend_type = 'client backend' AND pid <> pg_backend_pid()"
            " AND xact_start <= %s + interval '2 seconds')",
            [moment],
        )
        return bool(cursor.fetchone()[0])
