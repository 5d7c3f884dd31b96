"""Creates deliveries from the audit log, which serves as a transactional outbox with a cursor.

Entries are written in the transaction of the change they describe, so events are neither lost nor invented,
and writers never wait for receivers.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from uuid import uuid4

from django.db import transaction
from django.db.models import Count, Q
from django.utils import timezone

from portal.common.events import feed
from portal.common.events.event_types import TYPE_OF_KIND, Audience
from portal.common.events.models import Event
from portal.notify.webhooks import payloads
from portal.notify.webhooks.models import Delivery, Endpoint, Outbox

BATCH = 200
MAX_BATCHES = 10
MAX_PENDING = 10_000
"""Maximum number of pending deliveries per endpoint. Further events are dropped, to protect the disk."""


def run() -> int:
    """Create missing deliveries, for up to `MAX_BATCHES` batches of entries. Returns the number created."""
    total = 0
    for _ in range(MAX_BATCHES):
        read, count = _batch()
        total += count
        if read < BATCH:
            break
    return total


@transaction.atomic
def _batch() -> tuple[int, int]:
    """Process a batch and move the cursor in one transaction.

    Returns the numbers of entries and deliveries.
    """
    outbox = Outbox.objects.select_for_update(skip_locked=True).filter(pk=1).first()
    if outbox is None:
        if not Outbox.objects.filter(pk=1).exists():
            # Start at the end of the log: older entries are not reported.
            outbox = Outbox()
            feed.skip_to_end(outbox)
            Outbox.objects.bulk_create([outbox], ignore_conflicts=True)
        return 0, 0
    entries = feed.entries_after(outbox, limit=BATCH)
    count = _deliveries(entries, timezone.now())
    if entries:
        outbox.last_id = entries[-1].pk
    outbox.save(update_fields=["last_id", "settled_id", "horizon_id", "horizon_at"])
    return len(entries), count


def _deliveries(entries: Iterable[Event], now: datetime) -> int:
    typed = [(entry, TYPE_OF_KIND[entry.kind]) for entry in entries if entry.kind in TYPE_OF_KIND]
    if not typed:
        return 0
    endpoints = list(
        Endpoint.objects.filter(enabled=True)
        .annotate(waiting=Count("deliveries", filter=Q(deliveries__due_at__isnull=False)))
        .filter(waiting__lt=MAX_PENDING)
    )
    rows = []
    for entry, kind in typed:
        receivers = [
            endpoint
            for endpoint in endpoints
            if kind.name in endpoint.types
            and (
                endpoint.team_id is None
                or (endpoint.team_id == entry.team_id and kind.audience is Audience.TEAM)
            )
        ]
        payload = payloads.entry_payload(entry) if receivers else {}
        rows += [
            Delivery(
                id=uuid4(),
                endpoint=endpoint,
                entry_id=entry.pk,
                type=kind.name,
                payload=payload,
                due_at=now,
                created_at=now,
            )
            for endpoint in receivers
        ]
    Delivery.objects.bulk_create(rows, batch_size=200)
    return len(rows)
