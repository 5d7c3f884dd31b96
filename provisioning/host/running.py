"""`berth node run`: keeps the node's worker and its gateway running until stopped."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from provisioning.host import gateway_account, membership, programs
from provisioning.host.folder import NodeFolder
from provisioning.host.membership import Membership
from provisioning.host.membership_watch import MembershipWatch, graces
from provisioning.host.notify import notify
from provisioning.host.rotation import Renewal
from provisioning.service import home, instance_lock, oom, processes
from provisioning.service.console import Console, Problem
from provisioning.service.door_account import AccountUnusable, DoorAccount
from provisioning.service.supervisor import Supervisor, report, write_state

WATCH_EVERY_S = 1.0


class NodeRun:
    """One run of a node's services."""

    def __init__(self, folder: NodeFolder, environ: Mapping[str, str], console: Console) -> None:
        self._folder = folder
        self._environ = environ
        self._console = console
        self._supervisor: Supervisor | None = None
        self._identity: Membership | None = None
        self._account: DoorAccount | None = None
        self._phase = "starting"
        self._stop = asyncio.Event()

    def run(self) -> int:
        """Run until stopped; return the exit code. Raises `Problem`."""
        home.check_platform()
        identity = membership.load(self._folder)
        membership.check_user(identity)
        membership.check_machine(identity)
        prepare(self._folder)
        with instance_lock.hold(self._folder.run, refusal=self._runs_already):
            leftovers = processes.leftovers(self._folder.id)
            processes.end(leftovers, self._folder.id)
            check_port(identity.gateway_port)
            caddy = programs.find_caddy()
            self._console.say(f"Berth node {identity.name} · {self._folder.home}")
            self._choose_account(identity, caddy)
            try:
                return asyncio.run(self._serve(identity, caddy))
            finally:
                instance_lock.state_path(self._folder.run).unlink(missing_ok=True)

    def _runs_already(self, _: dict[str, Any]) -> Problem:
        return Problem(f"This node is already running from {self._folder.home}.", "See `berth node status`.")

    def _choose_account(self, identity: Membership, caddy: Path) -> None:
        """Choose the gateway's account; fall back to the node's own user."""
        settings = {**self._environ, **programs.settings(self._folder)}
        try:
            programs.write_gateway(self._folder, identity)
            self._account = gateway_account.choose(self._folder, settings, caddy, identity.gateway_port)
        except (AccountUnusable, OSError) as error:
            off = f"{gateway_account.ROOTS}=0 in node.env keeps root."
            self._print_status(f"The gateway runs as root: {error}. {off}")

    async def _serve(self, identity: Membership, caddy: Path) -> int:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, self._stop.set)
        renewal = Renewal(self._folder, self._print_status)
        limits = graces({**self._environ, **programs.settings(self._folder)})
        watch = MembershipWatch(self._folder, self._environ, limits, self._print_status)
        renewal.start()
        watch.start()
        notify("READY=1")
        oom_score = oom.spare_supervisor()
        while not self._stop.is_set():
            self._identity = identity
            self._supervisor = Supervisor(
                programs.programs(self._folder, identity, self._environ, caddy, self._account),
                instance_id=self._folder.id,
                logs_dir=self._folder.logs,
                hidden=(identity.answer.redis.password, identity.signing_key),
                oom_score=oom_score,
                changed=self._publish,
                announce=self._print_status,
            )
            self._supervisor.start()
            ready = asyncio.create_task(self._announce())
            new_identity = await self._until_stopped_or_changed()
            ready.cancel()
            if new_identity is None:
                break
            self._print_status("This node has other keys. Its services restart; workspaces continue.")
            await self._supervisor.stop()
            identity = new_identity
        notify("STOPPING=1")
        renewal.stop()
        watch.stop()
        self._phase = "stopping"
        assert self._supervisor is not None
        await self._supervisor.stop()
        self._console.say("The services are stopped. Workspaces keep running; the next start adopts them.")
        return 0

    async def _until_stopped_or_changed(self) -> Membership | None:
        """Return the new identity after a key rotation; None when stopped."""
        last_stamp = self._stamp()
        while True:
            try:
                async with asyncio.timeout(WATCH_EVERY_S):
                    await self._stop.wait()
                return None
            except TimeoutError:
                stamp = self._stamp()
            if stamp == last_stamp:
                continue
            last_stamp = stamp
            try:
                return await asyncio.to_thread(membership.load, self._folder)
            except Problem as problem:
                # The node has left, or the disk has a problem: either this process is stopped, or it is
                # repaired.
                self._print_status(str(problem))

    def _stamp(self) -> tuple[int, int] | None:
        try:
            stat = self._folder.state_file.stat()
        except OSError:
            return None
        return stat.st_ino, stat.st_mtime_ns

    async def _announce(self) -> None:
        assert self._supervisor is not None and self._identity is not None
        await self._supervisor.wait_ready()
        self._phase = "running"
        self._publish()
        answer = self._identity.answer
        self._print_status(f"Connected: node {answer.node} of pool {answer.pool}, {answer.portal_url}")

    def _print_status(self, line: str) -> None:
        self._console.say(f"  · {line}")
        notify(f"STATUS={line}")

    def _publish(self) -> None:
        services = report(self._supervisor.services.values()) if self._supervisor is not None else []
        write_state(
            instance_lock.state_path(self._folder.run),
            {
                "pid": os.getpid(),
                "pid_started_at": processes.started_at(os.getpid()),
                "boot_id": processes.boot_id(),
                "phase": self._phase,
                "services": services,
            },
        )


def prepare(folder: NodeFolder) -> None:
    """Create the node's folders. Raises `Problem`."""
    home.prepare(
        folder.home,
        private=("node", "run", "logs"),
        # A running gateway needs access to these.
        others=("local", "environments"),
        command="berth node …",
    )


def check_port(port: int) -> None:
    """Raise `Problem` if the gateway cannot listen on the port."""
    try:
        free = processes.port_is_free("0.0.0.0", port)  # noqa: S104
    except PermissionError as error:
        raise Problem(
            f"This user cannot listen on port {port}.", "Choose one above 1023 with --gateway-port."
        ) from error
    if not free:
        raise Problem(
            f"Port {port} of the node's gateway is used by {processes.holder_of(port)}.",
            "Stop that program, or join with another --gateway-port.",
        )
