"""Spares: pre-started sandboxes that have already imported an app (docs/adr/0013).

A spare uses the same sandbox as a workspace, but without a home, name, devices or secrets. It serves at
most one workspace, and nothing used by a workspace becomes a spare. Under `$BERTH_HOME/local/.spares/`:

    <id>/               a runtime folder like a workspace's (`state.py`), with `spare.json` and the sockets
    `claims`, `app.sock`
    .lock               held while spares are created or ended

A claim is a connection to `claims`; the agent accepts only the first. The claimer renames the folder into
the workspace's, so that the spare's life lock, identity and files change owner atomically. Then it mounts
home and devices into the sandbox and sends the agent its configuration. If the claimer dies before that,
its connection closes and the agent ends, so no spare is used twice or left half adopted.

A spare ends with the node worker (`owner`), so none outlives it. Spares are found by BERTH_SPARE in their
processes' environment. The id of a claimed spare stays in its workspace's `spare.json`.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import logging
import os
import secrets
import shutil
import socket
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from provisioning.drivers.local import cgroups, cpu_count, door, network, processes
from provisioning.drivers.local.environment import Environment, uv_program
from provisioning.drivers.local.isolation import SandboxProbe, filter_files, masked_files, system_folders
from provisioning.drivers.local.launching import AGENT, APPS, JUPYTER, spawn
from provisioning.drivers.local.sandbox import (
    AGENT_PROGRAM_PATH,
    APPS_PATH,
    JUPYTER_PATH,
    PROGRAMS_PATH,
    RUN_PATH,
    SandboxPlan,
    bwrap_argv,
    etc_files,
)
from provisioning.drivers.local.staging import Mount, staged, user
from provisioning.drivers.local.state import (
    NODE_USER,
    SpareMark,
    WorkspaceDir,
    gateway_folder,
    names,
    write_atomically,
)
from provisioning.drivers.local.uids import Uids
from provisioning.errors import ProvisioningError, StartFailed
from provisioning.preloading import Recipe
from provisioning.workspace_uids import VARIABLE

log = logging.getLogger(__name__)

CPU_MILLI = 2000
MEMORY_MIB = 512
MIN_AVAILABLE_MIB = 1024
MAX_READY_S = 60.0
ANSWER_TIMEOUT_S = 0.5
END_TIMEOUT_S = 1.0
SPARE_NAME = "berth"


@dataclass(frozen=True, slots=True)
class SpareKind:
    """Everything that a spare is created from. A workspace can adopt only a spare of its own kind."""

    recipe: Recipe
    environment: Environment
    sandbox: SandboxProbe

    @property
    def can_be_created(self) -> bool:
        """Return whether spares of this kind can be created.

        Requires a sandbox, and a Python that loads no modules from the user's home.
        """
        root = Path(self.environment.python).parent.parent
        try:
            options = (root / "pyvenv.cfg").read_text()
        except OSError:
            return False
        isolated = "include-system-site-packages=false" in options.lower().replace(" ", "")
        return bool(self.sandbox.bwrap) and isolated and self.environment.preloadable

    def digest(self) -> str:
        """Return a digest of everything that a spare reads or its sandbox shows."""
        files = (*sorted(AGENT.glob("*.py")), *sorted(APPS.rglob("*.py")))
        body = {
            "recipe": self.recipe.as_json(),
            "environment": asdict(self.environment),
            "sandbox": asdict(self.sandbox),
            "files": [(str(path), path.stat().st_mtime_ns) for path in files],
            "configuration": [(path.st_ino, path.st_mtime_ns) for path in self._site_packages_stats()],
        }
        return hashlib.sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()

    def _site_packages_stats(self) -> Iterator[os.stat_result]:
        """Yield the stat results of folders that change when a package is installed."""
        root = Path(self.environment.python).parent.parent
        for path in sorted(root.glob("lib/python3.*/site-packages")):
            yield path.stat()


@dataclass(frozen=True, slots=True)
class ClaimedSpare:
    """A spare claimed by this process. Until it is handed over, closing `connection` ends it."""

    folder: WorkspaceDir
    mark: SpareMark
    connection: socket.socket


class Spares:
    """The spares of one installation on this machine."""

    def __init__(self, base: Path, instance: str) -> None:
        self.base = base / door.SPARES
        self.instance = instance

    # -- claiming -----------------------------------------------------------------------------

    def claim(self, kind: SpareKind) -> ClaimedSpare | None:
        """Claim and return a ready spare of `kind`, or None."""
        digest = ""
        for folder, mark in self._list_spares():
            state = folder.agent_state()
            if state is None or state.phase != "unclaimed":
                continue
            digest = digest or kind.digest()
            if mark.kind != digest:
                continue
            connection = _connect(folder.path / "claims")
            if connection is not None:
                return ClaimedSpare(folder, mark, connection)
        return None

    # -- maintaining --------------------------------------------------------------------------

    def maintain(
        self, kinds: Sequence[SpareKind], number: int, *, owner: int, cgroup_host: cgroups.CgroupHost
    ) -> None:
        """End surplus and outdated spares, and start new ones until there are `number` of each kind."""
        with self._exclusive_lock() as lock:
            if lock is None:
                return
            by_digest = {kind.digest(): kind for kind in kinds if kind.can_be_created} if number > 0 else {}
            counts = dict.fromkeys(by_digest, 0)
            for folder, mark in self._list_spares():
                overdue = time.time() > mark.created_at + MAX_READY_S
                state = folder.agent_state()
                usable = folder.alive() and mark.owner == owner and (state is not None or not overdue)
                if usable and counts.get(mark.kind, number) < number:
                    counts[mark.kind] += 1
                else:
                    self._end_soon(folder, mark)
            for digest, kind in by_digest.items():
                for _ in range(number - counts[digest]):
                    if _available_mib() < MIN_AVAILABLE_MIB:
                        return
                    self._start(kind, digest, owner, cgroup_host, lock)

    def end(self, folder: WorkspaceDir, mark: SpareMark) -> bool:
        """End a spare, or a claimed one that was not handed over; return True once nothing is left of it."""
        groups = [Path(path) for path in mark.cgroups]
        processes.kill(self.processes(mark.id), cgroups.pids(groups))
        if self.processes(mark.id) or cgroups.pids(groups) or folder.alive():
            return False
        removed = cgroups.remove(groups)
        folder.remove()
        return removed

    def end_for_environment(self, place: str) -> None:
        """End the spares created from the environment in this folder."""
        with self._exclusive_lock() as lock:
            if lock is None:
                return
            for folder, mark in self._list_spares():
                if mark.place == place:
                    self._end_soon(folder, mark)

    def processes(self, spare: str) -> tuple[processes.OwnedProcess, ...]:
        """Return the live processes of the spare with this id, even if it was claimed."""
        return processes.scan(self.instance, spare, spares={spare: (spare, 0)})

    def _end_soon(self, folder: WorkspaceDir, mark: SpareMark) -> None:
        """Call `end` until it succeeds, for at most `END_TIMEOUT_S`; the rest is ended next time."""
        deadline = time.monotonic() + END_TIMEOUT_S
        while not self.end(folder, mark) and time.monotonic() < deadline:
            time.sleep(0.01)

    def _start(self, kind: SpareKind, digest: str, owner: int, host: cgroups.CgroupHost, lock: int) -> None:
        folder = WorkspaceDir(self.base, secrets.token_hex(8))
        groups = cgroups.paths(host, f"spare-{folder.name}")
        uid = self._uid(kind)
        mark = SpareMark(
            uid=uid,
            id=folder.name,
            kind=digest,
            owner=owner,
            created_at=time.time(),
            cgroups=tuple(str(group) for group in groups),
            place=str(Path(kind.environment.python).parent.parent),
        )
        try:
            door_group = door.group_of(self.base.parent)
            folder.prepare(uid, door_group)
            write_atomically(folder.path / "spare.json", json.dumps(asdict(mark)).encode())
            write_etc(folder, SPARE_NAME, SPARE_NAME, kind.sandbox)
            cgroups.create(host, f"spare-{folder.name}", cpu_milli=CPU_MILLI, memory_mib=MEMORY_MIB)
            cpu_count.write(folder.etc, CPU_MILLI)
            plan, mounts = self._plan(kind, folder, groups), list[Mount]()
            if uid != NODE_USER:
                plan, mounts = staged(plan)
            spawn(
                {
                    "argv": bwrap_argv(plan),
                    "user": user(uid, mounts) if uid != NODE_USER else None,
                    "env": self._markers(folder),
                    "lock": str(folder.lock),
                    "pid": str(folder.pid_file),
                    "log": str(folder.launch_log),
                    "attempt": mark.id,
                    "cgroup_procs": [str(group / "cgroup.procs") for group in groups],
                    "rlimits": {"RLIMIT_CORE": 0},
                    "sockets": {"claims": str(folder.path / "claims"), "app": str(folder.path / "app.sock")},
                    "door": door_group,
                    "files": filter_files(self.base.parent, kind.sandbox),
                    "owner": owner,
                },
                lock,
            )
        except (OSError, ProvisioningError) as error:
            log.warning("could not start a spare: %s", error)
            cgroups.remove(groups)
            with contextlib.suppress(OSError):
                folder.remove()

    def _uid(self, kind: SpareKind) -> int:
        """Return an unused user id for a spare. Raises `StartFailed` or `OSError`."""
        if kind.sandbox.uids is None:
            return NODE_USER
        # A process that escaped its sandbox must not share a user with later spares.
        used = [*processes.users(), *(mark.uid for _, mark in self._list_spares())]
        for name in names(self.base.parent):
            claimed = WorkspaceDir(self.base.parent, name).spare()
            used += [claimed.uid] if claimed else []
        uid = Uids(self.base.parent, kind.sandbox.uids).for_spare(used)
        if uid is None:
            raise StartFailed(
                f"All user IDs for spares are in use. Enlarge the range in {VARIABLE} on this node."
            )
        return uid

    def _markers(self, folder: WorkspaceDir) -> dict[str, str]:
        return {"BERTH_INSTANCE": self.instance, "BERTH_SPARE": folder.name}

    def _plan(self, kind: SpareKind, folder: WorkspaceDir, groups: Sequence[Path]) -> SandboxPlan:
        python = kind.environment.python
        agent = (python, "-I", "-S", AGENT_PROGRAM_PATH)
        spare = (*agent, "--unclaimed", "{claims}", "{owner}", "{app}", RUN_PATH)
        recipe = json.dumps(kind.recipe.as_json())
        return SandboxPlan(
            bwrap=kind.sandbox.bwrap,
            system=system_folders(),
            readonly=kind.environment.readonly,
            python=python,
            agent=str(AGENT),
            run=str(folder.run),
            gateway=str(gateway_folder(self.base.parent)),
            etc=str(folder.etc),
            home="",
            user=SPARE_NAME,
            hostname=SPARE_NAME,
            env={
                **self._markers(folder),
                "BERTH_ROLE": "agent",
                "LANG": "C.UTF-8",
                "HOME": "/nonexistent",
                "PATH": os.pathsep.join(kind.environment.bin_dirs),
            },
            command=(*spare, python, f"{APPS_PATH}/app_host.py", "{control}", recipe),
            readonly_at=(
                (str(APPS), APPS_PATH),
                *programs_at(),
                *cpu_count.sandbox_mounts(folder.etc, groups),
            ),
            masked=masked_files(),
            disable_userns=kind.sandbox.disable_userns,
            own_network=kind.sandbox.network is not None,
            filtered=bool(kind.sandbox.seccomp),
        )

    def _list_spares(self) -> list[tuple[WorkspaceDir, SpareMark]]:
        """Return all spares, oldest first. Removes old folders without a mark."""
        spares = []
        with contextlib.suppress(FileNotFoundError):
            for path in self.base.iterdir():
                folder = WorkspaceDir(self.base, path.name)
                mark = folder.spare()
                if mark is not None:
                    spares.append((folder, mark))
                elif path.is_dir() and time.time() > path.stat().st_mtime + MAX_READY_S:
                    shutil.rmtree(path, ignore_errors=True)
        return sorted(spares, key=lambda item: item[1].created_at)

    @contextlib.contextmanager
    def _exclusive_lock(self) -> Iterator[int | None]:
        """Lock creating and ending of spares; yield the descriptor, or None if the lock is held."""
        self.base.mkdir(mode=0o700, parents=True, exist_ok=True)
        descriptor = os.open(self.base / ".lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            if _locks(descriptor):
                yield descriptor
            else:
                yield None
        finally:
            os.close(descriptor)


def programs_at() -> tuple[tuple[str, str], ...]:
    """Return the programs in every sandbox besides environment and agent: JupyterLab's extension, and uv."""
    uv = uv_program()
    programs = ((str(JUPYTER), JUPYTER_PATH),)
    return (*programs, (uv, f"{PROGRAMS_PATH}/uv")) if uv else programs


def write_etc(folder: WorkspaceDir, user: str, host: str, sandbox: SandboxProbe) -> None:
    """Write the workspace's /etc files in place, since the sandbox mounts these very files."""
    resolv_conf = _system_file("/etc/resolv.conf")
    if sandbox.network is not None:
        resolv_conf = network.resolv_conf(resolv_conf)
    files = etc_files(user, host, system_hosts=_system_file("/etc/hosts"), resolv_conf=resolv_conf)
    for name, text in files.items():
        path = folder.etc / name
        path.write_text(text)
        path.chmod(0o644)


def _system_file(path: str) -> str:
    try:
        return Path(path).read_text(errors="replace")
    except OSError:
        return ""


def _locks(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _connect(path: Path) -> socket.socket | None:
    """Return a connection on which the agent confirmed the claim, or None."""
    connection = socket.socket(socket.AF_UNIX)
    connection.settimeout(ANSWER_TIMEOUT_S)
    try:
        parent = os.open(path.parent, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            connection.connect(f"/proc/self/fd/{parent}/{path.name}")  # the full path may be too long
        finally:
            os.close(parent)
        if connection.recv(64) == b"yours\n":
            return connection
    except OSError:
        pass
    connection.close()
    return None


def _available_mib() -> int:
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) >> 10
    return 0
