"""GPU checks, scrubs, resets and MIG layout changes on the node plane: long-running work in the background.

A task only starts a run. The run is a thread of the worker's process that waits for the check's own
processes, while the worker continues to start and stop workspaces. So neither the task's time limit nor the
broker's visibility timeout applies to a check. If a worker dies, its check dies too (its processes end with
the thread that started them), and the control plane sends the command again.
"""

from __future__ import annotations

import fcntl
import logging
import re
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from typing import Any

from provisioning import messages
from provisioning.celery_config import CONTROL_QUEUE
from provisioning.check_messages import (
    JOINT,
    PAIR,
    REPARTITION,
    RESET,
    SCRUB,
    CheckAnswer,
    CheckCommand,
    Repartitioned,
)
from provisioning.driver import Driver
from provisioning.errors import UncleanDevices
from provisioning.gpu.check.types import Progress
from provisioning.gpu.release import lock_folder
from provisioning.node.local_settings import driver_for
from provisioning.node.tasks import failure_of
from provisioning.node.worker import app
from provisioning.types import Failure

log = logging.getLogger(__name__)

PROGRESS_EVERY_S = 1.0
ALIVE_EVERY_S = 5.0
"""Silence means that the node is down: without new progress, a check repeats its last one."""
SLACK_S = 90.0
"""Extra time after the deadline for a check to end its processes."""
TRIES_S = (0.0, 1.0, 2.0, 5.0, 10.0, 20.0)
"""Retries: a result of minutes of work is not lost because the broker is briefly unavailable."""
LOCK_POLL_INTERVAL_S = 0.25


@app.task(name="node.gpu_check")  # type: ignore[untyped-decorator]
def gpu_check(command: dict[str, Any]) -> None:
    """Start a check; its report is sent when it has ended."""
    begin(messages.load(command, CheckCommand))


@app.task(name="node.gpu_pair")  # type: ignore[untyped-decorator]
def gpu_pair(command: dict[str, Any]) -> None:
    """Start this end of a check of the link between two nodes; its report is sent when it has ended."""
    begin(messages.load(command, CheckCommand))


@app.task(name="node.gpu_joint")  # type: ignore[untyped-decorator]
def gpu_joint(command: dict[str, Any]) -> None:
    """Start a check of all GPUs of this node at once; its report is sent when it has ended."""
    begin(messages.load(command, CheckCommand))


@app.task(name="node.gpu_scrub")  # type: ignore[untyped-decorator]
def gpu_scrub(command: dict[str, Any]) -> None:
    """Start a scrub; its result is sent when it has ended."""
    begin(messages.load(command, CheckCommand))


@app.task(name="node.gpu_repartition")  # type: ignore[untyped-decorator]
def gpu_repartition(command: dict[str, Any]) -> None:
    """Start a change of a MIG layout; its result is sent when it has ended."""
    begin(messages.load(command, CheckCommand))


@app.task(name="node.gpu_reset")  # type: ignore[untyped-decorator]
def gpu_reset(command: dict[str, Any]) -> None:
    """Start a GPU reset; its result is sent when it has ended."""
    begin(messages.load(command, CheckCommand))


def begin(command: CheckCommand) -> threading.Thread | None:
    """Start a run in a new thread, or run it here if it is simulated and answers promptly."""
    if time.time() > command.expires_at:
        log.info("skipped %s of %s: the command had expired", command.kind, command.uuid)
        return None
    try:
        driver = driver_for(command.pool)
        at_once = driver.checks_at_once
    except Exception as error:
        _answer(command, failure=failure_of(error))
        return None
    if at_once:
        _answer(command, **_run_command(driver, command, _ProgressSender(command)))
        return None
    thread = threading.Thread(target=_run, args=(driver, command), name=f"gpu-{command.kind}", daemon=True)
    thread.start()
    return thread


def _run(driver: Driver, command: CheckCommand) -> None:
    """Execute one run. Sends nothing if another run on the same device continues."""
    try:
        with _device(command) as acquired:
            if acquired:
                _watch(driver, command)
    except Exception as error:
        _answer(command, failure=failure_of(error))


def _watch(driver: Driver, command: CheckCommand) -> None:
    """Wait for the work with a separate time limit, so a hanging run still gets an answer."""
    progress = _ProgressSender(command)
    results: list[dict[str, Any]] = []
    worker = threading.Thread(
        target=lambda: results.append(_run_command(driver, command, progress)), name="gpu-work", daemon=True
    )
    progress(Progress("prepare"))
    worker.start()
    until = time.monotonic() + command.deadline_s + SLACK_S
    while worker.is_alive() and time.monotonic() < until:
        worker.join(ALIVE_EVERY_S)
        if worker.is_alive():
            progress.alive()
    if results:
        _answer(command, **results[0])
        return
    limit_s = command.deadline_s + SLACK_S
    text = f"The run did not end within {limit_s:.0f} s and cannot be stopped. Reboot the node."
    _answer(command, failure=Failure(code="hung", message=text, retryable=False, blame="operator"))


def _run_command(driver: Driver, command: CheckCommand, on_progress: _ProgressSender) -> dict[str, Any]:
    """Return the content of the answer for every outcome, including unexpected errors."""
    try:
        if command.kind == REPARTITION:
            return _repartition(driver, command)
        if command.kind == RESET:
            reset_report = driver.reset_device(command.uuid, bus=command.bus, deadline_s=command.deadline_s)
            return {"report": messages.dump(reset_report)}
        if command.kind == SCRUB:
            result = driver.scrub_device(
                command.uuid, baseline_mib=command.baseline_mib, deadline_s=command.deadline_s
            )
            return {"report": messages.dump(result)}
        if (command.kind == PAIR) != (command.meeting is not None):
            raise ValueError("a link check needs a meeting, and no other kind can have one")
        report = driver.check_device(
            command.uuid,
            command.level,
            baseline=command.baseline or None,
            node_median=command.node_median or None,
            baseline_of=command.baseline_of,
            peers=command.peers,
            meeting=command.meeting,
            joint=command.kind == JOINT,
            deadline_s=command.deadline_s,
            on_progress=on_progress,
        )
        return {"report": report.to_dict()}
    except Exception as error:
        return {"failure": failure_of(error)}


def _repartition(driver: Driver, command: CheckCommand) -> dict[str, Any]:
    if command.change is None or command.change.parent_uuid != command.uuid:
        raise ValueError("a MIG layout change must be for the GPU of its command")
    try:
        outcome = Repartitioned(created=driver.repartition_device(command.change))
    except UncleanDevices as problem:
        outcome = Repartitioned(unclean=problem.devices, text=problem.message)
    return {"report": messages.dump(outcome)}


class _ProgressSender:
    """Sends progress at most once per second; losing a message is harmless."""

    def __init__(self, command: CheckCommand) -> None:
        self._command = command
        self._last = Progress("prepare")
        self._sent_at = float("-inf")
        self._lock = threading.Lock()

    def __call__(self, progress: Progress) -> None:
        with self._lock:
            self._last = progress
            now = time.monotonic()
            if now - self._sent_at < PROGRESS_EVERY_S:
                return
            self._sent_at = now
        self._send(progress)

    def alive(self) -> None:
        """Repeat the last progress unless some was just sent."""
        with self._lock:
            quiet = time.monotonic() - self._sent_at >= ALIVE_EVERY_S - 1
            if quiet:
                self._sent_at = time.monotonic()
        if quiet:
            self._send(self._last)

    def _send(self, progress: Progress) -> None:
        try:
            app.send_task(
                "control.gpu_check_progress",
                kwargs={
                    "run": self._command.run,
                    "lease": self._command.lease,
                    "progress": asdict(progress),
                },
                queue=CONTROL_QUEUE,
                expires=60,
            )
        except Exception as error:
            log.debug("could not send progress: %s", error)


def _answer(command: CheckCommand, **outcome: Any) -> None:
    answer = CheckAnswer(
        kind=command.kind, run=command.run, lease=command.lease, uuid=command.uuid, **outcome
    )
    body = {"answer": messages.dump(answer)}
    problem: Exception | None = None
    for wait_s in TRIES_S:
        if wait_s:
            time.sleep(wait_s)
        try:
            app.send_task("control.apply_gpu_check", kwargs=body, queue=CONTROL_QUEUE)
        except Exception as error:
            problem = error
            if not _may_wait():
                raise
        else:
            return
    log.error("could not send result of the %s of %s: %s", command.kind, command.uuid, problem)


def _may_wait() -> bool:
    """Return whether this thread may wait: a worker's main thread has other work."""
    return threading.current_thread() is not threading.main_thread()


# --- one run at a time on a device ------------------------------------------------------------------


@contextmanager
def _device(command: CheckCommand) -> Iterator[bool]:
    """Lock the device against other runs on this machine; yield whether this run should proceed.

    Waits until the command expires. A command that is redelivered because the worker acknowledged it late
    runs once.
    """
    folder = lock_folder()
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    path = folder / re.sub(r"[^A-Za-z0-9-]", "_", command.uuid)[:100]
    with path.open("a+") as file:
        proceed = _lock(file.fileno(), until=lambda: time.time() > command.expires_at)
        if proceed:
            file.seek(0)
            proceed = file.read() != command.lease
        if proceed:
            file.truncate(0)
            file.write(command.lease)
            file.flush()
        else:
            log.info("skipped %s of %s: already running or done", command.kind, command.uuid)
        # The kernel releases the lock when the file is closed or the process dies.
        yield proceed


def _lock(file: int, *, until: Callable[[], bool]) -> bool:
    while True:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if until():
                return False
            time.sleep(LOCK_POLL_INTERVAL_S)
        else:
            return True
