"""Reads the audit log from a cursor, in order and without missing an entry.

On PostgreSQL, ids are assigned at insert but become visible at commit, so an entry may appear with a lower id
than visible ones. The reader stops at a gap until every transaction that could fill it has ended; a rollback
leaves the gap for good. On SQLite, writers are serialized and such gaps do not occur.
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
"""Maximum number of ids per query."""


@dataclass(slots=True)
class Position:
    """An in-memory `Cursor`, for readers that do not persist their position."""

    last_id: int = 0
    settled_id: int = 0
    horizon_id: int = 0
    horizon_at: datetime | None = None


def skip_to_end(cursor: Cursor) -> None:
    """Move the cursor past all existing entries. The caller saves the cursor."""
    newest = Event.objects.aggregate(newest=Max("pk"))["newest"] or 0
    cursor.last_id = cursor.settled_id = newest
    cursor.horizon_id, cursor.horizon_at = 0, None


def entries_after(cursor: Cursor, *, limit: int) -> list[Event]:
    """Return up to `limit` entries, oldest first. No entry with an earlier id can appear later.

    Does not move `cursor.last_id`, because the caller has not processed the entries yet. Updates the other
    columns; the caller saves them.
    """
    rows = _rows(cursor, limit)
    ids = [row.pk for row in rows]
    if _first_gap(ids, cursor) is None:
        return rows
    if _settles_gap(cursor, ids[-1]):
        # The rows read above lack entries that have appeared in the gap meanwhile.
        rows = _rows(cursor, limit)
    return rows[: _first_gap([row.pk for row in rows], cursor)]


def advance(position: Position) -> int:
    """Move `position` past all entries that no new entry can precede. Returns the last one's id."""
    newest = Event.objects.order_by("-pk").values_list("pk", flat=True).first() or 0
    if newest < position.last_id:
        # The database was replaced, for example restored from a backup.
        position.last_id = position.settled_id = position.horizon_id = 0
        position.horizon_at = None
    if not position.last_id or newest - position.last_id > STRIDE:
        old = Event.objects.filter(at__lte=timezone.now() - SETTLED).aggregate(last=Max("pk"))["last"] or 0
        position.last_id = max(position.last_id, old)
    while position.last_id < newest:
        ids = _ids(position)
        gap = _first_gap(ids, position)
        if gap is not None and _settles_gap(position, ids[-1]):
            ids = _ids(position)
            gap = _first_gap(ids, position)
        position.last_id = max([position.last_id, *ids[:gap]])
        if gap is not None or not ids:
            break
    return position.last_id


def lag(cursor: Cursor) -> int:
    """Return the number of unread entries."""
    return Event.objects.filter(pk__gt=cursor.last_id).count()


def _ids(position: Position) -> list[int]:
    entries = Event.objects.filter(pk__gt=position.last_id).order_by("pk")
    return list(entries.values_list("pk", flat=True)[:STRIDE])


def _rows(cursor: Cursor, limit: int) -> list[Event]:
    entries = Event.objects.filter(pk__gt=cursor.last_id).select_related("team", "pool", "workspace")
    return list(entries.prefetch_related("targets").order_by("pk")[:limit])


def _first_gap(ids: list[int], cursor: Cursor | Position) -> int | None:
    """Return the index of the first id that a new entry could still precede, or None."""
    expected = cursor.last_id + 1
    for place, key in enumerate(ids):
        if key != expected and key - 1 > cursor.settled_id:
            return place
        expected = key + 1
    return None


def _settles_gap(cursor: Cursor | Position, newest: int) -> bool:
    """Record the horizon behind a gap. Returns whether the gap is settled."""
    if cursor.horizon_at is None:
        cursor.horizon_id, cursor.horizon_at = newest, timezone.now()
    return _settle(cursor)


def _settle(cursor: Cursor | Position) -> bool:
    """Settle the horizon if no transaction that began before it is open. Returns whether it is settled."""
    if cursor.horizon_at is None:
        return False
    has_timed_out = cursor.horizon_at < timezone.now() - SETTLED
    if connection.vendor == "postgresql" and not has_timed_out and _has_writer_since(cursor.horizon_at):
        return False
    cursor.settled_id = max(cursor.settled_id, cursor.horizon_id)
    cursor.horizon_id, cursor.horizon_at = 0, None
    return True


def _has_writer_since(moment: datetime) -> bool:
    """Return whether another transaction that began before `moment` is open.

    Allows for a clock difference of 2 seconds between portal and database.
    """
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT EXISTS (SELECT 1 FROM pg_stat_activity WHERE datname = current_database()"
            " AND backend_type = 'client backend' AND pid <> pg_backend_pid()"
            " AND xact_start <= %s + interval '2 seconds')",
            [moment],
        )
        return bool(cursor.fetchone()[0])
