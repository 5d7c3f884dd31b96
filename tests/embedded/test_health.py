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
from portal.embedded.health import Part
from provisioning import heartbeat


class FakeStore:
    """Answers HGETALL with these pulses, or not at all."""

    def __init__(self, pulses: dict[str, float] | None) -> None:
        self._pulses = pulses

    def __enter__(self) -> FakeStore:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def hgetall(self, key: str) -> dict[bytes, bytes]:
        assert key == heartbeat.PULSE_KEY
        if self._pulses is None:
            raise redis.ConnectionError("refused")
        return {name.encode(): json.dumps({"at": at, "pid": 1}).encode() for name, at in self._pulses.items()}


def parts(monkeypatch: pytest.MonkeyPatch, pulses: dict[str, float] | None) -> dict[str, Part]:
    monkeypatch.setattr(health, "redis_client", lambda _: FakeStore(pulses))
    return {part.name: part for part in health.check()}


ALL = ("control@a", "node@a", "beat@a")


@pytest.mark.django_db
def test_all_is_well(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("BERTH_FRONT_DOOR_URL", raising=False)
    found = parts(monkeypatch, {name: time.time() for name in ALL})
    assert list(found) == ["database", "redis", "control", "node", "beat"]
    assert all(part.ok for part in found.values())


@pytest.mark.django_db
def test_a_gateway_that_is_away_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BERTH_GATEWAY_URL", "http://127.0.0.1:9")
    found = parts(monkeypatch, {name: time.time() for name in ALL})
    assert not found["gateway"].ok and "gateway.log" in found["gateway"].fix


@pytest.mark.django_db
def test_a_silent_process_is_named_with_how_long(
    monkeypatch: pytest.MonkeyPatch, clock: time_machine.Traveller
) -> None:
    now = time.time()
    found = parts(monkeypatch, {"control@a": now - 60, "node@a": now, "node@b": now - 3600, "beat@a": now})
    assert not found["control"].ok and found["control"].detail == "a silent for 60 s" and found["control"].fix
    assert found["node"].ok and found["node"].detail == "1 alive; b silent for 3600 s"
    assert not parts(monkeypatch, {})["beat"].ok


@pytest.mark.django_db
def test_without_redis_the_workers_are_not_called_dead(monkeypatch: pytest.MonkeyPatch) -> None:
    found = parts(monkeypatch, None)
    assert not found["redis"].ok and "ConnectionError" in found["redis"].detail
    assert "not known" in found["control"].detail and not found["control"].ok
    assert found["database"].ok


@pytest.mark.django_db
def test_a_database_that_does_not_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    def away() -> Any:
        raise OperationalError("could not connect to server: password=hunter2")

    monkeypatch.setattr(health.connection, "cursor", away)
    part = parts(monkeypatch, {})["database"]
    assert not part.ok and part.fix and "hunter2" not in part.detail


@pytest.mark.django_db
def test_a_front_door_that_does_not_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BERTH_FRONT_DOOR_URL", "http://127.0.0.1:1")
    part = parts(monkeypatch, {})["front door"]
    assert not part.ok and part.detail == "does not answer" and "front-door.log" in part.fix


@pytest.mark.django_db
def test_the_page_tells_by_its_status(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
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


def test_pulses_that_are_not_ours_are_left_out() -> None:
    assert heartbeat.parse(
        {b"control@a": b'{"at": 5}', b"x": b"text", b"y": b"{}", b"z": b'{"at": null}'}
    ) == {"control@a": 5.0}
