"""Seals of the audit log: a hash chain that reveals changed, added or deleted entries.

Entries are sealed in batches and in id order, some minutes after they were written, so that sealing adds no
cost to writes. By then no open transaction can add an entry before them.
"""

from __future__ import annotations

import hashlib
import hmac
import json
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import Any

from django.conf import settings
from django.db import transaction
from django.db.models import Max
from django.utils import timezone
from django.utils.crypto import salted_hmac

from portal.common.events.models import AuditSeal, Event, EventTarget

SETTLED = timedelta(minutes=5)
"""Upper bound of a transaction's duration.

No entry with a lower id appears before an older entry than this.
"""
ENTRIES_IN_A_SEAL = 5000
COLUMNS = (
    "pk", "at", "actor_label", "kind", "workspace_id", "message", "reason", "cause", "data", "address",
    "user_agent", "request_id", "token",
)  # fmt: skip
"""Columns covered by a seal.

Actor, team and pool are excluded, because deleting them sets the keys to null.
"""


class Flaw(StrEnum):
    """A defect of a seal or of the entries it covers."""

    SEAL_MISSING = "seal_missing"
    SEAL_CHANGED = "seal_changed"
    ENTRIES_ADDED = "entries_added"
    ENTRIES_MISSING = "entries_missing"
    ENTRIES_CHANGED = "entries_changed"


@dataclass(frozen=True, slots=True)
class Finding:
    """A flaw, the number of the seal, and the range of ids that it affects."""

    flaw: Flaw
    number: int
    first_id: int
    last_id: int


@dataclass(frozen=True, slots=True)
class VerificationResult:
    """Result of verifying all seals. `head` is the digest of the newest seal, or empty.

    `entries` counts existing entries covered by seals; `open_entries` counts entries not sealed yet.
    """

    seals: int
    entries: int
    open_entries: int
    head: str
    findings: tuple[Finding, ...]


@transaction.atomic
def seal_entries(*, now: datetime | None = None) -> int:
    """Create at most one seal over settled entries. Returns the number of entries in it."""
    now = now or timezone.now()
    last = AuditSeal.objects.select_for_update().first()
    begin = last.last_id + 1 if last else 1
    settled = Event.objects.filter(at__lte=now - SETTLED).aggregate(last=Max("pk"))["last"]
    if settled is None or settled < begin:
        return 0
    entries = Event.objects.filter(pk__gte=begin, pk__lte=settled).order_by("pk")
    ids = list(entries.values_list("pk", flat=True)[:ENTRIES_IN_A_SEAL])
    audit_seal = AuditSeal(
        number=last.number + 1 if last else 1,
        first_id=begin,
        last_id=ids[-1],
        count=len(ids),
        newest_at=entries.filter(pk__lte=ids[-1]).aggregate(newest=Max("at"))["newest"],
        sealed_at=now,
    )
    audit_seal.entries_digest = _digest_of(begin, ids[-1])[0]
    audit_seal.digest = _seal_digest(audit_seal, last.digest if last else "", settings.SECRET_KEY)
    # The number is unique: one of two concurrent workers fails here, so nothing is sealed twice.
    audit_seal.save(force_insert=True)
    return len(ids)


@transaction.atomic
def prune(*, now: datetime | None = None) -> int:
    """Delete the entries of the oldest seal older than `BERTH_AUDIT_KEEP_DAYS`. Returns their number."""
    days = settings.BERTH_AUDIT_KEEP_DAYS
    if not days:
        return 0
    now = now or timezone.now()
    expired_seals = AuditSeal.objects.filter(pruned_at=None, newest_at__lt=now - timedelta(days=days))
    oldest = expired_seals.order_by("number").first()
    if oldest is None:
        return 0
    entries = Event.objects.filter(pk__gte=oldest.first_id, pk__lte=oldest.last_id)
    count = entries.count()
    entries.delete()
    AuditSeal.objects.filter(pk=oldest.pk).update(pruned_at=now)
    return count


def verify() -> VerificationResult:
    """Verify all entries against their seals, and each seal against the previous one."""
    findings: list[Finding] = []
    seals, entries, last_id, head = 0, 0, 0, ""
    for audit_seal in AuditSeal.objects.order_by("number").iterator():
        if audit_seal.number != seals + 1 or audit_seal.first_id != last_id + 1:
            findings.append(
                Finding(Flaw.SEAL_MISSING, audit_seal.number, last_id + 1, audit_seal.first_id - 1)
            )
        elif not _is_genuine(audit_seal, head):
            findings.append(
                Finding(Flaw.SEAL_CHANGED, audit_seal.number, audit_seal.first_id, audit_seal.last_id)
            )
        digest, count = _digest_of(audit_seal.first_id, audit_seal.last_id)
        flaw = _flaw_of(audit_seal, digest, count)
        if flaw is not None:
            findings.append(Finding(flaw, audit_seal.number, audit_seal.first_id, audit_seal.last_id))
        seals, entries, last_id, head = (
            audit_seal.number,
            entries + count,
            audit_seal.last_id,
            audit_seal.digest,
        )
    still_open = Event.objects.filter(pk__gt=last_id).count()
    return VerificationResult(seals, entries, still_open, head, tuple(findings))


def _flaw_of(audit_seal: AuditSeal, digest: str, count: int) -> Flaw | None:
    expected = 0 if audit_seal.pruned_at else audit_seal.count
    if count != expected:
        return Flaw.ENTRIES_ADDED if count > expected else Flaw.ENTRIES_MISSING
    if not audit_seal.pruned_at and digest != audit_seal.entries_digest:
        return Flaw.ENTRIES_CHANGED
    return None


def _is_genuine(audit_seal: AuditSeal, before: str) -> bool:
    """Return whether a secret key of this portal made the seal, after the digest `before`."""
    keys = (settings.SECRET_KEY, *settings.SECRET_KEY_FALLBACKS)
    return any(hmac.compare_digest(audit_seal.digest, _seal_digest(audit_seal, before, key)) for key in keys)


def _seal_digest(audit_seal: AuditSeal, before: str, key: str | bytes) -> str:
    body = [
        audit_seal.number,
        audit_seal.first_id,
        audit_seal.last_id,
        audit_seal.count,
        audit_seal.entries_digest,
        before,
    ]
    return salted_hmac("berth.audit.seal", json.dumps(body), secret=key, algorithm="sha256").hexdigest()


def _digest_of(first_id: int, last_id: int) -> tuple[str, int]:
    """Return the digest and the number of entries from `first_id` to `last_id`, inclusive."""
    digest, count = hashlib.sha256(), 0
    for line in _lines(first_id, last_id):
        digest.update(line.encode() + b"\n")
        count += 1
    return digest.hexdigest(), count


def _lines(first_id: int, last_id: int) -> Iterator[str]:
    targets: dict[int, list[tuple[str, str]]] = defaultdict(list)
    event_targets = EventTarget.objects.filter(event__gte=first_id, event__lte=last_id)
    for event, kind, key in event_targets.order_by("kind", "key").values_list("event_id", "kind", "key"):
        targets[event].append((kind, key))
    rows = Event.objects.filter(pk__gte=first_id, pk__lte=last_id).order_by("pk")
    for row in rows.values_list(*COLUMNS).iterator():
        yield json.dumps([*map(_plain, row), targets.get(row[0], [])], sort_keys=True, separators=(",", ":"))


def _plain(value: Any) -> Any:
    if isinstance(value, datetime):
        return value.astimezone(UTC).isoformat()
    return value if isinstance(value, (str, int, float, dict, list, bool, type(None))) else str(value)
