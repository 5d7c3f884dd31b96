"""Measures home folders in a thread of the node's worker, and reports them to the control plane.

It works at most a fifth of the time. Homes that do not change are measured less and less often, unless the
disk fills: then all are measured again.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Generator
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

from celery import Celery

from provisioning import messages
from provisioning.celery_config import CONTROL_QUEUE
from provisioning.drivers.local import disk, home_usage
from provisioning.drivers.local.driver import LocalDriver
from provisioning.node.identity import node_name
from provisioning.node.watch_step import WatchStep
from provisioning.types import HomeUsage, PoolConfig

log = logging.getLogger(__name__)
T = TypeVar("T")
ROUND_S = 5.0
WORK_S, PAUSE_S = 0.02, 0.08
FULL_REPORT_EVERY_S = 60.0
MAX_INTERVAL_S = 300.0
NOTED_FILES = 1000
"""Smaller changes of the file count are not reported immediately."""
GROWTH_MIB = 64
"""A decrease of free space by this much, at once or gradually, triggers measuring all homes."""
MAX_PER_MESSAGE = 500

Send = Callable[[list[HomeUsage]], None]


class HomeMeasurer(threading.Thread):
    """Measures all homes of the machine's local pool until stopped."""

    def __init__(self, driver: LocalDriver, send_usage: Send) -> None:
        super().__init__(name="homes", daemon=True)
        self._driver = driver
        self._send = send_usage
        self._end = threading.Event()
        self._seen: dict[str, HomeUsage] = {}
        self._due: dict[str, tuple[float, float]] = {}
        self._full_report_at = 0.0
        self._free_mib = 0

    def run(self) -> None:
        while not self._end.wait(ROUND_S):
            try:
                self.round()
            except Exception as error:
                # Failures of disk or broker are retried in the next round.
                log.warning("could not measure homes: %s", error)

    def stop(self, *, timeout_s: float) -> None:
        self._end.set()
        self.join(timeout_s)

    def round(self, now_s: float | None = None) -> None:
        """Measure the homes that are due and report them. Raises `OSError` and errors of the broker."""
        now_s = time.monotonic() if now_s is None else now_s
        homes = self._driver.homes
        if not homes.is_dir():
            return
        names = home_usage.names(homes)
        self._seen = {name: usage for name, usage in self._seen.items() if name in names}
        free_mib = _free_mib(homes)
        self._enforce_quotas(names)
        filling = self._free_mib - free_mib >= GROWTH_MIB
        if filling or free_mib > self._free_mib:
            self._free_mib = free_mib
        due = [name for name in names if filling or self._due.get(name, (0.0, 0.0))[0] <= now_s]
        changed: list[HomeUsage] = []
        if due:
            most_files = self._driver.quotas.most_files()
            disk_low = free_mib < disk.reserve_mib()
            unnamed = self._run_with_pauses(home_usage.unnamed(homes, names, self._driver.pids()))
            for name in due:
                before = self._seen.get(name)
                try:
                    steps = home_usage.measure(homes, name, unnamed.get(name), most_files)
                    usage = replace(self._run_with_pauses(steps), disk_low=disk_low)
                except OSError as error:
                    log.debug("could not measure home %s: %s", name, error)
                    continue
                self._seen[name] = usage
                wait_s = 0.0
                if before is not None and _is_similar(usage, before):
                    wait_s = min(max(2 * self._due.get(name, (0.0, 0.0))[1], ROUND_S), MAX_INTERVAL_S)
                else:
                    changed.append(usage)
                self._due[name] = (now_s + wait_s, wait_s)
        if now_s - self._full_report_at >= FULL_REPORT_EVERY_S:
            changed, self._full_report_at = list(self._seen.values()), now_s
        for first in range(0, len(changed), MAX_PER_MESSAGE):
            self._send(changed[first : first + MAX_PER_MESSAGE])

    def _enforce_quotas(self, names: list[str]) -> None:
        """Apply kernel quotas to homes where supported. Failures are retried in the next round."""
        try:
            self._run_with_pauses(self._driver.quotas.enforce(names))
        except InterruptedError:
            raise
        except OSError as error:
            log.warning("could not set quotas of homes: %s", error)

    def _run_with_pauses(self, steps: Generator[None, None, T]) -> T:
        """Run the steps and return their result, pausing regularly."""
        began = time.monotonic()
        try:
            while True:
                next(steps)
                if time.monotonic() - began >= WORK_S:
                    if self._end.wait(PAUSE_S):
                        raise InterruptedError("the worker ends")
                    began = time.monotonic()
        except StopIteration as done:
            result: T = done.value
            return result
        finally:
            steps.close()


def _is_similar(first: HomeUsage, second: HomeUsage) -> bool:
    return abs(first.files - second.files) < NOTED_FILES and first == replace(second, files=first.files)


def _free_mib(path: Path) -> int:
    statistics = os.statvfs(path)
    return statistics.f_bavail * statistics.f_frsize >> 20


class HomeMeasurerStep(WatchStep):
    """Measures the machine's homes."""

    def watch(self, consumer: Any) -> HomeMeasurer:
        def send(usages: list[HomeUsage]) -> None:
            consumer.app.send_task(
                "control.apply_home_usage",
                kwargs={
                    "pool_slug": os.environ.get("BERTH_NODE_POOL", ""),
                    "node_name": node_name(),
                    "usages": messages.dump(usages),
                },
                queue=CONTROL_QUEUE,
            )

        return HomeMeasurer(LocalDriver(PoolConfig("local", "local")), send)


def install(app: Celery) -> None:
    """Add measuring of the machine's homes to every worker of `app`."""
    app.steps["consumer"].add(HomeMeasurerStep)
