"""NVML is closed before this process forks and reopened after; the wait is bounded."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator

import pytest

from provisioning.gpu import forks, release


@pytest.fixture(autouse=True)
def fresh(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forks, "_process_sessions", forks._Sessions())


@pytest.fixture
def holder() -> Iterator[threading.Event]:
    """A thread with NVML open until its release is requested; the event is set once closed."""
    opened, closed = threading.Event(), threading.Event()

    def hold() -> None:
        with forks.session():
            opened.set()
            while not release.is_release_requested():
                closed.wait(0.01)
        closed.set()

    thread = threading.Thread(target=hold)
    thread.start()
    assert opened.wait(30)
    yield closed
    forks.prepare()
    thread.join(30)


def fork() -> int:
    """Fork, and return the number of sessions open in the child as its exit code."""
    pid = os.fork()
    if pid == 0:
        os._exit(forks._process_sessions.open)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def test_nvml_is_closed_during_a_fork_and_can_be_reopened(holder: threading.Event) -> None:
    assert not release.is_release_requested()
    assert forks.prepare()
    assert release.is_release_requested()
    assert fork() == 0 and holder.wait(30)
    assert not release.is_release_requested()
    with forks.session():
        assert forks._process_sessions.open == 1


def test_request_during_a_fork_waits_for_it() -> None:
    assert forks.prepare()
    opened = threading.Event()

    def open_it() -> None:
        with forks.session():
            opened.set()

    thread = threading.Thread(target=open_it)
    thread.start()
    assert not opened.wait(0.1)
    fork()
    assert opened.wait(30)
    thread.join(30)


def test_hanging_session_is_not_awaited_before_a_fork() -> None:
    with forks.session():
        assert not forks.prepare(wait_s=0.05, hold_s=0.1)
    with forks.session():
        assert not release.is_release_requested()


def test_fork_does_not_wait_without_open_sessions() -> None:
    assert forks.prepare(wait_s=0)
    fork()
    assert not release.is_release_requested()
