"""The web process returns the memory of a large request without other garbage collection."""

from __future__ import annotations

import gc
import threading
import weakref
from collections.abc import Iterator
from typing import Any

import pytest

from portal.embedded import web_memory, web_server
from portal.embedded.proxy import SMALL_BODY_BYTES


class Body:
    """Part of a reference cycle, like the data of a failed request."""

    def __init__(self) -> None:
        self.own = self


@pytest.fixture
def body(monkeypatch: pytest.MonkeyPatch) -> Iterator[weakref.ref[Body]]:
    monkeypatch.setattr(web_memory, "RELEASE_AFTER_S", 0.01)
    # Tests of the scheduler in this process may have left one due.
    monkeypatch.setattr("portal.scheduling.pauses.collect_if_due", lambda: None)
    gc.disable()
    yield weakref.ref(Body())
    gc.enable()


def ended(length: object) -> None:
    environ: dict[str, Any] = {} if length is None else {"CONTENT_LENGTH": str(length)}
    before = set(threading.enumerate())
    web_server.post_request(None, None, environ, None)
    for thread in set(threading.enumerate()) - before:
        thread.join(timeout=10)


def test_memory_of_a_large_request_is_collected(body: weakref.ref[Body]) -> None:
    ended(SMALL_BODY_BYTES + 1)
    assert body() is None
    assert not web_memory._timers


@pytest.mark.parametrize("length", [None, "", 0, SMALL_BODY_BYTES, "many"])
def test_small_requests_trigger_no_collection(body: weakref.ref[Body], length: object) -> None:
    ended(length)
    assert body() is not None


def test_many_requests_at_once_trigger_one_release(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(web_memory, "RELEASE_AFTER_S", 60)
    for _ in range(24):
        web_memory.release_soon()
    (timer,) = web_memory._timers
    timer.cancel()
    web_memory._timers.clear()
