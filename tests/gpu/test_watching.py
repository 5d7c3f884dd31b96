"""The watcher inside a node's worker: reports to the control plane, and conditions to start."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from provisioning import messages
from provisioning.check_messages import DeviceError, DeviceErrors
from provisioning.gpu.watcher import watcher
from provisioning.gpu.watcher.xid_report import XidReport
from provisioning.node import watching


class App:
    def __init__(self) -> None:
        self.sent: list[tuple[str, dict[str, Any], str]] = []

    def send_task(self, name: str, *, kwargs: dict[str, Any], queue: str) -> None:
        self.sent.append((name, kwargs, queue))


def test_watcher_reports() -> None:
    app = App()
    watching.DeviceErrorSender(app, pool_slug="lab", node="gpu-01")(
        [XidReport("0000:3b:00", 79, "line"), XidReport("0000:4b:00", 48)]
    )
    ((name, kwargs, queue),) = app.sent
    assert (name, queue) == ("control.apply_device_errors", "control")
    errors = (DeviceError("0000:3b:00", 79, "line"), DeviceError("0000:4b:00", 48))
    assert messages.load(kwargs["report"], DeviceErrors) == DeviceErrors("lab", "gpu-01", errors)


@pytest.mark.parametrize("library", [True, False])
def test_watcher_is_not_started_without_a_driver(monkeypatch: pytest.MonkeyPatch, library: bool) -> None:
    calls: list[str] = []

    class Watcher:
        def __init__(self, sink: Any) -> None:
            calls.append(type(sink).__name__)

        def start(self) -> None:
            calls.append("start")

        def stop(self, *, timeout_s: float) -> None:
            calls.append("stop")

    monkeypatch.setattr(watching, "has_library", lambda: library)
    monkeypatch.setattr(watcher, "Watcher", Watcher)
    step = watching.WatcherStep.__new__(watching.WatcherStep)
    step._running = None
    consumer = SimpleNamespace(app=App())
    step.start(consumer)
    # After a reconnect of the broker, the same watcher continues.
    step.stop(consumer)
    step.start(consumer)
    step.shutdown(consumer)
    step.shutdown(consumer)
    assert calls == (["DeviceErrorSender", "start", "stop"] if library else [])
