"""Reports programs that the kernel ended for lack of memory, in a thread of the node's worker.

If the kernel ended the app itself, the workspace fails, and its observation has the reason. This module
reports only workspaces that continue, so it reports a loss one round after it has seen it. A file keeps the
reported counts, so a restarted worker reports what it missed, and nothing twice.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import threading
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import msgspec
from celery import Celery

from provisioning import messages
from provisioning.celery_config import CONTROL_QUEUE
from provisioning.drivers.local import cgroups, memory_kills
from provisioning.drivers.local.driver import LocalDriver
from provisioning.drivers.local.state import write_atomically
from provisioning.gpu.watcher.kernel_log import KernelLog, line_of
from provisioning.memory_messages import MAX_KILLS, MemoryKill, MemoryKills
from provisioning.node.identity import node_name
from provisioning.node.watch_step import WatchStep
from provisioning.types import PoolConfig

log = logging.getLogger(__name__)
ROUND_S = 2.0
MAX_RECORDS = 4096
"""Records of the kernel's log per round; one kill writes about 100."""
FILE = "memory-kills.json"
MAX_BYTES = 1 << 20
_decode = msgspec.json.Decoder(dict[str, tuple[str, int]]).decode

Send = Callable[[list[MemoryKill]], None]


class MemoryWatch(threading.Thread):
    """Checks every 2 s until stopped. `kernel_lines` returns the new lines of the kernel's log."""

    def __init__(self, base: Path, send_kills: Send, kernel_lines: Callable[[], Iterable[str]]) -> None:
        super().__init__(name="memory-watch", daemon=True)
        self._base, self._send, self._kernel_lines = base, send_kills, kernel_lines
        self._end = threading.Event()
        self._reported = _load(base / FILE)
        self._pending: set[tuple[str, str]] = set()
        self._names: dict[str, str] = {}

    def run(self) -> None:
        while not self._end.wait(ROUND_S):
            try:
                self.round()
            except Exception as error:
                # Failures of disk or broker are retried in the next round.
                log.warning("could not report out-of-memory kills: %s", error)

    def stop(self, *, timeout_s: float) -> None:
        self._end.set()
        if self.is_alive():
            self.join(timeout_s)

    def round(self) -> None:
        """Report the losses that were first seen in an earlier round.

        Raises `OSError` and errors of the broker.
        """
        self._names |= memory_kills.victims(self._kernel_lines())
        counters = {(counter.name, counter.attempt): counter for counter in memory_kills.counters(self._base)}
        groups = {group.name for counter in counters.values() for group in counter.groups}
        self._names = {group: name for group, name in self._names.items() if group in groups}
        new = {key: counter for key, counter in counters.items() if counter.kills > self._count_of(key)}
        due = [counter for key, counter in new.items() if key in self._pending]
        self._pending = set(new)
        for first in range(0, len(due), MAX_KILLS):
            part = due[first : first + MAX_KILLS]
            self._send([self._report(counter) for counter in part])
            self._reported |= {counter.name: (counter.attempt, counter.kills) for counter in part}
        living = {name: report for name, report in self._reported.items() if (name, report[0]) in counters}
        if due or living != self._reported:
            self._reported = living
            write_atomically(self._base / FILE, json.dumps(living).encode())

    def _count_of(self, key: tuple[str, str]) -> int:
        """Return the number of losses already reported for a start."""
        name, attempt = key
        kept_attempt, count = self._reported.get(name, ("", 0))
        return count if kept_attempt == attempt else 0

    def _report(self, counter: memory_kills.KillCounter) -> MemoryKill:
        names = [self._names[group.name] for group in counter.groups if group.name in self._names]
        return MemoryKill(
            workspace_id=counter.workspace_id,
            generation=counter.generation,
            count=counter.kills - self._count_of((counter.name, counter.attempt)),
            limit_mib=counter.memory_mib,
            process=names[0][:80] if names else "",
            machine=cgroups.kept_within_memory(counter.groups),
        )


def _load(file: Path) -> dict[str, tuple[str, int]]:
    """Return the counts reported before; empty if there are none."""
    try:
        return _decode(file.read_bytes()[:MAX_BYTES])
    except (OSError, msgspec.MsgspecError):
        return {}


def kernel_lines() -> Callable[[], Iterable[str]]:
    """Return a function for the new lines of the kernel's log; it returns none if the log is unreadable."""
    try:
        kernel = KernelLog()
    except OSError:
        return tuple

    def lines() -> list[str]:
        with contextlib.suppress(OSError):
            return [line_of(record) for record in kernel.records(MAX_RECORDS)]
        return []

    return lines


class MemoryWatchStep(WatchStep):
    """Watches the groups of the machine's workspaces."""

    def watch(self, consumer: Any) -> MemoryWatch:
        def send(kills: list[MemoryKill]) -> None:
            report = MemoryKills(os.environ.get("BERTH_NODE_POOL", ""), node_name(), tuple(kills))
            consumer.app.send_task(
                "control.apply_memory_kills", kwargs={"report": messages.dump(report)}, queue=CONTROL_QUEUE
            )

        return MemoryWatch(LocalDriver(PoolConfig("local", "local")).base, send, kernel_lines())


def install(app: Celery) -> None:
    """Add a watch of the machine's workspaces to every worker of `app`."""
    app.steps["consumer"].add(MemoryWatchStep)
