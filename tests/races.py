"""Run jobs at the same moment, each in a thread with its own connection, on both databases."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from django.db import connection

BLOCKED_S = 1.0


def at_once(jobs: list[Callable[[], Any]]) -> list[Any]:
    """Run all jobs in threads that begin together. Returns the results, or the exceptions, in order."""
    gate = threading.Barrier(len(jobs))

    def one(job: Callable[[], Any]) -> Any:
        gate.wait(timeout=30)
        return _outcome(job)

    with ThreadPoolExecutor(len(jobs)) as threads:
        return list(threads.map(one, jobs))


class Meanwhile:
    """Runs `job` in the middle of other work: at the first call of `module.name`, in a separate thread.

    That call continues once the job is done. If the job waits for locks of the other work, the call continues
    after `BLOCKED_S`. So the worst order of the two happens every time, whether or not there is a lock.

    `outcome()` waits for the end of the job, and returns or raises its result.
    """

    def __init__(
        self, monkeypatch: pytest.MonkeyPatch, module: Any, name: str, job: Callable[[], Any]
    ) -> None:
        self._outcome: Any = None
        self._thread: threading.Thread | None = None
        self._job = job
        self._real = getattr(module, name)
        monkeypatch.setattr(module, name, self._called)

    def _called(self, *args: Any, **kwargs: Any) -> Any:
        if self._thread is None:
            self._thread = threading.Thread(target=self._run)
            self._thread.start()
            self._thread.join(BLOCKED_S)
        return self._real(*args, **kwargs)

    def _run(self) -> None:
        self._outcome = _outcome(self._job)

    def outcome(self) -> Any:
        assert self._thread is not None, "the moment in between never came"
        self._thread.join(60)
        assert not self._thread.is_alive(), "the two wait for each other"
        return self._outcome


def _outcome(job: Callable[[], Any]) -> Any:
    try:
        return job()
    except Exception as error:
        return error
    finally:
        connection.close()
