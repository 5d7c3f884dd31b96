"""Streams the audit log, in order, to a syslog server and to a URL.

A cursor in the database advances after a receiver has accepted a batch, so delivery is at least once. An
unavailable receiver is retried with increasing delays; entries wait in the database and block no other work.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Protocol
from urllib.parse import urlsplit

from django.conf import settings
from django.db.models import Q
from django.utils import timezone
from django.utils.functional import Promise
from django.utils.translation import gettext_lazy as _

from portal.common import signatures
from portal.common.events import feed, syslog
from portal.common.events.audit_entries import AuditEntrySerializer
from portal.common.events.models import AuditStream, Event
from portal.common.outgoing import client
from portal.common.outgoing.client import NoAnswer

log = logging.getLogger(__name__)
BATCH = 200
ROUND_S = 10.0
SEND_S = 10.0
WAITS_S = (5, 10, 30, 60, 300)
ERRORS: dict[str, str | Promise] = {
    "timeout": _("The target does not accept data."),
    "tls": _("The certificate is not valid."),
    "connection": _("Connection failed."),
    "protocol": _("Not a valid HTTP response."),
    "refused": _("The target returned an error."),
    "dropped": _("The target closed the connection early."),
    "internal": _("Internal error in the portal."),
}
"""Error messages shown on the page, by code."""


class SendFailed(Exception):
    """A batch was not delivered. `code` is a key of `ERRORS`."""

    def __init__(self, code: str) -> None:
        super().__init__(code)
        self.code = code


class Sink(Protocol):
    """A receiver. `send` raises `SendFailed` unless the receiver accepted all entries."""

    name: str

    @property
    def target(self) -> str: ...
    def send(self, entries: Sequence[dict[str, Any]]) -> None: ...


class SyslogSink:
    """Syslog server configured by `BERTH_AUDIT_SYSLOG`."""

    name = "syslog"

    @property
    def target(self) -> str:
        return str(settings.BERTH_AUDIT_SYSLOG)

    def send(self, entries: Sequence[dict[str, Any]]) -> None:
        try:
            syslog.send(self.target, [_syslog_line(entry) for entry in entries], timeout_s=SEND_S)
        except syslog.BatchRejected as error:
            raise SendFailed(error.code) from error


class WebhookSink:
    """URL configured by `BERTH_AUDIT_WEBHOOK`. Receives signed batches as JSON."""

    name = "webhook"

    @property
    def target(self) -> str:
        # The path may contain a secret.
        return urlsplit(settings.BERTH_AUDIT_WEBHOOK).hostname or ""

    def send(self, entries: Sequence[dict[str, Any]]) -> None:
        now = datetime.now(UTC)
        message = {
            "type": "audit.entries",
            "timestamp": entries[-1]["at"],
            "data": {"entries": list(entries)},
        }
        body = json.dumps(message, default=str, separators=(",", ":")).encode()
        headers = signatures.signed_headers(
            body,
            message_id=f"audit_{entries[0]['id']}_{entries[-1]['id']}",
            at=now,
            signing_secrets=[settings.BERTH_AUDIT_WEBHOOK_SECRET],
        )
        try:
            answer = client.post(
                settings.BERTH_AUDIT_WEBHOOK,
                body,
                {"Content-Type": "application/json", **headers},
                timeout_s=SEND_S,
                guarded=False,
            )
        except NoAnswer as error:
            raise SendFailed(error.failure.value) from error
        if not 200 <= answer.status < 300:
            raise SendFailed("refused")


@dataclass(frozen=True, slots=True)
class ReceiverProgress:
    """Progress of one receiver, for administrators."""

    name: str
    target: str
    last_id: int
    waiting: int
    sent_at: datetime | None
    last_error: str
    failed_at: datetime | None

    @property
    def error(self) -> str:
        """The last error as text, or ""."""
        return str(ERRORS.get(self.last_error, self.last_error)) if self.last_error else ""


def sinks() -> list[Sink]:
    """Return the configured receivers."""
    configured: list[Sink] = []
    if settings.BERTH_AUDIT_SYSLOG:
        configured.append(SyslogSink())
    if settings.BERTH_AUDIT_WEBHOOK:
        configured.append(WebhookSink())
    return configured


def receiver_progress() -> list[ReceiverProgress]:
    """Return the progress of each receiver."""
    rows = AuditStream.objects.in_bulk([sink.name for sink in sinks()])
    return [
        ReceiverProgress(
            name=sink.name,
            target=sink.target,
            last_id=row.last_id,
            waiting=feed.lag(row),
            sent_at=row.sent_at,
            last_error=row.last_error,
            failed_at=row.failed_at,
        )
        for sink in sinks()
        if (row := rows.get(sink.name)) is not None
    ]


def run() -> int:
    """Run one round for each receiver. Returns the number of delivered entries."""
    return sum(_run(sink) for sink in sinks())


def _run(sink: Sink) -> int:
    now = timezone.now()
    until = now + timedelta(seconds=ROUND_S + SEND_S + 20)
    idle = Q(busy_until=None) | Q(busy_until__lt=now)
    rested = Q(not_before=None) | Q(not_before__lte=now)
    streams = AuditStream.objects.filter(name=sink.name)
    if not streams.exists():
        # A new receiver starts at the end of the log. Older entries can be exported.
        row = AuditStream(name=sink.name)
        feed.skip_to_end(row)
        AuditStream.objects.bulk_create([row], ignore_conflicts=True)
    if not streams.filter(idle & rested).update(busy_until=until):
        return 0
    streams = streams.filter(busy_until=until)
    try:
        return _send_all(sink, until)
    finally:
        streams.update(busy_until=None)


def _send_all(sink: Sink, until: datetime) -> int:
    """Send batches while this worker holds the row, for up to `ROUND_S` seconds.

    Returns the number of entries sent.
    """
    ends, count = time.monotonic() + ROUND_S, 0
    streams = AuditStream.objects.filter(name=sink.name, busy_until=until)
    while time.monotonic() < ends:
        row = streams.first()
        if row is None:
            break
        entries = feed.entries_after(row, limit=BATCH)
        settled = {name: getattr(row, name) for name in ("settled_id", "horizon_id", "horizon_at")}
        if not entries:
            streams.update(**settled)
            break
        try:
            sink.send([_plain(entry) for entry in entries])
        except SendFailed as error:
            _failed(row, error.code)
            break
        except Exception:
            log.exception("could not send audit log to %s", sink.name)
            _failed(row, "internal")
            break
        streams.update(
            **settled,
            last_id=entries[-1].pk,
            sent_at=timezone.now(),
            failures=0,
            last_error="",
            failed_at=None,
            not_before=None,
        )
        count += len(entries)
    return count


def _failed(row: AuditStream, code: str) -> None:
    now = timezone.now()
    wait = WAITS_S[min(row.failures, len(WAITS_S) - 1)]
    AuditStream.objects.filter(name=row.name).update(
        failures=row.failures + 1,
        last_error=code,
        failed_at=now,
        not_before=now + timedelta(seconds=wait),
    )


def _plain(entry: Event) -> dict[str, Any]:
    return dict(AuditEntrySerializer(entry).data)


def _syslog_line(entry: dict[str, Any]) -> bytes:
    return syslog.message(
        at=datetime.fromisoformat(entry["at"]),
        host=settings.BERTH_NODE_NAME,
        message_id=entry["action"],
        text=json.dumps(entry, default=str, separators=(",", ":")),
    )
