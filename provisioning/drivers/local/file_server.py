"""File server of a home: one process per home, in the same sandbox as workspaces of its user.

The first request starts it. It sees only the home, has no network, and exits some minutes after the last
request. Links in a home cannot lead outside (`provisioning/agent/files`).
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import signal
import socket
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from provisioning.drivers.local import cgroups, disk, door, ownership, processes
from provisioning.drivers.local.environment import Environment
from provisioning.drivers.local.failures import Busy, HomeMissing, HomeOwnerChanging
from provisioning.drivers.local.isolation import SandboxProbe, filter_files, masked_files, system_folders
from provisioning.drivers.local.launching import AGENT, spawn
from provisioning.drivers.local.sandbox import SandboxPlan, bwrap_argv
from provisioning.drivers.local.spares import write_etc
from provisioning.drivers.local.staging import Mount, staged, user
from provisioning.drivers.local.start import HAND_OVER_S
from provisioning.drivers.local.state import NODE_USER, WorkspaceDir, instance_of
from provisioning.endpoints import FILES_PREFIX, files_socket_name
from provisioning.errors import BackendUnavailable, StartFailed
from provisioning.handover import TooDeep, hand_over
from provisioning.types import home_key

SERVER = AGENT.with_name("files")
INSIDE = "/run/berth/files"
CPU_MILLI = 1000
MEMORY_MIB = 256
TIMEOUT_S = 15.0
STREAM_TIMEOUT_S = 40.0
MAX_TRIES = 5
MAX_ANSWER = 4 << 20
HOST = "files"
INCOMING, ARCHIVES = ".moving-", ".archives-"
STORE_INSIDE = "/run/berth/archives"


@dataclass(frozen=True, slots=True)
class Home:
    """Home of a user in a team; with `incoming`, the folder that receives it from another machine.

    With `archives`, the folder of its archives, whose server also sees the home.
    """

    team: str
    owner: str
    incoming: bool = False
    archives: bool = False

    @property
    def home_key(self) -> str:
        return home_key(self.team, self.owner)

    @property
    def folder(self) -> str:
        """Name of the folder in the team's folder. No owner's name begins with a dot."""
        return f"{INCOMING if self.incoming else ARCHIVES if self.archives else ''}{self.owner}"


@dataclass(frozen=True, slots=True)
class FileServers:
    """File servers of this node: `base` is the local driver's folder, `homes` that of the homes."""

    base: Path
    homes: Path
    instance: str
    environment: Environment
    sandbox: SandboxProbe

    def query(
        self, home: Home, question: Mapping[str, Any], stream: Iterable[bytes] | None = None
    ) -> dict[str, Any]:
        """Return the server's answer: `{"ok": …}` or `{"refused": …}`. `stream` is sent after the request.

        Raises `ProvisioningError` or `OSError`.
        """
        folder = self._folder(home)
        problem: Exception | None = None
        for attempt in range(MAX_TRIES):
            with folder.operation() as lock:
                if not folder.alive():
                    self._start(home, folder, lock)
            try:
                return _exchange(folder.path, question, stream)
            except (ConnectionError, FileNotFoundError) as error:
                # It was just exiting after its idle timeout.
                problem = error
                if stream is not None:
                    break  # part of it has been read
                time.sleep(0.1 * (attempt + 1))
            except (TimeoutError, ValueError) as error:
                problem = error
                break
        raise BackendUnavailable(
            "The file server of this home does not answer. Try again in a moment.",
            detail=f"{problem}: {folder.tail(5)}",
        )

    def end(self, home: Home) -> None:
        """End the home's server, if any, and clean up. Raises `Busy` or `OSError`."""
        _end(self._folder(home), self.instance)

    def _folder(self, home: Home) -> WorkspaceDir:
        name = files_socket_name(home.team, home.folder).partition(".")[0]
        return WorkspaceDir(self.base, name)

    def _start(self, home: Home, folder: WorkspaceDir, lock: int) -> None:
        store = self.homes / home.team / home.folder if home.archives else None
        path = self.homes / home.team / (home.owner if store else home.folder)
        folders = [path, store] if store else [path]
        if any(not candidate.is_dir() or candidate.is_symlink() for candidate in folders):
            raise HomeMissing("This node does not have the home yet. Start a workspace first.")
        uid = ownership.owner_of(self.base, self.instance, home, self.sandbox)
        for home_folder in folders if os.geteuid() == 0 else ():
            self._hand_over(home_folder, 0 if uid == NODE_USER else uid)
        host = cgroups.detect(self.instance)
        groups = cgroups.paths(host, folder.name)
        cgroups.remove(groups)
        door_group = door.group_of(self.base)
        folder.prepare(uid, door_group)
        cgroups.create(host, folder.name, cpu_milli=CPU_MILLI, memory_mib=MEMORY_MIB)
        reserve = str(disk.reserve_mib() << 20)
        mounts: list[Mount] = []
        env = {"LANG": "C.UTF-8"}
        if self.sandbox.bwrap:
            plan = self._plan(home, folder, path, reserve, store)
            if uid != NODE_USER:
                plan, mounts = staged(plan)
            argv, env = bwrap_argv(plan), {}
        else:
            program = (self.environment.python, "-I", "-S", str(SERVER / "server.py"))
            argv = (*program, str(path), "{app}", "{control}", reserve, *_mode(home, str(store)))
        sockets = {"app": folder.app_socket(1), "control": folder.path / "control.sock"}
        (folder.path / "control.sock").unlink(missing_ok=True)
        limits = {"RLIMIT_CORE": 0} | ({} if host.version else {"RLIMIT_DATA": MEMORY_MIB << 20})
        spawn(
            {
                "argv": argv,
                "user": user(uid, mounts) if uid != NODE_USER else None,
                "env": env,
                "lock": str(folder.lock),
                "pid": str(folder.pid_file),
                "log": str(folder.launch_log),
                "attempt": secrets.token_hex(8),
                "sockets": {name: str(socket_path) for name, socket_path in sockets.items()},
                "door": door_group,
                "files": filter_files(self.base, self.sandbox),
                "cgroup_procs": [str(group / "cgroup.procs") for group in groups],
                "rlimits": limits,
            },
            lock,
        )

    def _hand_over(self, path: Path, owner: int) -> None:
        try:
            finished = hand_over(path, owner, limit_s=HAND_OVER_S)
        except TooDeep as error:
            raise StartFailed(
                f"The owner of the home could not be set: {error}. Move the deepest folders up."
            ) from error
        if not finished:
            raise HomeOwnerChanging(
                "The node is still setting the owner of the home's files. The portal retries automatically."
            )

    def _plan(
        self, home: Home, folder: WorkspaceDir, path: Path, reserve: str, store: Path | None
    ) -> SandboxPlan:
        write_etc(folder, home.owner, HOST, self.sandbox)
        empty_folder = folder.path / "nothing"
        empty_folder.mkdir(mode=0o755, exist_ok=True)
        inside = f"/home/{home.owner}"
        server = f"{INSIDE}/server.py"
        return SandboxPlan(
            bwrap=self.sandbox.bwrap,
            system=system_folders(),
            readonly=self.environment.readonly,
            python=self.environment.python,
            agent="",
            run=str(folder.run),
            gateway=str(empty_folder),
            etc=str(folder.etc),
            home=str(path),
            user=home.owner,
            hostname=HOST,
            env={"LANG": "C.UTF-8"},
            command=(
                *(self.environment.python, "-I", "-S", server, inside, "{app}", "{control}", reserve),
                *_mode(home, STORE_INSIDE),
            ),
            readonly_at=((str(SERVER), INSIDE),),
            writable_at=((str(store), STORE_INSIDE),) if store else (),
            masked=masked_files(),
            disable_userns=self.sandbox.disable_userns,
            own_network=True,
            filtered=bool(self.sandbox.seccomp),
        )


def _mode(home: Home, store: str) -> tuple[str, ...]:
    if home.archives:
        return "archives", store
    return ("incoming",) if home.incoming else ()


def end_all(base: Path) -> int:
    """End the servers of all homes below `base`; return how many are left. Raises `OSError`."""
    remaining = 0
    instance = instance_of(base.parent)
    for path in sorted(base.glob(f"{FILES_PREFIX}*")):
        folder = WorkspaceDir(base, path.name)
        with contextlib.suppress(Busy):
            _end(folder, instance)
        remaining += folder.alive()
    return remaining


def _end(folder: WorkspaceDir, instance: str) -> None:
    if not folder.path.exists():
        return
    with folder.operation():
        launched = folder.launched()
        until = time.monotonic() + TIMEOUT_S
        while folder.alive() and launched is not None and time.monotonic() < until:
            if processes.start_ticks(launched.pid) == launched.start_ticks:
                for pid in _process_tree(launched.pid):
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGKILL)
            time.sleep(0.02)
        if not folder.alive():
            cgroups.remove(cgroups.paths(cgroups.detect(instance), folder.name))
            folder.remove()


def _process_tree(pid: int) -> list[int]:
    """Return the descendants of a process, then itself: killing bubblewrap first would leave its sandbox."""
    descendants: list[int] = []
    with contextlib.suppress(OSError):
        for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split():
            descendants += _process_tree(int(child))
    return [*descendants, pid]


def _exchange(
    folder: Path, question: Mapping[str, Any], stream: Iterable[bytes] | None = None
) -> dict[str, Any]:
    """Send one request to the socket in `folder`, whose full path may be too long for a socket."""
    descriptor = os.open(folder, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
            connection.settimeout(TIMEOUT_S if stream is None else STREAM_TIMEOUT_S)
            connection.connect(f"/proc/self/fd/{descriptor}/control.sock")
            connection.sendall(json.dumps(question).encode() + b"\n")
            if stream is not None:
                for data in stream:
                    connection.sendall(data)
            connection.shutdown(socket.SHUT_WR)
            received = b""
            while data := connection.recv(65_536):
                received += data
                if len(received) > MAX_ANSWER:
                    raise ValueError("the answer is too long")
    finally:
        os.close(descriptor)
    if not received:
        raise ConnectionResetError("no answer")
    answer = json.loads(received)
    if not isinstance(answer, dict):
        raise ValueError("not an answer")
    return answer
