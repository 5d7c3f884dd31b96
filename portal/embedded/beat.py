"""Celery beat with a heartbeat, which shows if beat hangs or never started."""

from __future__ import annotations

import os
import socket
import time
from typing import Any

from celery.beat import PersistentScheduler

from provisioning.heartbeat import HEARTBEAT_INTERVAL_S, Heartbeat


class PulsingScheduler(PersistentScheduler):
    """A scheduler that writes the heartbeat in the loop that sends the tasks."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.max_interval: float = min(float(self.max_interval), HEARTBEAT_INTERVAL_S)
        name = os.environ.get("BERTH_NODE_NAME") or socket.gethostname()
        self._heartbeat = Heartbeat(self.app.conf.broker_url, f"beat@{name}")
        self._shown_at = float("-inf")

    def tick(self, *args: Any, **kwargs: Any) -> float:
        """Send due tasks; see the parent class."""
        now = time.monotonic()
        if now - self._shown_at >= HEARTBEAT_INTERVAL_S:
            self._shown_at = now
            self._heartbeat.write()
        wait_s: float = super().tick(*args, **kwargs)
        return wait_s

    def close(self) -> None:
        """Write the schedule and delete the heartbeat."""
        super().close()
        self._heartbeat.withdraw()
