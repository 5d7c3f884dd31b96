"""Sends due deliveries. They are sent in the order of `due_at`; failed and unfinished ones become due again.

A delivery is claimed by postponing its due time before sending. Two workers never send the same one at once,
and one whose worker crashed becomes due again. Delivery is at least once, with the same id.

Requests run in a small thread pool; only the calling thread uses the database. Each endpoint has at most one
request in progress. Endpoints that were slow or timed out share a few threads and get increasing delays, so
that they do not hold up others.
"""

from __future__ import annotations

import json
import logging
import time
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from datetime import datetime, timedelta
from uuid import UUID

from django.conf import settings
from django.db import transaction
from django.db.models import F, Min, Q
from django.utils import timezone

from portal.common import signatures
from portal.common.encrypted_fields import Unreadable
from portal.common.outgoing import client
from portal.common.outgoing.client import Failure, NoAnswer, ReceiverResponse
from portal.notify.webhooks import disabling, services
from portal.notify.webhooks.models import Attempt, Delivery, DeliveryState, Endpoint, Outbox

log = logging.getLogger(__name__)
REQUEST_S = 10.0
ROUND_S = 12.0
"""No request starts after this time. The round ends at most `REQUEST_S` later."""
CLAIM = timedelta(seconds=60)
"""A claimed but unfinished delivery becomes due again after this time."""
THREADS = 8
SUSPECT_THREADS = 2
ENDPOINTS_IN_A_ROUND = 100
OF_ONE_IN_A_ROUND = 20
SLOW_MS = 2000
WAITS_S = (5, 30, 120, 600, 1800, 3600, 7200, 14_400, 28_800, 28_800)
"""Delays between attempts, in seconds. In total about a day."""
MAX_ATTEMPTS = len(WAITS_S) + 1
BACKOFF_STEPS_S = (5, 10, 30, 60, 120, 300)
GONE = 410
UNREADABLE = "secret_unreadable"


@dataclass(frozen=True, slots=True)
class _Outcome:
    """Outcome of a request: a response, or an error code."""

    at: datetime
    duration_ms: int
    answer: ReceiverResponse | None = None
    error: str = ""

    @property
    def delivered(self) -> bool:
        return self.answer is not None and 200 <= self.answer.status < 300

    @property
    def cost_time(self) -> bool:
        """Whether the request occupied a thread until it failed."""
        return self.error in (Failure.TIMEOUT, Failure.CONNECTION)


def run() -> int:
    """Run one round. Returns the number of requests; 0 while another worker holds the lease."""
    now = timezone.now()
    free = Q(busy_until=None) | Q(busy_until__lt=now)
    until = now + timedelta(seconds=ROUND_S + REQUEST_S + 10)
    if not Outbox.objects.filter(free, pk=1).update(busy_until=until):
        return 0
    try:
        return _Round().run()
    finally:
        Outbox.objects.filter(pk=1, busy_until=until).update(busy_until=None)


class _Round:
    """A round in which endpoints take turns: the next delivery starts after the previous response."""

    def __init__(self) -> None:
        self._ends = time.monotonic() + ROUND_S
        self._under_way: dict[Future[_Outcome], tuple[Endpoint, Delivery]] = {}
        self._count = 0

    def run(self) -> int:
        healthy, suspect = _due_endpoints()
        served: dict[UUID, int] = {}
        with ThreadPoolExecutor(THREADS, thread_name_prefix="webhook") as pool:
            while True:
                suspects = sum(_is_suspect(endpoint) for endpoint, _ in self._under_way.values())
                while suspect and suspects < SUSPECT_THREADS and self._may_begin():
                    suspects += self._begin(pool, suspect.pop(0), served)
                while healthy and self._may_begin():
                    self._begin(pool, healthy.pop(0), served)
                if not self._under_way:
                    return self._count
                for future in wait(self._under_way, return_when=FIRST_COMPLETED).done:
                    endpoint, delivery = self._under_way.pop(future)
                    endpoint = _finish(endpoint, delivery, future.result())
                    if not _is_suspect(endpoint) and served[endpoint.pk] < OF_ONE_IN_A_ROUND:
                        healthy.append(endpoint)

    def _may_begin(self) -> bool:
        return time.monotonic() < self._ends and len(self._under_way) < THREADS

    def _begin(self, pool: ThreadPoolExecutor, endpoint: Endpoint, served: dict[UUID, int]) -> bool:
        delivery = _claim(endpoint)
        if delivery is None:
            return False
        served[endpoint.pk] = served.get(endpoint.pk, 0) + 1
        self._count += 1
        future = pool.submit(_send, endpoint, delivery)
        self._under_way[future] = (endpoint, delivery)
        return True


def _is_suspect(endpoint: Endpoint) -> bool:
    return endpoint.slow or endpoint.timeouts > 0


def _due_endpoints() -> tuple[list[Endpoint], list[Endpoint]]:
    """Return the healthy and suspect endpoints with due deliveries, least recently served first."""
    now = timezone.now()
    due = (
        Endpoint.objects.filter(Q(not_before=None) | Q(not_before__lte=now), enabled=True)
        .filter(deliveries__due_at__lte=now)
        .annotate(first_due=Min("deliveries__due_at"))
        .order_by(F("served_at").asc(nulls_first=True), "first_due", "pk")
    )
    suspect = Q(slow=True) | Q(timeouts__gt=0)
    return list(due.exclude(suspect)[:ENDPOINTS_IN_A_ROUND]), list(due.filter(suspect)[:ENDPOINTS_IN_A_ROUND])


def _claim(endpoint: Endpoint) -> Delivery | None:
    """Claim the endpoint's next delivery. Returns None without one, or if the endpoint is disabled."""
    while True:
        now = timezone.now()
        row = (
            Delivery.objects.filter(endpoint=endpoint, endpoint__enabled=True, due_at__lte=now)
            .order_by("due_at", "created_at", "pk")
            .first()
        )
        if row is None:
            return None
        deliveries = Delivery.objects.filter(pk=row.pk, due_at=row.due_at, attempt_count=row.attempt_count)
        if row.attempt_count >= _max_attempts(row):
            # The worker crashed during the last attempt.
            deliveries.update(state=DeliveryState.FAILED, due_at=None, ended_at=now)
            continue
        row.attempt_count += 1
        if deliveries.update(due_at=now + CLAIM, attempt_count=row.attempt_count):
            row.due_at = now + CLAIM
            return row


def _max_attempts(delivery: Delivery) -> int:
    return 1 if delivery.is_test else MAX_ATTEMPTS


def _send(endpoint: Endpoint, delivery: Delivery) -> _Outcome:
    """Make one request. Runs in a thread: uses no database and never raises."""
    at, began = timezone.now(), time.monotonic()
    try:
        body = json.dumps(delivery.payload, ensure_ascii=False, separators=(",", ":")).encode()
        headers = signatures.signed_headers(
            body, message_id=delivery.message_id, at=at, signing_secrets=services.secrets_of(endpoint)
        )
        answer = client.post(
            endpoint.url, body, {"Content-Type": "application/json", **headers}, timeout_s=REQUEST_S
        )
        return _Outcome(at, answer.duration_ms, answer)
    except NoAnswer as error:
        code = error.failure.value
    except Unreadable:
        code = UNREADABLE
    except Exception:
        log.exception("could not send webhook delivery %s", delivery.pk)
        code = "internal"
    return _Outcome(at, round((time.monotonic() - began) * 1000), error=code)


@transaction.atomic
def _finish(endpoint: Endpoint, delivery: Delivery, outcome: _Outcome) -> Endpoint:
    """Record the attempt and update delivery and endpoint. Returns the updated endpoint."""
    now = timezone.now()
    present = Endpoint.objects.select_for_update(of=("self",)).select_related("team").filter(pk=endpoint.pk)
    row = present.first()
    if row is None:
        # The endpoint was deleted meanwhile, together with its log.
        endpoint.enabled, endpoint.slow = False, True
        return endpoint
    Attempt.objects.create(
        delivery=delivery,
        number=delivery.attempt_count,
        at=outcome.at,
        duration_ms=outcome.duration_ms,
        status_code=outcome.answer.status if outcome.answer else None,
        answer=_text(outcome.answer.head) if outcome.answer else "",
        error=outcome.error,
    )
    deliveries = Delivery.objects.filter(pk=delivery.pk, attempt_count=delivery.attempt_count)
    if outcome.delivered:
        deliveries.update(state=DeliveryState.DELIVERED, due_at=None, ended_at=now)
    elif delivery.attempt_count >= _max_attempts(delivery):
        deliveries.update(state=DeliveryState.FAILED, due_at=None, ended_at=now)
    else:
        deliveries.update(due_at=now + timedelta(seconds=WAITS_S[delivery.attempt_count - 1]))
    row.served_at = now
    row.slow = outcome.duration_ms > SLOW_MS
    if outcome.delivered:
        row.failing_since, row.timeouts, row.not_before = None, 0, None
    else:
        row.failing_since = row.failing_since or now
        row.timeouts = row.timeouts + 1 if outcome.cost_time else 0
        rest = BACKOFF_STEPS_S[min(row.timeouts, len(BACKOFF_STEPS_S)) - 1] if row.timeouts else 0
        row.not_before = now + timedelta(seconds=rest) if rest else None
    row.save(update_fields=["served_at", "slow", "failing_since", "timeouts", "not_before"])
    if not outcome.delivered and row.enabled and not delivery.is_test:
        receiver_gone = outcome.answer is not None and outcome.answer.status == GONE
        days = timedelta(days=settings.BERTH_WEBHOOK_DISABLE_DAYS)
        if receiver_gone or (row.failing_since and row.failing_since < now - days):
            disabling.disable(row, receiver_gone=receiver_gone)
    return row


def _text(head: bytes) -> str:
    return head.decode("utf-8", "replace").replace("\0", "")


def prune() -> int:
    """Delete deliveries created more than `BERTH_WEBHOOK_KEEP_DAYS` ago. Returns the number deleted."""
    before = timezone.now() - timedelta(days=settings.BERTH_WEBHOOK_KEEP_DAYS)
    old = Delivery.objects.filter(created_at__lt=before).order_by("created_at")
    count = 0
    while keys := list(old.values_list("pk", flat=True)[:1000]):
        with transaction.atomic():
            count += len(keys)
            Delivery.objects.filter(pk__in=keys).delete()
    return count
