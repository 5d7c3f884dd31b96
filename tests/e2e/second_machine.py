"""A second machine for tests: a network namespace with its own node."""

from __future__ import annotations

import os
import random
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from provisioning.drivers.local import network as local_network
from provisioning.drivers.local import processes as workspace_processes
from provisioning.drivers.local.state import claimed
from provisioning.host import membership
from provisioning.host.folder import NodeFolder
from provisioning.host.membership import Membership
from provisioning.service import instance_lock, processes
from provisioning.service.environ import ROOT
from tests import addresses, mounts
from tests.instance import eventually

FREE_PORT = "import socket; s = socket.socket(); s.bind(('', 0)); print(s.getsockname()[1])"
MACHINE_ID = Path("/etc/machine-id")
HOME_LIMIT_MIB = "51200"
"""Home limit of such a machine, which starts nothing for several users without a limit."""
OWN_ID = 'mount --bind "$0" /etc/machine-id && exec "$@"'


@dataclass(frozen=True, slots=True)
class Network:
    """Two addresses of a link: `here` on this machine, `there` in the namespace `name`."""

    name: str
    here: str
    there: str

    def inside(self, *argv: str) -> list[str]:
        """The command in the namespace.

        Everything else of the machine, including control groups, is shared.
        """
        return ["nsenter", f"--net=/run/netns/{self.name}", "--", *argv]


@contextmanager
def network() -> Iterator[Network]:
    """A namespace linked to this machine. Skips where it cannot be created."""
    if os.geteuid() != 0 or not shutil.which("ip") or not shutil.which("nsenter"):
        pytest.skip("network namespaces need root and the programs ip and nsenter")
    tag, subnet = f"{random.randrange(16**6):06x}", _free_subnet()
    link = Network(f"berth-{tag}", f"{subnet}.1", f"{subnet}.2")
    try:
        _ip("netns", "add", link.name)
    except subprocess.CalledProcessError as error:
        pytest.skip(f"network namespaces cannot be made here: {error.stderr.strip()}")
    there = ("-n", link.name)
    try:
        with addresses.changing():
            _ip("link", "add", f"bh{tag}", "type", "veth", "peer", "name", f"bn{tag}", "netns", link.name)
            # No IPv6, whose address the kernel would add a second later.
            _ip("link", "set", f"bh{tag}", "addrgenmode", "none")
            _ip("address", "add", f"{link.here}/30", "dev", f"bh{tag}")
            _ip("link", "set", f"bh{tag}", "up")
            _ip(*there, "link", "set", f"bn{tag}", "up")
        _ip(*there, "address", "add", f"{link.there}/30", "dev", f"bn{tag}")
        _ip(*there, "link", "set", "lo", "up")
        _ip(*there, "route", "add", "default", "via", link.here)
        yield link
    finally:
        with addresses.changing(), suppress(subprocess.CalledProcessError):
            # The kernel would remove it only some time after the namespace.
            _ip("link", "delete", f"bh{tag}")
        _ip("netns", "delete", link.name)


def _ip(*arguments: str) -> str:
    done = subprocess.run(["ip", *arguments], check=True, capture_output=True, text=True, timeout=30)
    return done.stdout


def _free_subnet() -> str:
    """The first three numbers of an unused subnet."""
    addresses = _ip("-o", "-4", "address")
    return next(
        subnet
        for number in random.sample(range(256), 256)
        if (subnet := f"10.231.{number}") + "." not in addresses
    )


class SecondMachine:
    """A machine with its own folder and network: join, run, attack, end.

    With `own_id` it has another machine ID, so several can join one portal.
    """

    def __init__(self, folder: Path, wire: Network, *, environment: Path, own_id: bool = False) -> None:
        self.wire = wire
        self.folder = NodeFolder(folder.resolve())
        variables = {
            key: value for key, value in os.environ.items() if not key.startswith(("BERTH_", "PYTEST_"))
        }
        self.environ = {**variables, "BERTH_HOME": str(folder), "BERTH_NOTEBOOK_ENV": str(environment)}
        self.log = folder.parent / "node-run.log"
        self._process: subprocess.Popen[bytes] | None = None
        free = subprocess.run(
            wire.inside(sys.executable, "-I", "-c", FREE_PORT),
            check=True,
            capture_output=True,
            text=True,
            timeout=30,
        )
        self.gateway_port = int(free.stdout)
        self._own_id: Path | None = None
        if own_id and MACHINE_ID.exists():
            # Mounts there are private to this machine.
            folder.mkdir(parents=True, exist_ok=True)
            self._own_id = folder / "machine-id"
            self._own_id.write_text(f"{random.randrange(16**32):032x}\n")

    def join(self, door: str, token: str, name: str) -> subprocess.CompletedProcess[str]:
        """Run `berth node join` there."""
        port = str(self.gateway_port)
        return self.berth(
            "join", door, "--token", token, "--name", name, "--no-service", "--gateway-port", port
        )

    def berth(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run `berth node …` there."""
        return subprocess.run(
            self._argv(*arguments), cwd=ROOT, env=self.environ, capture_output=True, text=True, timeout=120
        )

    def _argv(self, *arguments: str) -> list[str]:
        argv = [sys.executable, "-m", "portal.cli.main", "node", *arguments]
        if self._own_id is not None:
            argv = ["unshare", "--mount", "sh", "-c", OWN_ID, str(self._own_id), *argv]
        return self.wire.inside(*argv)

    def run(self) -> None:
        """Run `berth node run` until its services answer."""
        with self.log.open("ab") as output:
            self._process = subprocess.Popen(
                self._argv("run"),
                cwd=ROOT,
                env=self.environ,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )
        self.until_running()

    def until_running(self) -> None:
        def look() -> bool:
            found = self.services()
            return bool(found) and {row["state"] for row in found.values()} == {"running"}

        eventually(look, limit_s=90, what=lambda: f"{self.services()} {self.log.read_text()}")

    def services(self) -> dict[str, dict[str, Any]]:
        rows = instance_lock.read_state(self.folder.run).get("services", [])
        return {row["name"]: row for row in rows}

    def known(self) -> Membership:
        return membership.load(self.folder)

    def owned(self, name: str = "") -> tuple[workspace_processes.OwnedProcess, ...]:
        """The live processes of its workspaces, or of one workspace by name."""
        return workspace_processes.scan(self.folder.driver_instance, name, spares=claimed(self.folder.local))

    def end(self) -> None:
        """Kill whatever is left."""
        if self._process is not None and self._process.poll() is None:
            self._process.terminate()
            self._process.wait(30)
        processes.end(processes.leftovers(self.folder.id), self.folder.id, grace_s=2)
        workspace_processes.kill(self.owned(), self._marked())
        for folder in self.folder.local.glob("ws-*"):
            # Kill the processes of its network.
            local_network.end(folder)
        mounts.detach(self.folder.home)

    def _marked(self) -> list[int]:
        marker, pids = f"BERTH_INSTANCE={self.folder.driver_instance}".encode(), []
        for path in Path("/proc").glob("[0-9]*/environ"):
            try:
                if marker in path.read_bytes().split(b"\0"):
                    pids.append(int(path.parent.name))
            except OSError:
                continue
        return pids
