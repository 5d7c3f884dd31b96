"""Heartbeat of a node with data for the control plane: version, clock and identity.

Boot IDs and machine IDs distinguish two machines with the same identity.
"""

from __future__ import annotations

import logging
import os
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

from celery import Celery, bootsteps

from provisioning.celery_config import CONTROL_QUEUE
from provisioning.machine_id import machine_id
from provisioning.types import NodeHello
from provisioning.version import VERSION

log = logging.getLogger(__name__)

INTERVAL_S = 15.0
EXPIRES_S = 120
BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


def hello() -> NodeHello:
    """Return this node's heartbeat. `BERTH_NODE_INSTANCE` is the ID that it chose when it joined."""
    instance = os.environ.get("BERTH_NODE_INSTANCE", "")
    return NodeHello(
        machine_id=machine_id(instance),
        instance=instance,
        boot=_text(BOOT_ID),
        version=VERSION,
        clock=time.time(),
    )


def send(app: Celery) -> None:
    """Send the heartbeat to the control plane. An unavailable Redis is not an error."""
    try:
        app.send_task(
            "control.node_hello", kwargs={"hello": asdict(hello())}, queue=CONTROL_QUEUE, expires=EXPIRES_S
        )
    except Exception as error:
        log.warning("could not send node heartbeat: %s", error)


class HelloStep(bootsteps.StartStopStep):  # type: ignore[misc]
    """Sends the heartbeat from the worker's own event loop."""

    requires = ("celery.worker.consumer.tasks:Tasks",)

    def __init__(self, consumer: Any, **kwargs: Any) -> None:
        super().__init__(consumer, **kwargs)
        self._timer: Any = None

    def start(self, consumer: Any) -> None:
        send(consumer.app)
        self._timer = consumer.timer.call_repeatedly(INTERVAL_S, send, (consumer.app,))

    def stop(self, _consumer: Any) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    shutdown = stop


def install(app: Celery) -> None:
    """Add node heartbeats to every worker of `app`."""
    app.steps["consumer"].add(HelloStep)


def _text(path: Path) -> str:
    try:
        return path.read_text().strip()[:128]
    except OSError:
        return ""
