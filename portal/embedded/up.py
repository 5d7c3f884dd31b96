"""The one-command start: checks, prepares, starts, supervises and gracefully stops the services."""

from __future__ import annotations

import asyncio
import compileall
import contextlib
import logging
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from typing import Any

from portal.common import passes
from portal.embedded import account, configs, full_disk, ports, preflight
from portal.embedded.doors import Doors
from portal.embedded.environment import Instance, ensure_secrets
from portal.embedded.programs import Program, programs
from provisioning.errors import ProvisioningError
from provisioning.registry import driver_for
from provisioning.service import database_place, home, instance_lock, oom, processes
from provisioning.service.console import LABEL_WIDTH, Console, Problem
from provisioning.service.environ import ROOT
from provisioning.service.notebook import Builder
from provisioning.service.supervisor import Supervisor, report, write_state
from provisioning.types import PoolConfig

SLOW_AFTER_S = 30.0
STOP_WORKSPACES_LIMIT_S = 45.0
_KEEP_SIGNALS = (signal.SIGHUP, signal.SIGUSR1)


class Up:
    """One run of `up`."""

    def __init__(
        self, instance: Instance, environ: Mapping[str, str], console: Console, *, keep_workspaces: bool
    ) -> None:
        self._instance = instance
        self._environ = environ
        self._console = console
        self._keep_workspaces = keep_workspaces
        self._phase = "starting"
        self._began = time.monotonic()
        self._supervisor: Supervisor | None = None
        self._stop = asyncio.Event()
        self._hurry = asyncio.Event()
        self._ready = False
        self._secrets: dict[str, str] = {}
        self._account: account.Account | None = None

    def run(self) -> int:
        """Run until stopped; return the exit code."""
        instance, console = self._instance, self._console
        console.say(f"Berth · {instance.home}")
        home.check_platform()
        preflight.prepare_home(instance.home)
        with instance_lock.hold(instance.run_dir, refusal=self._runs_already):
            self._publish()
            try:
                self._check()
                binaries = preflight.find_binaries()
                with ports.hold_ports(instance):
                    self._prepare(binaries)
                ports.check(instance)
                return asyncio.run(self._serve(self._programs(binaries)))
            finally:
                self._end_passes()
                instance_lock.state_path(instance.run_dir).unlink(missing_ok=True)

    def _end_passes(self) -> None:
        """Delete all passes, because no process uses them now."""
        folder, secret = self._instance.passes_dir, self._secrets.get("gateway_secret")
        if folder is not None and secret:
            with contextlib.suppress(OSError):
                account.delete_passes(folder, passes.key_of(secret))

    def _runs_already(self, state: dict[str, Any]) -> Problem:
        url = state.get("url") or self._instance.public_url
        return Problem(
            f"Berth already runs from {self._instance.home}: {url}",
            "Check it with `make status`, stop it with `make down`.",
        )

    def _check(self) -> None:
        with self._console.step("This machine") as step:
            left = processes.leftovers(self._instance.id)
            if left:
                step.update(f"ending {len(left)} leftover processes")
                processes.end(left, self._instance.id)
            ports.check(self._instance)
            preflight.check_sign_in_providers(self._environ)
            version = ".".join(map(str, sys.version_info[:3]))
            free_gib = home.free_disk_mib(self._instance.home) // 1024
            ended = f", ended {len(left)} leftover processes" if left else ""
            step.result = f"Python {version}, {free_gib} GiB free{ended}"
        self._console.say(preflight.gpus())

    def _prepare(self, binaries: preflight.Binaries) -> None:
        builder = Builder(self._instance.environments_dir, self._instance.logs_dir, self._environ)
        builder.start()
        try:
            self._secrets, created = ensure_secrets(self._instance.home)
            configs.write(self._instance, self._secrets)
            database_place.make_folder(self._instance.home)
            self._account = self._choose_account(binaries)
        except OSError as error:
            raise Problem(
                f"{error.filename or self._instance.home} cannot be written ({error.strerror}).",
                "Make it writable for this user, or free some space.",
            ) from error
        if created:
            self._console.say("  ✓ Secrets                created; only this user can read them")
        done = subprocess.run(
            [sys.executable, "-m", "portal.embedded.prepare"],
            cwd=ROOT,
            env=self._instance.portal_environ(self._environ),
            umask=0o077,
        )
        if done.returncode:
            raise Problem("The database could not be prepared.", "See the line above.")
        if self._account is not None:
            self._account.share()
        with self._console.step("Notebook environment") as step:
            step.result = builder.wait(step.update)

    def _choose_account(self, binaries: preflight.Binaries) -> account.Account | None:
        """Return the account of the services and prepare its files; None for the current user."""
        try:
            chosen = account.choose(
                self._instance,
                self._environ,
                redis_server=binaries.redis_server,
                caddy=binaries.caddy,
            )
        except account.AccountUnusable as why:
            chosen = None
            self._console.say(
                f"  ! {'Services':<{LABEL_WIDTH}} run as root: {why}. Set BERTH_SERVICES_UID=0 to keep root."
            )
        if chosen is None:
            account.return_ownership(
                self._instance, Doors.for_instance(self._instance, self._environ, binaries.caddy)
            )
            return None
        chosen.grant_ownership()
        chosen.share()
        # The account cannot write bytecode, so compile now.
        for package in () if sys.dont_write_bytecode else ("portal", "provisioning"):
            compileall.compile_dir(ROOT / package, quiet=2)
        return chosen

    def _programs(self, binaries: preflight.Binaries) -> tuple[Program, ...]:
        return programs(
            self._instance,
            self._environ,
            secrets=self._secrets,
            redis_server=binaries.redis_server,
            caddy=binaries.caddy,
            repair_redis=self._set_redis_data_aside,
            account=self._account,
        )

    def _set_redis_data_aside(self) -> str:
        """Move Redis's data aside if it is damaged, for example after a full disk or a power failure."""
        data = self._instance.redis_dir / "appendonlydir"
        if not data.exists():
            return ""
        unreadable_dir = self._instance.redis_dir / "appendonlydir.unreadable"
        shutil.rmtree(unreadable_dir, ignore_errors=True)
        data.rename(unreadable_dir)
        return f"Its data was moved to {unreadable_dir} and is not needed."

    async def _serve(self, programs: tuple[Program, ...]) -> int:
        console, loop = self._console, asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM, *_KEEP_SIGNALS):
            # Under nohup, a hang-up is ignored. Keep it that way.
            if signal.getsignal(number) is not signal.SIG_IGN:
                loop.add_signal_handler(number, self._on_signal, number)
        self._supervisor = Supervisor(
            programs,
            instance_id=self._instance.id,
            logs_dir=self._instance.logs_dir,
            hidden=self._secrets.values(),
            oom_score=oom.spare_supervisor(),
            changed=self._publish,
            announce=lambda line: console.say(f"  · {line}"),
        )
        watch = self._disk_watch()
        if self._account is not None:
            # Root opens the database first and closes it last, so that SQLite's other files belong to root
            # too.
            await asyncio.to_thread(watch.keep_reserve)
        self._supervisor.start()
        ready = asyncio.create_task(self._announce())
        disk = asyncio.create_task(watch.run())
        await self._stop.wait()
        ready.cancel()
        self._phase = "stopping"
        self._publish()
        if self._ready and not self._keep_workspaces:
            await self._stop_workspaces()
        with console.step("Services") as step:
            step.update("stopping")
            await self._supervisor.stop()
            disk.cancel()
            step.result = f"stopped{self._release_host()}"
        note = " Workspaces keep running; the next start adopts them." if self._keep_workspaces else ""
        console.say(f"Berth is stopped.{note}")
        return 0

    def _release_host(self) -> str:
        """Restore the machine's state except for workspaces. Returns a note for the step's result."""
        folders = {"home": str(self._instance.home), "homes": str(self._instance.homes_dir)}
        pool = PoolConfig(slug="", driver="local", config=folders)
        try:
            left = driver_for(pool).release_host(keep_workspaces=self._keep_workspaces)
        except ProvisioningError as error:
            return f"; a home's file server may still run ({error.message})"
        except OSError as error:
            return f"; a home's file server may still run ({error.strerror})"
        return f"; {left} file servers of homes are still ending" if left else ""

    def _disk_watch(self) -> full_disk.DiskWatch:
        return full_disk.DiskWatch(
            redis_url=self._instance.redis_url("control", self._secrets["redis_control"]),
            redis_dir=self._instance.redis_dir,
            database=full_disk.database_file(self._environ, self._instance.home),
            say=lambda message: self._console.say(f"  · {message}"),
        )

    async def _announce(self) -> None:
        assert self._supervisor is not None
        services = self._supervisor.services.values()
        with self._console.step("Services") as step:
            waiting = asyncio.create_task(self._supervisor.wait_ready())
            slow_shown = False
            while not (await asyncio.wait([waiting], timeout=0.1))[0]:
                late = [service.program.name for service in services if not service.ready.is_set()]
                step.update(f"waiting for {', '.join(late)}")
                if step.elapsed_s > SLOW_AFTER_S and not slow_shown:
                    slow_shown = True
                    self._report_slow(late)
            step.result = ", ".join(service.program.name for service in services)
        self._ready = True
        self._phase = "running"
        self._publish()
        took_s = time.monotonic() - self._began
        self._console.say(f"Berth is ready: {self._instance.public_url}   ({took_s:.1f} s)")
        rest = "leaves workspaces running" if self._keep_workspaces else "stops workspaces and services"
        self._console.say(f"Ctrl-C {rest}. Logs: {self._instance.logs_dir}")

    def _report_slow(self, late: list[str]) -> None:
        for name in late:
            path = self._instance.logs_dir / f"{name}.log"
            log_end = self._supervisor.last_message(name) if self._supervisor is not None else ""
            self._console.say(f"  · {name} does not answer yet. Its log ends: {log_end} ({path})")

    def _on_signal(self, number: signal.Signals) -> None:
        if self._stop.is_set():
            self._hurry.set()
            return
        if number in _KEEP_SIGNALS:
            self._keep_workspaces = True
        self._console.say()
        self._stop.set()

    async def _stop_workspaces(self) -> None:
        """Ask the portal to stop all workspaces, and wait. A second Ctrl-C leaves them running."""
        with self._console.step("Workspaces") as step:
            step.update("stopping (Ctrl-C again leaves them running)")
            process = await asyncio.create_subprocess_exec(
                sys.executable, "-m", "portal", "workspaces", "stop",
                cwd=ROOT,
                env=self._instance.portal_environ(self._environ),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
                start_new_session=True,
            )  # fmt: skip
            finished = asyncio.create_task(process.communicate())
            hurried = asyncio.create_task(self._hurry.wait())
            done, _ = await asyncio.wait(
                [finished, hurried], timeout=STOP_WORKSPACES_LIMIT_S, return_when=asyncio.FIRST_COMPLETED
            )
            hurried.cancel()
            if finished not in done:
                process.kill()
                await finished
                step.result = "left running; the next start adopts them"
                return
            output, errors = finished.result()
            if process.returncode:
                logging.getLogger(__name__).debug("%s", errors.decode(errors="replace"))
                last = (errors.decode(errors="replace").strip().splitlines() or ["no reason given"])[-1]
                step.result = f"not stopped: {last}"
            else:
                step.result = output.decode(errors="replace").strip()

    def _publish(self) -> None:
        services = report(self._supervisor.services.values()) if self._supervisor is not None else []
        write_state(
            instance_lock.state_path(self._instance.run_dir),
            {
                "pid": os.getpid(),
                "pid_started_at": processes.started_at(os.getpid()),
                "boot_id": processes.boot_id(),
                "url": self._instance.public_url,
                "phase": self._phase,
                "services": services,
            },
        )
