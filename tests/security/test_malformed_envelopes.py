"""Attack: malformed messages in a queue, which must not stop a worker or fill its log."""

from __future__ import annotations

import base64
import gzip
import json
import queue
import time
import uuid
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from celery.contrib.testing.worker import start_worker
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from redis import Redis

from portal.common.events.models import Notification
from portal.fleet.inventory import tasks as inventory_tasks
from provisioning import envelopes
from provisioning.celery_config import CONTROL_QUEUE, KEY_PREFIX, configure
from provisioning.signed_celery import STAMP, Identity, SignedCelery, SignedTask
from provisioning.signing import CONTROL, MessageRefused, Refusal, Signer, public_keys, public_text
from tests.ports import free_port
from tests.senders import CONTROL_KEY, NODE_KEY, sent_by
from tests.suite.choice import examples
from tests.workspaces.gateway.gateway_support import valkey

QUEUE = KEY_PREFIX + CONTROL_QUEUE
TASK = "control.count"


def envelope(task: str = TASK, body: str | None = None) -> dict[str, Any]:
    """Return an envelope as written by Celery, signed by node a."""
    kwargs = {"number": uuid.uuid4().hex}
    payload = [[], kwargs, {"callbacks": None, "errbacks": None, "chain": None, "chord": None}]
    stamp = Signer("node.a", NODE_KEY).stamp(task, CONTROL_QUEUE, [[], kwargs], now=time.time())
    return {
        "body": base64.b64encode(json.dumps(payload).encode()).decode() if body is None else body,
        "content-encoding": "utf-8",
        "content-type": "application/json",
        "headers": {"lang": "py", "task": task, "id": uuid.uuid4().hex, "retries": 0, STAMP: stamp},
        "properties": {
            "correlation_id": "x",
            "delivery_mode": 2,
            "delivery_info": {"exchange": "", "routing_key": CONTROL_QUEUE},
            "priority": 0,
            "body_encoding": "base64",
            "delivery_tag": uuid.uuid4().hex,
        },
    }


def changed(*path: str, to: Any) -> bytes:
    """Return a valid envelope with another value at `path`."""
    message = envelope()
    place = message
    for name in path[:-1]:
        place = place[name]
    place[path[-1]] = to
    return json.dumps(message).encode()


POISON: dict[str, bytes] = {
    "text": b"not json",
    "empty": b"",
    "list": b"[]",
    "number": b"1",
    "null": b"null",
    "only a body": b'{"body":1}',
    "not UTF-8": b'{"body": "\xff\xfe"}',
    "a lone surrogate": changed("headers", "id", to="\ud800"),
    "deep": b"[" * 200_000,
    "deep headers": changed("headers", STAMP, to="D").replace(b'"D"', b"[" * 50_000 + b"]" * 50_000),
    "a long number": changed("headers", "retries", to=1) + b"0" * 10_000,
    "long": b'"' + b"x" * envelopes.MAX_BYTES + b'"',
    "body of another type": changed("body", to=[1]),
    "body without base64": changed("body", to="%%%"),
    "unknown encoding": changed("properties", "body_encoding", to="rot13"),
    "pickle": changed("content-type", to="application/x-python-serialize"),
    "another charset": changed("content-encoding", to="utf-7"),
    "compressed": changed("headers", "compression", to="application/x-gzip"),
    "no headers": changed("headers", to=None),
    "headers in a list": changed("headers", to=[]),
    "no properties": changed("properties", to={}),
    "properties in a list": changed("properties", to=[[]]),
    "no delivery": changed("properties", "delivery_info", to=None),
    "a task in a list": changed("headers", "task", to=["control.count"]),
    "a task of many lines": changed("headers", "task", to="x\nERROR all is lost"),
    "a number as id": changed("headers", "id", to=5),
    "an end that is no time": changed("headers", "expires", to="soon"),
    "an end out of all time": changed("headers", "expires", to="0001-01-01T00:00:00+23:59"),
    "a start without an offset": changed("headers", "eta", to="2026-01-01T00:00:00"),
}


@pytest.mark.parametrize("kind", POISON)
def test_malformed_envelopes_are_refused(kind: str) -> None:
    with pytest.raises(envelopes.Undecodable) as refused:
        envelopes.parse(POISON[kind], queue=CONTROL_QUEUE)
    assert len(str(refused.value)) < 200
    assert "\n" not in str(refused.value)


def test_only_fields_that_berth_uses_are_kept() -> None:
    message = envelope()
    tag = message["properties"]["delivery_tag"]
    message["headers"] |= {"timelimit": [1e9, 1e9], "shadow": "x", "retries": "many", "argsrepr": "x" * 1000}
    message["properties"]["delivery_info"] = {"exchange": {}, "routing_key": "node.b"}
    found = envelopes.parse(json.dumps(message).encode(), queue=CONTROL_QUEUE)
    assert set(found["headers"]) == {"lang", "task", "id", "eta", "expires", "group", STAMP}
    assert found["properties"]["delivery_info"]["routing_key"] == CONTROL_QUEUE
    assert found["properties"]["delivery_tag"] != tag, "another message may have this one"


@pytest.mark.django_db
def test_operators_are_notified_once(olga) -> None:
    report = {"claimed": "", "reason": "undecodable", "queue": "control", "task": "", "count": 3, "off_s": 0}
    with sent_by(CONTROL):
        for _ in range(3):
            inventory_tasks.message_refused.run(report)
    (told,) = Notification.objects.filter(user=olga)
    assert told.title == "Unreadable messages in queue control were dropped"


def test_unverified_senders_make_one_report(monkeypatch, caplog) -> None:
    app = worker_app("redis://127.0.0.1:1/0")
    sent: list[Any] = []
    monkeypatch.setattr(app, "send_task", lambda *args, **options: sent.append(options))
    for number in range(50):
        refused = MessageRefused(Refusal.UNKNOWN_SENDER, f"node.invented-{number}")
        app.gate.note(app, refused, "control.count", queue=CONTROL_QUEUE)
    assert len(sent) == len(caplog.records) == 1


# --- a real worker --------------------------------------------------------------------------------


def worker_app(url: str) -> SignedCelery:
    keys = {"node.a": public_keys(public_text(NODE_KEY))}
    identity = Identity(CONTROL, lambda: CONTROL_KEY, lambda: keys, lambda: (CONTROL_QUEUE,))
    app = SignedCelery("malformed", identity=identity, set_as_current=False)
    configure(
        app, broker_url=url, default_queue=CONTROL_QUEUE, on_undecodable=app.drop_undecodable
    )  # as in portal.celery
    return app


class Worker:
    """A worker in a thread; `done` has the numbers of completed messages."""

    def __init__(self, client: Redis, app: SignedCelery) -> None:
        self.client, self.app, self.done = client, app, queue.Queue[str]()

    def push(self, raw: bytes) -> None:
        self.client.lpush(QUEUE, raw)

    def runs_on(self) -> None:
        """Assert that a valid message sent last is processed."""
        good = envelope()
        self.push(json.dumps(good).encode())
        number = json.loads(base64.b64decode(good["body"]))[1]["number"]
        while self.done.get(timeout=20) != number:
            pass


@pytest.fixture(scope="module")
def worker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Worker]:
    port = free_port()
    with valkey(tmp_path_factory.mktemp("valkey"), port), Redis(port=port) as client:
        app = worker_app(f"redis://127.0.0.1:{port}/0")
        found = Worker(client, app)
        app.send_task = lambda *args, **options: None  # type: ignore[method-assign]

        class Count(SignedTask):
            name = TASK
            from_nodes = True

            def run(self, number: Any = None) -> None:
                found.done.put(number)

        app.register_task(Count())
        with start_worker(
            app, pool="solo", perform_ping_check=False, shutdown_timeout=20.0, loglevel="ERROR"
        ):
            yield found


@pytest.mark.engine
def test_worker_survives_every_kind_of_malformed_message(worker: Worker) -> None:
    before = worker.app.gate.refused["undecodable"]
    for raw in POISON.values():
        worker.push(raw)
    for body in (b"{", b"[" * 100_000, b'{"task": 1}', b"[[], {}]", b'"x"', b'[[],{},{"__type__":"date"}]'):
        worker.push(json.dumps(envelope(body=base64.b64encode(body).decode())).encode())
    worker.push(json.dumps(envelope("control.unknown")).encode())
    worker.push(json.dumps(envelope(body=base64.b64encode(gzip.compress(b"0" * 10**6)).decode())).encode())
    worker.runs_on()
    assert worker.app.gate.refused["undecodable"] - before >= len(POISON)
    assert worker.app.gate.refused["unknown_task"] == 1
    assert worker.client.hlen(KEY_PREFIX + "unacked") <= 1, "only the last task, which is ending"


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20)
    | st.sampled_from(["base64", "utf-8", "application/json", "2026-01-01T00:00:00+00:00", "A" * 10_000]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=10), inner, max_size=3),
    max_leaves=8,
)  # fmt: skip
GOOD = json.dumps(envelope())
UNSENT = ("timelimit", "shadow", "compression", "stamps", "stamped_headers", "ignore_result", "root_id")
PATHS = [
    *((name,) for name in envelope()),
    *(("headers", name) for name in (*envelope()["headers"], "eta", "expires", "group", *UNSENT)),
    *(("properties", name) for name in (*envelope()["properties"], "reply_to")),
    *(("properties", "delivery_info", name) for name in ("exchange", "routing_key", "redelivered")),
]


@st.composite
def poison(draw: Callable[..., Any]) -> bytes:
    """A valid envelope with changed or missing values, or random bytes."""
    message = json.loads(GOOD)
    for path in draw(st.lists(st.sampled_from(PATHS), max_size=3)):
        place: Any = message
        for name in path[:-1]:
            place = place.get(name) if isinstance(place, dict) else None
        if not isinstance(place, dict):
            continue
        if draw(st.booleans()):
            place[path[-1]] = draw(JSON)
        else:
            place.pop(path[-1], None)
    if draw(st.booleans()):
        message["body"] = base64.b64encode(json.dumps(draw(JSON)).encode()).decode()
    raw = bytearray(json.dumps(message).encode())
    for _ in range(draw(st.integers(0, 3))):
        raw[draw(st.integers(0, len(raw) - 1))] = draw(st.integers(0, 255))
    return bytes(raw[: draw(st.integers(0, len(raw)))] if draw(st.booleans()) else raw)


@pytest.mark.engine
@pytest.mark.slow("a real worker reads generated messages")
@settings(
    max_examples=examples(2000),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(messages=st.lists(poison() | st.binary(max_size=60), min_size=1, max_size=20))
def test_worker_survives_arbitrary_messages(worker: Worker, messages: list[bytes]) -> None:
    for raw in messages:
        worker.push(raw)
    worker.runs_on()


def test_both_planes_report_dropped_messages() -> None:
    from portal.celery import app as control_app
    from provisioning.node.worker import app as node_app

    for app in (control_app, node_app):
        options = app.conf.broker_transport_options
        assert options["on_undecodable"] == app.drop_undecodable
        assert app.conf.worker_consumer == "provisioning.signed_consumer:Consumer"
