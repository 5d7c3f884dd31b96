"""Files of the local driver, under `$BERTH_HOME/local/`.

    <name>/record.json    the driver's record of the workspace (`StartRecord`)
    <name>/pid.json       identity of the launched process, written by itself (`LaunchRecord`)
    <name>/app.<n>.sock   app socket of generation n, for the node's gateway; held open by the agent
    <name>/alive.lock     locked by the agent as long as it lives
    <name>/launch.log     output of a sandbox that failed to start
    <name>/etc/           passwd, group and hosts of the sandbox
    <name>/spare.json     the spare that the sandbox came from, if any (`SpareMark`)
    <name>/run/           writable for the workspace: agent.json, state.json, app.log, app.log.1,
                          app.log.start
    .locks/<name>         serialises operations on a workspace
    .gateway/             the socket to the portal (`provisioning.node_gateway`), visible in every sandbox
    .spares/              pre-started sandboxes without a workspace (`spares.py`)
    .closed/<name>        the highest closed generation; kept for a week after the workspace is deleted

A workspace can write anything into `run/`, including links and pipes. Reads there never follow links,
never block, and are limited in size.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import shutil
import stat
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from provisioning.drivers.local.failures import Busy, is_full, suppressed_when_full
from provisioning.endpoints import PORTAL_SOCKET
from provisioning.types import Name, Signed, Whole, Word

T = TypeVar("T")
CLOSED_KEEP_S = 7 * 86400
LOCK_TIMEOUT_S = 5.0
READ_MAX_BYTES = 1 << 20
NODE_USER = -1
"""Stands for the id of the user that runs the node worker."""


@dataclass(frozen=True, slots=True)
class GpuShare:
    """The share of a GPU's memory that a workspace may use, and the GPU's total memory, in MiB."""

    uuid: str
    part_mib: int
    device_mib: int


@dataclass(frozen=True, slots=True)
class StartRecord:
    """Record of the generation started last. Written before anything is launched.

    `oom_kills` and `kept_within_memory` are the last values read from its control groups (`cgroups.py`).
    `home` is the key of the home, `uid` the user id of its owner (`uids.py`). `egress` and `egress_allow` are
    its network policy. `shares` lists GPUs that it shares.
    """

    workspace_id: str
    generation: int
    spec_digest: str
    app_name: str
    attempt: str
    ports: tuple[int, ...]
    memory_mib: int
    stop_timeout_s: int
    sandboxed: bool
    created_at: float
    cgroups: tuple[str, ...]
    own_network: bool
    home: str
    uid: int
    environment: str
    egress: str
    egress_allow: str
    shares: tuple[GpuShare, ...]
    closed: bool = False
    stop_requested_at: float = 0.0
    oom_kills: int = 0
    kept_within_memory: bool = False


@dataclass(frozen=True, slots=True)
class LaunchRecord:
    """Identity of the launched process, written by itself."""

    pid: int
    start_ticks: int
    boot_id: str
    attempt: str


@dataclass(frozen=True, slots=True)
class SpareMark:
    """How a spare was created (`spares.py`). Kept by the workspace that adopted it."""

    id: str
    kind: str
    owner: int
    created_at: float
    cgroups: tuple[str, ...]
    uid: int
    place: str


@dataclass(frozen=True, slots=True)
class AgentState:
    """The agent's state file; see `provisioning/agent/program/agent.py`."""

    phase: Word
    generation: Whole
    port: Whole | None = None
    reason: Name = ""
    exit_code: Signed | None = None


class WorkspaceDir:
    def __init__(self, base: Path, name: str) -> None:
        self.base = base
        self.name = name
        self.path = base / name
        self.run = self.path / "run"
        self.etc = self.path / "etc"
        self.bundle = self.path / "bundle"
        self.lock = self.path / "alive.lock"
        self.pid_file = self.path / "pid.json"
        self.launch_log = self.path / "launch.log"
        self.config = self.run / "agent.json"
        self.state_file = self.run / "state.json"
        self.app_log = self.run / "app.log"
        self.suspended_file = self.path / "suspended.json"
        self._closed = base / ".closed" / name

    @contextlib.contextmanager
    def operation(self) -> Iterator[int]:
        """Hold the workspace's operation lock; yield its descriptor. Raises `Busy` after 5 s.

        The lock is released by closing the descriptor, not by unlocking. A launcher that inherited the
        descriptor keeps the lock until it has become the workspace, even if this process is killed.
        """
        folder = self.base / ".locks"
        self.base.mkdir(mode=0o700, parents=True, exist_ok=True)
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        descriptor = os.open(folder / self.name, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            deadline = time.monotonic() + LOCK_TIMEOUT_S
            while True:
                try:
                    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                except BlockingIOError:
                    if time.monotonic() > deadline:
                        raise Busy(
                            "Another operation on the workspace is in progress. The portal retries "
                            "automatically.",
                            detail=f"lock {folder / self.name}",
                        ) from None
                    time.sleep(0.01)
            yield descriptor
        finally:
            os.close(descriptor)

    def operation_held(self) -> bool:
        """Return whether a worker, or a launcher on its behalf, operates on this workspace."""
        return _is_locked(self.base / ".locks" / self.name)

    def alive(self) -> bool:
        """Return whether the launched process or its agent lives, which hold the life lock."""
        return _is_locked(self.lock)

    def record(self) -> StartRecord | None:
        """Return the record, or None if it is missing or damaged.

        On a full disk, the end of a generation may be recorded in `.closed/` only.
        """
        record = load(self.path / "record.json", StartRecord)
        if record is None or record.closed or self.closed_generation() < record.generation:
            return record
        return replace(record, closed=True, stop_requested_at=self._closed.stat().st_mtime)

    def launched(self) -> LaunchRecord | None:
        return load(self.pid_file, LaunchRecord)

    def agent_state(self) -> AgentState | None:
        return load(self.state_file, AgentState)

    def spare(self) -> SpareMark | None:
        """Return the spare that the sandbox came from; None if it was started for the workspace."""
        return load(self.path / "spare.json", SpareMark)

    def claimed(self) -> dict[str, tuple[str, int]]:
        """Return the adopted spare in the format of `processes.scan`; empty if there is none."""
        mark, record = self.spare(), self.record()
        return {mark.id: (self.name, record.generation if record else 0)} if mark else {}

    def write_record(self, record: StartRecord) -> None:
        write_atomically(self.path / "record.json", json.dumps(asdict(record)).encode())

    def changed_at(self) -> tuple[int, ...]:
        """Return a value that changes whenever `record` may change: mtimes in ns and inodes of its files."""
        return (*_stamp(self.path / "record.json"), *_stamp(self._closed))

    def prepare(self, uid: int = NODE_USER, door: int | None = None) -> None:
        """Create an empty runtime folder and remove traces of an earlier attempt; the lock file stays.

        The workspace's writable parts belong to `uid`. The group `door` may traverse the folder (`door.py`).
        """
        self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
        if door is not None:
            os.chown(self.path, -1, door)
            self.path.chmod(0o710)
        traces = (self.pid_file, self.launch_log, self.suspended_file)
        for path in (*traces, self.path / "spare.json", self.path / "claims"):
            path.unlink(missing_ok=True)
        for path in self.path.glob("app*.sock"):
            path.unlink(missing_ok=True)
        for folder in (self.run, self.etc):
            _remove_tree(folder)
            folder.mkdir(mode=0o700)
        if uid != NODE_USER:
            self.etc.chmod(0o755)
            os.chown(self.run, uid, uid)

    def app_socket(self, generation: int) -> Path:
        """Return this generation's app socket (`provisioning.node_gateway`), outside the sandbox."""
        return self.path / f"app.{generation}.sock"

    def remove(self) -> None:
        """Remove the folder and anything that the workspace put there. Raises `OSError`."""
        _remove_tree(self.path)

    def closed_generation(self) -> int:
        """Return the highest closed generation, or 0."""
        try:
            return int(self._closed.read_text())
        except (FileNotFoundError, ValueError):
            return 0

    def reserve_closing(self) -> None:
        """Preallocate the file of `close_generation`, so that closing works on a full disk.

        Not synced, to keep starts fast: if the machine crashes, only the reservation is lost.
        """
        if self._closed.exists():
            return
        self._closed.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        descriptor = os.open(self._closed, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        with os.fdopen(descriptor, "wb") as handle:
            handle.write(_pad_generation(0))

    def close_generation(self, generation: int) -> None:
        """Close `generation` and all below, permanently."""
        if generation <= self.closed_generation():
            return
        try:
            write_atomically(self._closed, _pad_generation(generation))
        except OSError as error:
            if not is_full(error):
                raise
            # Overwrite in place: these few bytes fit one sector, so no new block is needed.
            descriptor = os.open(self._closed, os.O_WRONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
            try:
                os.pwrite(descriptor, _pad_generation(generation), 0)
                os.fsync(descriptor)
            finally:
                os.close(descriptor)

    def mark_closed(self, record: StartRecord) -> StartRecord:
        """Return `record` as closed, with the time of the stop request."""
        if not record.closed:
            record = replace(record, closed=True, stop_requested_at=time.time())
            with suppressed_when_full():
                self.write_record(record)
        return record

    def tail(self, lines: int) -> str:
        """Return the last lines of the app's log, or of the sandbox's log if the app never wrote one."""
        text = "".join(read_tail(path) for path in (self.run / "app.log.1", self.app_log))
        if not text:
            text = read_tail(self.launch_log)
        return "\n".join(text.splitlines()[-lines:]) if lines > 0 else ""


def _stamp(path: Path) -> tuple[int, int]:
    try:
        info = path.stat()
    except OSError:
        return 0, 0
    return info.st_mtime_ns, info.st_ino


def _pad_generation(generation: int) -> bytes:
    return f"{generation:<20}".encode()


def _is_locked(path: Path) -> bool:
    """Return whether another process holds an exclusive lock on `path`."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False


def gateway_folder(base: Path) -> Path:
    """Return the folder of the socket to the portal; created if missing. Raises `OSError`.

    Other users may traverse it, since sandboxes can run as another user.
    """
    folder = (base / PORTAL_SOCKET).parent
    base.mkdir(mode=0o700, parents=True, exist_ok=True)
    folder.mkdir(mode=0o711, exist_ok=True)
    if folder.stat().st_mode & 0o111 != 0o111:
        folder.chmod(0o711)
    return folder


def instance_of(home: Path) -> str:
    """Return the BERTH_INSTANCE that marks processes of the installation at `home`."""
    return hashlib.sha256(os.path.realpath(home).encode()).hexdigest()[:16]


def names(base: Path) -> list[str]:
    """Return the names of all workspaces that have a runtime folder."""
    try:
        return sorted(
            entry.name for entry in base.iterdir() if entry.name.startswith("ws-") and entry.is_dir()
        )
    except FileNotFoundError:
        return []


def claimed(base: Path) -> dict[str, tuple[str, int]]:
    """Return the spares adopted by workspaces in the format of `processes.scan`."""
    claims: dict[str, tuple[str, int]] = {}
    for name in names(base):
        claims.update(WorkspaceDir(base, name).claimed())
    return claims


def prune_closed(base: Path, *, now: float) -> None:
    """Delete closed generations a week after the workspace is gone; its commands have expired by then."""
    folder = base / ".closed"
    with contextlib.suppress(OSError):
        for path in folder.iterdir():
            if not (base / path.name).exists() and path.stat().st_mtime < now - CLOSED_KEEP_S:
                path.unlink(missing_ok=True)
                (base / ".locks" / path.name).unlink(missing_ok=True)


def write_atomically(path: Path, data: bytes) -> None:
    """Replace the content of `path` atomically and durably; readable by its owner only."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        with os.fdopen(descriptor, "wb") as handle:
            handle.write(data)
            handle.flush()
            os.fsync(descriptor)
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def read_tail(path: Path, max_bytes: int = READ_MAX_BYTES) -> str:
    """Return the end of a regular file as text; empty if `path` is anything else."""
    return _read(path, max_bytes).decode("utf-8", "replace")


def _read(path: Path, max_bytes: int) -> bytes:
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return b""
    with os.fdopen(descriptor, "rb") as handle:
        info = os.fstat(descriptor)
        if not stat.S_ISREG(info.st_mode):
            return b""
        handle.seek(max(0, info.st_size - max_bytes))
        return handle.read(max_bytes)


def load(path: Path, kind: type[T]) -> T | None:
    data = _read(path, READ_MAX_BYTES)
    if not data:
        return None
    try:
        return msgspec.json.decode(data, type=kind)
    except (msgspec.DecodeError, RecursionError):
        return None


def _remove_tree(path: Path) -> None:
    """Remove `path` even if the workspace revoked permissions inside. Does not follow links."""

    def open_up(_function: Any, name: str, error: BaseException) -> None:
        if isinstance(error, FileNotFoundError):
            return
        with contextlib.suppress(OSError):
            Path(name).parent.chmod(0o700)
            if not Path(name).is_symlink() and Path(name).is_dir():
                Path(name).chmod(0o700)

    for _ in range(8):  # each round opens one more level
        if not os.path.lexists(path):
            return
        if path.is_symlink() or not path.is_dir():
            path.unlink()
            return
        if sys.version_info >= (3, 12):  # `onerror` is deprecated there
            shutil.rmtree(path, onexc=open_up)
        else:
            shutil.rmtree(path, onerror=lambda function, name, info: open_up(function, name, info[1]))
    if os.path.lexists(path):
        shutil.rmtree(path)
