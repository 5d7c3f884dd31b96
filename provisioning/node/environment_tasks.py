"""Building and removing software environments on the node plane: long-running work in the background.

A task only starts a build, which is a thread of the worker's process (as in `gpu_tasks`). Its processes end
with that thread. If a worker dies, its build dies too, and the control plane, hearing nothing, sends the
command again. Remains of a killed build are removed when the worker starts, and before the next build.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from dataclasses import replace
from typing import Any, cast

from celery.signals import worker_ready

from provisioning import messages
from provisioning.celery_config import CONTROL_QUEUE
from provisioning.drivers.local import cgroups
from provisioning.drivers.local.driver import LocalDriver
from provisioning.environment_builds.build import Build, BuildMachine
from provisioning.environment_builds.failures import BuildError
from provisioning.environment_messages import (
    MAX_LOG,
    BuildFailure,
    BuildStage,
    EnvironmentBuild,
    EnvironmentBuilt,
    EnvironmentCancel,
    EnvironmentProgress,
    EnvironmentRemoval,
    OwnPackagesRequest,
    SourceKind,
)
from provisioning.environments.folders import OLDEST, VARIABLE, digest_of_folder
from provisioning.environments.store import EnvironmentStamp, Store
from provisioning.errors import BackendUnavailable
from provisioning.node.homes import homes_of
from provisioning.node.local_settings import LOCAL, driver_for
from provisioning.node.tasks import failure_of, reply, require_reply_key
from provisioning.node.worker import app
from provisioning.types import PoolConfig

log = logging.getLogger(__name__)

PROGRESS_EVERY_S = 1.0
ALIVE_EVERY_S = 5.0
SLACK_S = 60.0
"""Extra time after the deadline for a build to end its processes."""
TRIES_S = (0.0, 1.0, 2.0, 5.0, 10.0, 20.0)
"""Retries: a result of minutes of work is not lost because the broker is briefly unavailable."""
MAX_WHOLE_LOG = 1 << 20


@app.task(name="node.environment_build")  # type: ignore[untyped-decorator]
def environment_build(command: dict[str, Any]) -> None:
    """Start a build; its result is sent when it has ended."""
    begin(messages.load(command, EnvironmentBuild))


@app.task(name="node.environment_cancel")  # type: ignore[untyped-decorator]
def environment_cancel(command: dict[str, Any]) -> None:
    """Cancel a build in whichever process of the worker it runs."""
    order = messages.load(command, EnvironmentCancel)
    store().cancel(_key(order.build, order.lease))


@app.task(name="node.environment_remove")  # type: ignore[untyped-decorator]
def environment_remove(command: dict[str, Any]) -> None:
    """Remove an environment that is not in use, in a thread. The inventory reports whether it is gone."""
    digest = messages.load(command, EnvironmentRemoval).digest
    if digest:
        threading.Thread(target=_remove, args=(digest,), name="environment-removal", daemon=True).start()


@app.task(name="node.read_overlay")  # type: ignore[untyped-decorator]
def read_overlay(of: dict[str, Any], reply_key: str, pool: dict[str, Any] | None = None) -> None:
    """Answer, as `node.read_logs` does, with a user's own packages.

    The answer is `{"packages": ["name==version", …], "python": "3.12"}` or `{"error": text}`. `pool` locates
    the homes, if not in this node's own setting.
    """
    require_reply_key(reply_key)
    answer: dict[str, Any]
    try:
        driver = local_driver() if pool is None else driver_for(messages.load(pool, PoolConfig))
        homes = homes_of(driver)
        if homes is None:
            raise BackendUnavailable("This pool does not store homes on its machines.")
        packages_of = messages.load(of, OwnPackagesRequest)
        answer = {"packages": homes.own_packages(packages_of), "python": homes.python_of(packages_of)}
    except Exception as error:
        answer = {"error": failure_of(error).message}
    reply(reply_key, answer)


def begin(command: EnvironmentBuild) -> threading.Thread | None:
    """Start a build in a new thread; return None if the command has expired."""
    if time.time() > command.expires_at:
        log.info("skipped build %s: the command had expired", command.build)
        return None
    thread = threading.Thread(target=_run, args=(command,), name="environment-build", daemon=True)
    thread.start()
    return thread


def local_driver() -> LocalDriver:
    """Return this node's own driver, with only this node's settings."""
    return cast(LocalDriver, driver_for(PoolConfig(LOCAL, LOCAL)))


def store() -> Store:
    """Return this node's environments."""
    return local_driver().environments


def _run(command: EnvironmentBuild) -> None:
    """Execute one build. Sends nothing if the same build is running or was done."""
    try:
        with store().request(_key(command.build, command.lease)) as acquired:
            if acquired:
                _watch(command)
            else:
                log.info("skipped build %s: already running or done", command.build)
    except Exception:
        log.exception("could not start build %s", command.build)
        _answer(EnvironmentBuilt(command.build, command.lease, failure=_unforeseen_error().failure))


def _watch(command: EnvironmentBuild) -> None:
    """Wait for the build with a separate time limit, sending progress meanwhile."""
    progress = BuildProgress(command)
    answers: list[EnvironmentBuilt] = []
    worker = threading.Thread(
        target=lambda: answers.append(_build(command, progress)), name="environment-work", daemon=True
    )
    worker.start()
    until = time.monotonic() + command.deadline_s + SLACK_S
    while worker.is_alive() and time.monotonic() < until:
        worker.join(PROGRESS_EVERY_S)
        progress.send()
    progress.send(last=True)
    if not answers:
        text = (
            "The build exceeded its time limit and could not be stopped. Ask an operator to check the node."
        )
        error = BuildError(BuildFailure.TIMED_OUT, text)
        answers.append(EnvironmentBuilt(command.build, command.lease, failure=error.failure))
    offset, log = progress.tail()
    _answer(replace(answers[0], log_offset=offset, log=log))


def _build(command: EnvironmentBuild, progress: BuildProgress) -> EnvironmentBuilt:
    """Return the answer for every outcome, including unexpected errors."""
    key = _key(command.build, command.lease)
    try:
        driver = local_driver()
        if command.source_kind is SourceKind.FOLDER:
            return _check_folder(command, driver.environments, progress)
        machine = BuildMachine(driver.sandbox(), cgroups.detect(driver.instance), driver.base)
        build = Build(
            command,
            driver.environments,
            machine,
            report=progress.report_stage,
            write=progress.write,
            cancelled=lambda: driver.environments.is_cancelled(key),
        )
        return build_result(command, build.run())
    except BuildError as error:
        problem = error
        progress.write(f"{error.code.value}: {error.message}")
    except Exception as error:
        log.exception("unexpected error in a build")
        problem = _unforeseen_error(type(error).__name__)
    return EnvironmentBuilt(
        command.build, command.lease, failure=problem.failure, failed_line=problem.failed_line
    )


def _check_folder(command: EnvironmentBuild, store: Store, progress: BuildProgress) -> EnvironmentBuilt:
    """Return the answer for an existing folder, which is only read. Raises `BuildError`."""
    path = command.source.strip()
    progress.report_stage(BuildStage.CHECKING, 0, 0)
    stamp = store.find(digest_of_folder(path))
    if stamp is None or not stamp.folder:
        raise BuildError(
            BuildFailure.NO_SUCH_FOLDER,
            f"{path} is not an environment that this node can use. Add the folder to {VARIABLE} on the node; "
            f"it needs Python {OLDEST[0]}.{OLDEST[1]} or newer.",
            source_line=1,
        )
    progress.write(f"{path}: Python {stamp.python_version}, {len(stamp.packages)} packages.")
    if "jupyter-lab" not in stamp.programs:
        progress.write(
            "JupyterLab is not installed in this environment, so templates cannot start JupyterLab."
        )
    if "ipykernel" not in {package.name.lower() for package in stamp.packages}:
        progress.write("ipykernel is not installed in this environment, so notebooks have no kernel.")
    return build_result(command, stamp)


def build_result(command: EnvironmentBuild, stamp: EnvironmentStamp) -> EnvironmentBuilt:
    """Return the answer for a complete environment."""
    return EnvironmentBuilt(
        build=command.build,
        lease=command.lease,
        digest=stamp.digest,
        lock=stamp.lock,
        packages=stamp.packages,
        size_mib=stamp.size_mib,
        programs=stamp.programs,
        python_version=stamp.python_version,
        cuda=stamp.cuda,
    )


class BuildProgress:
    """Stage and log of a build, sent at most once per second and at least every 5 seconds."""

    def __init__(self, command: EnvironmentBuild) -> None:
        self._command = command
        self._lock = threading.Lock()
        self._place: tuple[BuildStage, int, int] = (BuildStage.WAITING, 0, 0)
        self._sent_place: tuple[BuildStage, int, int] | None = None
        self._sent_at = float("-inf")
        self._text = self._tail = ""
        self._written = self._sent = 0

    def report_stage(self, stage: BuildStage, done: int, total: int) -> None:
        self._place = (stage, done, total)

    def write(self, line: str) -> None:
        """Append a line to the log, up to its limit."""
        with self._lock:
            if self._written < MAX_WHOLE_LOG:
                self._text += line + "\n"
                self._tail = (self._tail + line + "\n")[-MAX_LOG:]
                self._written += len(line) + 1

    def tail(self) -> tuple[int, str]:
        """Return the offset of the end of the log, and its text."""
        with self._lock:
            return self._written - len(self._tail), self._tail

    def send(self, *, last: bool = False) -> None:
        """Send new output, or a heartbeat if one is due. With `last`, send everything that is left."""
        while True:
            with self._lock:
                chunk = self._text[:MAX_LOG]
                place, offset = self._place, self._sent
                quiet = time.monotonic() - self._sent_at < ALIVE_EVERY_S - 1
                if not chunk and (last or (quiet and place == self._sent_place)):
                    return
            if not self._send_progress(place, offset, chunk):
                return  # it is sent with the next output
            with self._lock:
                self._text = self._text[len(chunk) :]
                self._sent += len(chunk)
                self._sent_place, self._sent_at = place, time.monotonic()
            if not last:
                return

    def _send_progress(self, place: tuple[BuildStage, int, int], offset: int, chunk: str) -> bool:
        stage, done, total = place
        progress = EnvironmentProgress(
            self._command.build, self._command.lease, stage, done, total, offset, chunk
        )
        try:
            app.send_task(
                "control.environment_progress",
                kwargs={"progress": messages.dump(progress)},
                queue=CONTROL_QUEUE,
                expires=300,
            )
        except Exception as error:
            log.debug("could not send progress: %s", error)
            return False
        return True


def _answer(answer: EnvironmentBuilt) -> None:
    body = {"answer": messages.dump(answer)}
    problem: Exception | None = None
    for wait_s in TRIES_S:
        if wait_s:
            time.sleep(wait_s)
        try:
            app.send_task("control.apply_environment_build", kwargs=body, queue=CONTROL_QUEUE)
        except Exception as error:
            problem = error
        else:
            return
    log.error("could not send result of build %s: %s", answer.build, problem)


def _remove(digest: str) -> None:
    try:
        driver = local_driver()
        if driver.remove_environment(digest):
            with driver.environments.build_lock() as acquired:
                if acquired:
                    driver.environments.prune_cache()
        else:
            log.info("kept environment %s: in use", digest)
    except Exception:
        log.exception("could not remove environment %s", digest)


def sweep() -> None:
    """Remove remains of a killed build unless a build is running. Never raises."""
    try:
        environments = store()
        if environments.folder.is_dir():
            with environments.build_lock() as acquired:
                if acquired:
                    environments.sweep()
    except Exception as error:
        log.warning("could not remove leftovers of builds: %s", error)


@worker_ready.connect  # type: ignore[untyped-decorator]
def _begin(**_: object) -> None:
    threading.Thread(target=sweep, name="environment-sweep", daemon=True).start()


def _key(build: str, lease: str) -> str:
    return f"{build}-{lease}"


def _unforeseen_error(kind: str = "") -> BuildError:
    return BuildError(
        BuildFailure.UNFORESEEN,
        f"The node had an unexpected error{f' ({kind})' if kind else ''}. Ask an operator to check the log "
        f"of the node worker on {os.uname().nodename}.",
    )
