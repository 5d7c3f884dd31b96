from __future__ import annotations

import json
import time
from typing import Any

import pytest
import redis
import time_machine
from django.db import OperationalError
from django.test import Client

from portal.embedded import health
from portal.embedded.health import ComponentHealth
from provisioning import heartbeat


class FakeStore:
    """A Redis with these heartbeats, or one that does not answer. `full` is the used MiB of 100."""

    def __init__(self, heartbeats: dict[str, float] | None, full: int = 1) -> None:
        self._heartbeats, self._full = heartbeats, full
        self._asked: list[str] = []

    def __enter__(self) -> FakeStore:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def hgetall(self, key: str) -> dict[bytes, bytes]:
        assert key == heartbeat.HEARTBEAT_KEY
        return {
            name.encode(): self._heartbeat(name) for name in self._known() if not name.startswith("node@")
        }

    def acl_users(self) -> list[bytes]:
        nodes = [name.removeprefix("node@") for name in self._known() if name.startswith("node@")]
        return [b"control", b"default", *(f"node-{name}".encode() for name in nodes)]

    def acl_list(self) -> list[bytes]:
        return [b"user control on", b"user node-a on"]

    def pipeline(self, *, transaction: bool) -> FakeStore:
        return self

    def hget(self, key: str, name: str) -> None:
        assert key == f"berth:q:node.{name.removeprefix('node@')}:heartbeat"
        self._asked.append(name)

    def execute(self, *, raise_on_error: bool) -> list[bytes]:
        return [self._heartbeat(name) for name in self._asked]

    def info(self, section: str) -> dict[str, int]:
        assert section == "memory"
        return {"used_memory": self._full << 20, "maxmemory": 100 << 20}

    def set(self, key: str, value: object, *, ex: int) -> None:
        if self._full >= 100:
            raise redis.OutOfMemoryError("command not allowed when used memory > 'maxmemory'")

    def _known(self) -> dict[str, float]:
        if self._heartbeats is None:
            raise redis.ConnectionError("refused")
        return self._heartbeats

    def _heartbeat(self, name: str) -> bytes:
        return json.dumps({"at": self._known()[name], "pid": 1}).encode()


def parts(
    monkeypatch: pytest.MonkeyPatch, heartbeats: dict[str, float] | None, full: int = 1
) -> dict[str, ComponentHealth]:
    monkeypatch.setattr(health, "redis_client", lambda _: FakeStore(heartbeats, full))
    return {part.name: part for part in health.check()}


ALL = ("control@a", "node@a", "beat@a")


@pytest.mark.django_db
def test_all_parts_are_healthy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("BERTH_FRONT_DOOR_URL", raising=False)
    found = parts(monkeypatch, {name: time.time() for name in ALL})
    assert list(found) == ["database", "redis", "control", "node", "beat"]
    assert all(part.ok for part in found.values())


@pytest.mark.django_db
def test_unreachable_gateway_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BERTH_GATEWAY_URL", "http://127.0.0.1:9")
    found = parts(monkeypatch, {name: time.time() for name in ALL})
    assert not found["gateway"].ok and "gateway.log" in found["gateway"].fix


@pytest.mark.django_db
def test_silent_process_is_reported_with_its_age(
    monkeypatch: pytest.MonkeyPatch, clock: time_machine.Traveller
) -> None:
    now = time.time()
    found = parts(monkeypatch, {"control@a": now - 60, "node@a": now, "node@b": now - 3600, "beat@a": now})
    assert not found["control"].ok and found["control"].detail == "a silent for 60 s" and found["control"].fix
    assert found["node"].ok and found["node"].detail == "1 alive; b silent for 3600 s"
    assert not parts(monkeypatch, {})["beat"].ok


@pytest.mark.django_db
def test_workers_are_unknown_without_redis(monkeypatch: pytest.MonkeyPatch) -> None:
    found = parts(monkeypatch, None)
    assert not found["redis"].ok and "ConnectionError" in found["redis"].detail
    assert "unknown" in found["control"].detail and not found["control"].ok
    assert found["database"].ok


@pytest.mark.django_db
def test_unreachable_database_is_reported_without_credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    def away() -> Any:
        raise OperationalError("could not connect to server: password=hunter2")

    monkeypatch.setattr(health.connection, "cursor", away)
    part = parts(monkeypatch, {})["database"]
    assert not part.ok and part.fix and "hunter2" not in part.detail


@pytest.mark.django_db
def test_unreachable_front_door_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BERTH_FRONT_DOOR_URL", "http://127.0.0.1:1")
    part = parts(monkeypatch, {})["front door"]
    assert not part.ok and part.detail == "does not answer" and "front-door.log" in part.fix


@pytest.mark.django_db
def test_health_endpoint_status_codes(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("BERTH_FRONT_DOOR_URL", raising=False)
    parts(monkeypatch, {name: time.time() for name in ALL})
    answer = client.get("/healthz")
    assert (answer.status_code, answer.json()["status"]) == (200, "ok")
    assert answer.json()["parts"][0]["name"] == "database"
    parts(monkeypatch, None)
    answer = client.get("/healthz")
    assert (answer.status_code, answer.json()["status"]) == (503, "failing")
    assert "no-store" in answer["Cache-Control"]
    live = client.get("/healthz/live")
    assert (live.status_code, live.content) == (200, b"ok\n")
    assert client.post("/healthz").status_code == 405


@pytest.mark.django_db
@pytest.mark.parametrize("full", [91, 100])
def test_full_redis_is_reported(monkeypatch: pytest.MonkeyPatch, full: int) -> None:
    found = parts(monkeypatch, {name: time.time() for name in ALL}, full)
    assert not found["redis"].ok and found["redis"].detail == f"full: {full} of 100 MiB used"
    assert found["control"].ok and found["node"].ok


MALFORMED = (
    *(b"text", b"{}", b"[]", b'{"at": null}', b'{"at": NaN}', b"[" * 100_000),
    b'{"at": 1' + b"0" * 400 + b"}",
)


@pytest.mark.parametrize("value", MALFORMED)
def test_malformed_heartbeats_are_ignored(value: bytes) -> None:
    class Store(FakeStore):
        def _heartbeat(self, name: str) -> bytes:
            return value if name == "node@evil" else super()._heartbeat(name)

    store: Any = Store({"control@a": 5.0, "node@b": 6.0, "node@evil": 7.0})
    assert heartbeat.read(store) == {"control@a": 5.0, "node@b": 6.0}


def test_heartbeat_from_the_future_counts_as_now() -> None:
    store: Any = FakeStore({"node@a": time.time() + 1e6})
    assert heartbeat.read(store)["node@a"] <= time.time()
