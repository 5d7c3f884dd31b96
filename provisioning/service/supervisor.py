"""Supervises services: starts them in order, restarts those that end, and stops them in reverse order.

docs/adr/0002-supervisor.md explains why this is not a library.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path

from provisioning.service import logfiles
from provisioning.service.environ import MARKER
from provisioning.service.files import write_file
from provisioning.service.program import Program

log = logging.getLogger(__name__)

LAUNCHER = Path(__file__).with_name("launcher.py")
PROBE_INTERVAL_S = 0.04
FIRST_DELAY_S = 0.2
LONGEST_DELAY_S = 15.0
STEADY_AFTER_S = 20.0
REPAIR_AFTER_FAILURES = 3
ROTATE_INTERVAL_S = 10.0


class ServiceState(StrEnum):
    WAITING = "waiting"
    STARTING = "starting"
    RUNNING = "running"
    RESTARTING = "restarting"
    STOPPING = "stopping"
    STOPPED = "stopped"


@dataclass(slots=True)
class Service:
    """A program and its state."""

    program: Program
    state: ServiceState = ServiceState.WAITING
    process: subprocess.Popen[bytes] | None = None
    started_at: float = 0.0
    restarts: int = 0
    failures: int = 0
    detail: str = ""
    ready: asyncio.Event = field(default_factory=asyncio.Event)


class Supervisor:
    """Runs programs until stopped.

    `hidden` are secrets to redact in log excerpts. `oom_score` applies to all services; None: that of this
    process. `changed` is called after every change of a service, `announce` with lines for the operator.
    Neither may block. All methods belong to the event loop's thread, which must be the main thread: services
    end with the thread that started them.
    """

    def __init__(
        self,
        programs: Iterable[Program],
        *,
        instance_id: str,
        logs_dir: Path,
        hidden: Iterable[str] = (),
        oom_score: int | None = None,
        changed: Callable[[], None] = lambda: None,
        announce: Callable[[str], None] = lambda _: None,
    ) -> None:
        self.services = {program.name: Service(program) for program in programs}
        self._instance_id = instance_id
        self._logs_dir = logs_dir
        self._hidden = tuple(hidden)
        self._oom_score = "-" if oom_score is None else str(oom_score)
        self._changed = changed
        self._announce = announce
        self._keepers: dict[str, asyncio.Task[None]] = {}
        self._rotator: asyncio.Task[None] | None = None
        self._stopping: set[str] = set()

    def start(self) -> None:
        """Start everything in the background; `wait_ready` waits for it."""
        for name, service in self.services.items():
            self._keepers[name] = asyncio.create_task(self._keep_running(service), name=f"keep {name}")
        self._rotator = asyncio.create_task(self._rotate_logs(), name="rotate logs")

    async def wait_ready(self) -> None:
        """Wait until every service has answered once since its latest start."""
        for service in self.services.values():
            await service.ready.wait()

    async def stop(self) -> None:
        """Stop everything: each service after those that depend on it, with its program's grace period."""
        if self._rotator is not None:
            self._rotator.cancel()
        stopped = {name: asyncio.Event() for name in self.services}

        async def end(name: str) -> None:
            for other, service in self.services.items():
                if name in service.program.after:
                    await stopped[other].wait()
            await self._stop(self.services[name])
            stopped[name].set()

        await asyncio.gather(*(end(name) for name in self.services))

    async def _keep_running(self, service: Service) -> None:
        name = service.program.name
        for before in service.program.after:
            await self.services[before].ready.wait()
        while name not in self._stopping:
            log_size = self._spawn(service)
            code = await self._run_once(service) if service.process is not None else None
            if name in self._stopping:
                return
            ran_s = time.time() - service.started_at
            service.failures = 0 if ran_s >= STEADY_AFTER_S else service.failures + 1
            if code is not None:
                service.detail = _exit_text(code)
                # A process killed from outside had no time to log a reason.
                log_line = self.last_message(name, since=log_size) if code >= 0 else ""
                service.detail += f"; last log line: {log_line.rstrip('.')}" if log_line else ""
            repaired = self._repair(service)
            delay_s = min(FIRST_DELAY_S * 2 ** max(service.failures - 1, 0), LONGEST_DELAY_S)
            service.restarts += 1
            self._set_state(service, ServiceState.RESTARTING)
            self._announce(f"{name} {service.detail}. {repaired}Restarting in {delay_s:.1f} s.")
            await asyncio.sleep(delay_s)

    def _spawn(self, service: Service) -> int:
        """Start the process and return the previous size of its log. On failure `process` stays None."""
        program = service.program
        service.ready.clear()
        service.started_at = time.time()
        path = self._log_path(program.name)
        log_size = 0
        try:
            with open(path, "ab", opener=_open_private) as output:
                log_size = output.tell()
                service.process = subprocess.Popen(
                    (
                        sys.executable, "-I", "-S", str(LAUNCHER), str(os.getpid()),
                        str(int(signal.SIGTERM)), self._oom_score, program.confinement or "-",
                        *program.argv,
                    ),
                    env={**program.environ, MARKER: f"{self._instance_id}:{program.name}"},
                    cwd=program.folder,
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                    umask=program.umask,
                )  # fmt: skip
        except OSError as error:
            service.process = None
            service.detail = f"could not be started: {error.strerror or error}"
            return log_size
        self._set_state(service, ServiceState.STARTING)
        return log_size

    async def _run_once(self, service: Service) -> int:
        """Wait until the process has ended; set `ready` when it answers. Return its exit code."""
        assert service.process is not None
        probing = asyncio.create_task(self._probe(service))
        try:
            return await _wait_until_ended(service.process)
        finally:
            probing.cancel()
            service.ready.clear()
            service.process = None

    async def _probe(self, service: Service) -> None:
        while not await asyncio.to_thread(self._is_answering, service):
            await asyncio.sleep(PROBE_INTERVAL_S)
        if service.state is ServiceState.STARTING:
            service.detail = ""
            service.ready.set()
            self._set_state(service, ServiceState.RUNNING)
            if service.restarts:
                self._announce(f"{service.program.name} is running again.")

    @staticmethod
    def _is_answering(service: Service) -> bool:
        try:
            return service.program.answers(service.started_at)
        except Exception:
            # A failed probe does not count as an answer; it is repeated.
            log.exception("probe of %s failed", service.program.name)
            return False

    def _repair(self, service: Service) -> str:
        repair = service.program.repair
        if repair is None or service.failures == 0 or service.failures % REPAIR_AFTER_FAILURES:
            return ""
        try:
            return repair() + " "
        except OSError as error:
            log.warning("repair of %s failed: %s", service.program.name, error)
            return ""

    async def _stop(self, service: Service) -> None:
        name = service.program.name
        self._stopping.add(name)
        keeper = self._keepers.get(name)
        process = service.process
        if process is None:
            if keeper is not None:
                keeper.cancel()
        else:
            self._set_state(service, ServiceState.STOPPING)
            _signal(process, service.program.stop_signal)
            assert keeper is not None
            _, late = await asyncio.wait([keeper], timeout=service.program.stop_timeout_s)
            if late:
                _kill_session(process)
                await asyncio.wait([keeper], timeout=5.0)
        self._set_state(service, ServiceState.STOPPED)

    async def _rotate_logs(self) -> None:
        while True:
            await asyncio.sleep(ROTATE_INTERVAL_S)
            for name in self.services:
                try:
                    await asyncio.to_thread(logfiles.rotate, self._log_path(name))
                except OSError as error:
                    log.warning("could not rotate log of %s: %s", name, error)

    def last_message(self, name: str, *, since: int = 0) -> str:
        """Return the most relevant of the last lines of a service's log, without secrets."""
        line = logfiles.last_line(self._log_path(name), since=since)
        for secret in self._hidden:
            line = line.replace(secret, "…")
        return line

    def _log_path(self, name: str) -> Path:
        return self._logs_dir / f"{name}.log"

    def _set_state(self, service: Service, state: ServiceState) -> None:
        service.state = state
        self._changed()


def _open_private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)


async def _wait_until_ended(process: subprocess.Popen[bytes]) -> int:
    """Return the exit code after the process has ended and its remaining session is killed."""
    loop = asyncio.get_running_loop()
    try:
        handle = os.pidfd_open(process.pid)
    except OSError:
        # Out of file descriptors: wait in a thread, which kills the group slightly later.
        code = await asyncio.to_thread(process.wait)
        _kill_session(process)
        return code
    ended = asyncio.Event()
    loop.add_reader(handle, ended.set)
    try:
        await ended.wait()
    finally:
        loop.remove_reader(handle)
        os.close(handle)
    # Before reaping: while the process is a zombie, its ID cannot be reused for another session.
    _kill_session(process)
    return process.wait()


def _kill_session(process: subprocess.Popen[bytes]) -> None:
    """Kill the process group, so pool processes of a killed worker do not continue beside the new worker.

    Workspaces have their own sessions and groups and are not affected.
    """
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        return
    except PermissionError:
        log.debug("group %s has only ended processes", process.pid)


def _signal(process: subprocess.Popen[bytes], number: signal.Signals) -> None:
    try:
        process.send_signal(number)
    except ProcessLookupError:
        return


def _exit_text(code: int) -> str:
    if code < 0:
        try:
            return f"was killed by {signal.Signals(-code).name}"
        except ValueError:
            return f"was killed by signal {-code}"
    return f"ended with exit code {code}"


def report(services: Iterable[Service]) -> list[dict[str, object]]:
    """Return the services as plain values for the state file."""
    return [
        {
            "name": service.program.name,
            "state": str(service.state),
            "pid": service.process.pid if service.process is not None else None,
            "started_at": service.started_at or None,
            "port": service.program.port,
            "restarts": service.restarts,
            "detail": service.detail,
        }
        for service in services
    ]


def write_state(path: Path, state: dict[str, object]) -> None:
    """Write the state for `status` and `down`; a failure, such as a full disk, never affects a service."""
    try:
        write_file(path, json.dumps(state, indent=1) + "\n")
    except OSError as error:
        log.warning("could not write state: %s", error)
