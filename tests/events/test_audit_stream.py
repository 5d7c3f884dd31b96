"""Streaming of the audit log: in order and complete, whatever the receiver does."""

from __future__ import annotations

import datetime as dt
import ipaddress
import json
import re
import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import pytest
from django.db import connection, connections, transaction
from django.utils import timezone
from standardwebhooks import Webhook

from portal.common import signatures
from portal.common.actors import SYSTEM
from portal.common.events import audit_stream, feed, syslog
from portal.common.events.kinds import AuditKind
from portal.common.events.models import AuditStream, Event
from portal.common.events.services import record
from tests.api.conftest import api as api  # a fixture
from tests.receivers import LIMIT_S, one_after_another, receiver, status

pytestmark = pytest.mark.django_db
FRAME = re.compile(rb"(\d+) ")


@dataclass
class SyslogServer:
    """Reads each connection to its end, unless `behave` replaces that."""

    port: int = 0
    received: bytes = b""
    behave: list[Callable[[socket.socket], None]] = field(default_factory=list)
    tls: ssl.SSLContext | None = None
    lock: threading.Lock = field(default_factory=threading.Lock)

    def lines(self) -> list[str]:
        """The messages, by octet count."""
        left, found = self.received, []
        while match := FRAME.match(left):
            length = int(match.group(1))
            found.append(left[match.end() : match.end() + length].decode())
            left = left[match.end() + length :]
        assert left == b""
        return found

    def entries(self) -> list[int]:
        return [json.loads(line[line.index("{") :])["id"] for line in self.lines()]


@contextmanager
def syslog_server(tls: ssl.SSLContext | None = None) -> Iterator[SyslogServer]:
    found = SyslogServer(tls=tls)
    listening = socket.create_server(("127.0.0.1", 0))
    found.port = listening.getsockname()[1]

    def serve() -> None:
        while True:
            try:
                opened, _ = listening.accept()
            except OSError:
                return
            with opened:
                opened.settimeout(LIMIT_S)
                try:
                    if found.behave:
                        found.behave.pop(0)(opened)
                        continue
                    taken = found.tls.wrap_socket(opened, server_side=True) if found.tls else opened
                    with taken:
                        while data := taken.recv(65536):
                            with found.lock:
                                found.received += data
                except OSError:
                    continue

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    try:
        yield found
    finally:
        listening.shutdown(socket.SHUT_RDWR)
        listening.close()
        thread.join(LIMIT_S)


def write(count: int = 1) -> list[int]:
    return [
        record(actor=SYSTEM, kind=AuditKind.POOL_CREATED, message=f"number {number} “ü”").pk
        for number in range(count)
    ]


def next_round() -> int:
    """Run a round as if the pause after a failure were over."""
    AuditStream.objects.update(not_before=None)
    return audit_stream.run()


@pytest.fixture
def server(settings) -> Iterator[SyslogServer]:
    with syslog_server() as found:
        settings.BERTH_AUDIT_SYSLOG = f"tcp://127.0.0.1:{found.port}"
        audit_stream.run()
        yield found


def test_entries_arrive_in_order_in_rfc_5424_format(server):
    ids = write(5)
    assert audit_stream.run() == 5
    assert server.entries() == ids
    line = server.lines()[0]
    assert re.match(r"<110>1 \d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z \S+ berth - pool\.created - \{", line)
    assert json.loads(line[line.index("{") :])["message"] == "number 0 “ü”"
    assert line.isascii()
    assert audit_stream.run() == 0


def test_earlier_events_are_not_sent(settings):
    write(3)
    with syslog_server() as server:
        settings.BERTH_AUDIT_SYSLOG = f"tcp://127.0.0.1:{server.port}"
        assert audit_stream.run() == 0
        ids = write()
        assert audit_stream.run() == 1
        assert server.entries() == ids


def test_more_than_one_batch_is_sent(server, monkeypatch):
    monkeypatch.setattr(audit_stream, "BATCH", 4)
    ids = write(10)
    assert audit_stream.run() == 10
    assert server.entries() == ids


def test_batch_is_sent_again_after_a_dropped_connection(server):
    """The receiver reads a part, so none of the batch counts."""

    def read_a_little_and_drop(opened: socket.socket) -> None:
        opened.recv(10)
        # With unread data, closing is a reset.
        opened.close()

    def drop_at_once(opened: socket.socket) -> None:
        opened.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
        opened.close()

    server.behave = [read_a_little_and_drop, drop_at_once]
    ids = write(50)
    for _ in range(2):
        assert next_round() == 0
        # A reset may come before the connection is established.
        assert AuditStream.objects.get().last_error in ("dropped", "connection")
    assert next_round() == 50
    assert server.entries() == ids
    row = AuditStream.objects.get()
    assert (row.last_error, row.failures, row.last_id) == ("", 0, ids[-1])


def test_dead_receiver_is_retried_with_backoff_and_does_not_block_others(settings):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        settings.BERTH_AUDIT_SYSLOG = f"tcp://127.0.0.1:{taken.getsockname()[1]}"
        audit_stream.run()
        ids = write(2)
        waits = []
        for _ in range(len(audit_stream.WAITS_S) + 2):
            assert next_round() == 0
            row = AuditStream.objects.get()
            waits.append(round((row.not_before - row.failed_at).total_seconds()))
            assert audit_stream.run() == 0  # it pauses
            assert AuditStream.objects.get().failures == row.failures
    assert waits == [*audit_stream.WAITS_S, audit_stream.WAITS_S[-1], audit_stream.WAITS_S[-1]]
    (progress,) = audit_stream.receiver_progress()
    assert (progress.waiting, progress.last_error) == (2, "connection")
    assert progress.last_id < ids[0]


def test_batch_is_sent_again_after_a_worker_was_killed(server, monkeypatch):
    ids = write(3)
    send = audit_stream.SyslogSink.send

    def killed(self, entries):
        send(self, entries)
        raise KeyboardInterrupt

    with monkeypatch.context() as dying, pytest.raises(KeyboardInterrupt):
        dying.setattr(audit_stream.SyslogSink, "send", killed)
        audit_stream.run()
    assert next_round() == 3
    assert server.entries() == ids + ids


def test_entries_are_sent_by_one_worker_at_a_time(server):
    write()
    AuditStream.objects.update(busy_until=timezone.now() + dt.timedelta(seconds=60))
    assert audit_stream.run() == 0
    AuditStream.objects.update(busy_until=timezone.now() - dt.timedelta(seconds=1))
    assert audit_stream.run() == 1


@pytest.fixture
def authority(tmp_path):
    """A self-signed certificate for 127.0.0.1: the files of certificate and key."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.x509.oid import NameOID

    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "log")])
    now, address = dt.datetime.now(dt.UTC), ipaddress.ip_address("127.0.0.1")
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(now - dt.timedelta(days=1))
        .not_valid_after(now + dt.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(address)]), False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), True)
        .sign(key, hashes.SHA256())
    )
    public, private = tmp_path / "log.pem", tmp_path / "log.key"
    public.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
    private.write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
    )
    return public, private


def test_tls_receiver_needs_a_trusted_certificate(settings, authority):
    public, private = authority
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(public, private)
    with syslog_server(context) as server:
        settings.BERTH_AUDIT_SYSLOG = f"tls://127.0.0.1:{server.port}"
        audit_stream.run()
        ids = write(3)
        assert next_round() == 0
        assert AuditStream.objects.get().last_error == "tls"
        assert server.received == b""
        settings.BERTH_OUTGOING_CA_FILE = str(public)
        assert next_round() == 3
        # The server ends the connection when it has read to the end.
        assert server.entries() == ids


def test_udp_sends_one_datagram_per_entry(settings):
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as server:
        server.bind(("127.0.0.1", 0))
        server.settimeout(LIMIT_S)
        settings.BERTH_AUDIT_SYSLOG = f"udp://127.0.0.1:{server.getsockname()[1]}"
        audit_stream.run()
        ids = write(2)
        assert audit_stream.run() == 2
        texts = [server.recv(65536).decode() for _ in ids]
    assert [json.loads(text[text.index("{") :])["id"] for text in texts] == ids


def test_http_receiver_gets_signed_batches(settings):
    settings.BERTH_AUDIT_WEBHOOK_SECRET = signatures.new_secret()
    with receiver(one_after_another(status(500), status(200))) as there:
        settings.BERTH_AUDIT_WEBHOOK = f"{there.url}/path-that-is-secret"
        audit_stream.run()
        ids = write(3)
        assert next_round() == 0
        assert AuditStream.objects.get().last_error == "refused"
        assert next_round() == 3
        first, second = there.requests
    assert first.headers["webhook-id"] == second.headers["webhook-id"] == f"audit_{ids[0]}_{ids[-1]}"
    body = Webhook(settings.BERTH_AUDIT_WEBHOOK_SECRET).verify(second.body, second.headers)
    assert [entry["id"] for entry in body["data"]["entries"]] == ids
    (progress,) = audit_stream.receiver_progress()
    assert progress.target == "127.0.0.1"


def test_administrators_see_stream_progress(server, ada, olga, as_user, api):
    write(2)
    audit_stream.run()
    server.behave = [lambda opened: opened.close()]
    write()
    next_round()
    html = as_user(ada).get("/audit/").content.decode()
    assert f"tcp://127.0.0.1:{server.port}" in html
    assert "1 entry is waiting" in html or "2 entries are waiting" in html
    (row,) = api(ada).get("audit-streams").json()
    assert row["name"] == "syslog"
    assert row["last_error"] == "dropped"
    assert api(olga).get("audit-streams").status_code == 403


def test_header_fields_are_sanitized():
    line = syslog.message(at=dt.datetime.now(dt.UTC), host="a b\n“c”", message_id="x" * 50, text="{}")
    assert b" abc berth - " + b"x" * 32 + b" - {}" in line


# --- the order of ids and of commits ----------------------------------------------------------------


@pytest.mark.django_db(transaction=True)
def test_entry_committed_late_is_not_skipped():
    """PostgreSQL assigns ids before commit, so the reader waits for open transactions."""
    if connection.vendor != "postgresql":
        pytest.skip("writers follow each other on SQLite: no entry appears before another")
    row = AuditStream(name="syslog")
    feed.skip_to_end(row)
    written, go_on, seen = threading.Event(), threading.Event(), []

    def slow_writer() -> None:
        try:
            with transaction.atomic():
                seen.append(write()[0])
                written.set()
                assert go_on.wait(LIMIT_S)
        finally:
            connections.close_all()

    thread = threading.Thread(target=slow_writer)
    thread.start()
    assert written.wait(LIMIT_S)
    (later,) = write()
    assert seen[0] < later
    assert feed.entries_after(row, limit=10) == []
    go_on.set()
    thread.join(LIMIT_S)
    assert [entry.pk for entry in feed.entries_after(row, limit=10)] == [seen[0], later]


@pytest.mark.django_db(transaction=True)
def test_rolled_back_gap_is_awaited_only_during_its_transaction():
    row = AuditStream(name="syslog")
    write()
    feed.skip_to_end(row)
    with pytest.raises(ZeroDivisionError), transaction.atomic():
        write()
        raise ZeroDivisionError
    (later,) = write()
    assert [entry.pk for entry in feed.entries_after(row, limit=10)] == [later]
    assert Event.objects.filter(pk=later).exists()
