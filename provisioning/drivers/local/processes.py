"""Processes identified by PID, start time and boot, never by PID alone. Linux only.

Launched processes carry markers in their environment: BERTH_INSTANCE (the Berth installation),
BERTH_WORKSPACE (the external name), BERTH_GENERATION, and BERTH_ROLE=agent on the agent. A sandbox that came
from a spare (`spares.py`) carries BERTH_SPARE, the spare's id, instead of the workspace's markers. A scan of
/proc for these markers decides what runs, regardless of what the records say.

Users can set variables too. So markers count only on processes of this PID namespace, which only the node
worker starts. Every process in a sandbox belongs to the owner of its first process, which descends from
bubblewrap and inherits its environment from the launcher.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

PROC = Path("/proc")
MAX_DEPTH = 100_000
NO_SPARES: Mapping[str, tuple[str, int]] = {}


@dataclass(frozen=True, slots=True)
class OwnedProcess:
    """A live process of a workspace. `start_ticks` is field 22 of its stat file."""

    pid: int
    start_ticks: int
    workspace: str
    generation: int
    is_agent: bool
    is_namespace_init: bool


@cache
def boot_id() -> str:
    """Return the id of this boot of the machine."""
    return (PROC / "sys/kernel/random/boot_id").read_text().strip()


def start_ticks(pid: int) -> int | None:
    """Return the start time of `pid` in clock ticks since boot; None if it is gone or a zombie."""
    fields = _stat(pid)
    return int(fields[19]) if fields and fields[0] not in ("Z", "X") else None


def user_of(pid: int) -> int | None:
    """Return the user id of a process; None if it is gone."""
    uids = _status(pid, "Uid")
    return int(uids[1]) if uids else None


def users() -> set[int]:
    """Return the user ids of all visible processes."""
    uids = {user_of(int(entry)) for entry in os.listdir(PROC) if entry.isdigit()}  # noqa: PTH208 - only names
    return {uid for uid in uids if uid is not None}


def scan(
    instance: str, workspace: str = "", *, spares: Mapping[str, tuple[str, int]] = NO_SPARES
) -> tuple[OwnedProcess, ...]:
    """Return all live processes with `instance`'s marker, of `workspace` or of all workspaces.

    `spares` maps the id of an adopted spare to its workspace and generation; processes of other spares belong
    to no workspace. Descendants are found through their parents; inside a sandbox, only this way, since
    all of them descend from its first process. Processes of other users are unreadable and ignored. A process
    just forked by an agent has the agent's environment until exec, and does not count as an agent.
    """
    marker = f"BERTH_INSTANCE={instance}".encode()
    marked: dict[int, tuple[str, int, bool]] = {}
    parents: dict[int, int] = {}
    ticks: dict[int, int] = {}
    insiders: dict[int, bytes] = {}
    own_namespace = pid_namespace("self")
    for entry in os.listdir(PROC):  # noqa: PTH208 - names are all that is wanted, and there are many
        if not entry.isdigit():
            continue
        pid = int(entry)
        fields = _stat(pid)
        if not fields or fields[0] in ("Z", "X"):
            continue
        parents[pid] = int(fields[1])
        ticks[pid] = int(fields[19])
        try:
            environ = (PROC / entry / "environ").read_bytes()
        except OSError:
            continue
        if marker not in environ:
            continue
        if pid_namespace(entry) == own_namespace or is_namespace_init(pid, depth=2):
            claim = _claim(environ, marker, spares)
            if claim is not None:
                marked[pid] = claim
        else:
            insiders[pid] = environ
    agents = {
        pid
        for pid, (_, _, is_agent) in marked.items()
        if is_agent and pid_namespace(str(pid)) == own_namespace
    }
    for pid in agents:
        if parents[pid] in agents:
            marked[pid] = (*marked[pid][:2], False)
    for pid in parents:
        chain: list[int] = []
        current = pid
        while current in parents and current not in marked and len(chain) < MAX_DEPTH:
            chain.append(current)
            current = parents[current]
        if current in marked:
            name, number_, _ = marked[current]
            for child in chain:
                marked[child] = (name, number_, False)
    for pid, environ in insiders.items():
        # The agent of a sandbox is the child of its first process and names the same workspace.
        owner = marked.get(pid, ("", 0))[:2]
        if _claim(environ, marker, spares) == (*owner, True) and is_namespace_init(parents[pid], depth=2):
            marked[pid] = (*owner, True)
    return tuple(
        OwnedProcess(pid, ticks[pid], name, generation, is_agent, is_namespace_init(pid))
        for pid, (name, generation, is_agent) in sorted(marked.items())
        if not workspace or name == workspace
    )


def _claim(
    environ: bytes, marker: bytes, spares: Mapping[str, tuple[str, int]]
) -> tuple[str, int, bool] | None:
    """Return the workspace and generation in an environment, and whether it is the agent's."""
    items = environ.split(b"\0")
    if marker not in items:
        return None
    values = dict(item.split(b"=", 1) for item in items if item.startswith(b"BERTH_") and b"=" in item)
    name = values.get(b"BERTH_WORKSPACE", b"").decode("utf-8", "replace")
    number = values.get(b"BERTH_GENERATION", b"0")
    generation = int(number) if number.isdigit() else 0
    if not name:
        spare = values.get(b"BERTH_SPARE", b"").decode("utf-8", "replace")
        name, generation = spares.get(spare, ("", 0))
    return (name, generation, values.get(b"BERTH_ROLE") == b"agent") if name else None


def pid_namespace(entry: str) -> str:
    """Return the PID namespace of an entry of /proc; empty if unreadable."""
    try:
        return os.readlink(PROC / entry / "ns" / "pid")  # noqa: PTH115 - of very many files
    except OSError:
        return ""


def send(process: OwnedProcess | tuple[int, int], number: signal.Signals) -> bool:
    """Signal exactly this process; return False if it is gone, even if its PID is in use again."""
    pid, ticks = (process.pid, process.start_ticks) if isinstance(process, OwnedProcess) else process
    try:
        handle = os.pidfd_open(pid)
    except OSError:
        return False
    try:
        if start_ticks(pid) != ticks:
            return False
        signal.pidfd_send_signal(handle, number)
    except OSError:
        return False
    finally:
        os.close(handle)
    return True


def kill(owned: Iterable[OwnedProcess], extra_pids: Iterable[int] = ()) -> None:
    """Send SIGKILL to all, first to inits of PID namespaces, which end everything inside."""
    ordered = sorted(owned, key=lambda process: not process.is_namespace_init)
    for process in ordered:
        send(process, signal.SIGKILL)
    killed = {process.pid for process in ordered}
    for pid in extra_pids:
        ticks = start_ticks(pid)
        if pid not in killed and ticks is not None:
            send((pid, ticks), signal.SIGKILL)


def _stat(pid: int) -> list[str] | None:
    """Return the fields of the stat file after the program's name: state, parent and so on."""
    try:
        text = (PROC / str(pid) / "stat").read_text(errors="replace")
    except OSError:
        return None
    return text[text.rfind(")") + 2 :].split()


def sandbox_init(outer: int, *, timeout_s: float = 0.0) -> int | None:
    """Return the first process inside the sandbox whose outer bubblewrap process is `outer`, or None.

    Waits for it for up to `timeout_s`.
    """
    deadline = time.monotonic() + timeout_s
    while True:
        children = children_of(outer)
        if children is None:
            return None
        if len(children) == 1 and is_namespace_init(children[0]) and _has_users(children[0]):
            return children[0]
        if time.monotonic() >= deadline:
            return None
        time.sleep(0.002)


def children_of(pid: int) -> list[int] | None:
    """Return the children of a process; None if it is gone."""
    try:
        return [
            int(child) for child in (PROC / str(pid) / "task" / str(pid) / "children").read_text().split()
        ]
    except OSError:
        return None


def _has_users(pid: int) -> bool:
    """Return whether its user namespace has its maps, which bubblewrap writes after the process started."""
    try:
        return all((PROC / str(pid) / name).read_bytes() for name in ("uid_map", "gid_map"))
    except OSError:
        return False


def is_namespace_init(pid: int, *, depth: int = 0) -> bool:
    """Return whether `pid` is PID 1 of a nested PID namespace.

    `depth` requires a nesting depth, where 1 is this namespace; 0 accepts any.
    """
    numbers = numbers_of(pid)
    return len(numbers) > 1 and numbers[-1] == 1 and depth in (0, len(numbers))


def numbers_of(pid: int) -> tuple[int, ...]:
    """Return the process's PIDs, from this PID namespace to its own; empty if it is gone.

    The kernel sets this nesting; no process can change it.
    """
    return tuple(int(number) for number in _status(pid, "NSpid"))


def parent_of(pid: int) -> int | None:
    """Return the PID of its parent; None if it is gone."""
    fields = _status(pid, "PPid")
    return int(fields[0]) if fields else None


def name_of(pid: int) -> str:
    """Return the program's name, which it can change; empty if it is gone."""
    try:
        return (PROC / str(pid) / "comm").read_text(errors="replace").rstrip("\n")
    except OSError:
        return ""


def _status(pid: int, field: str) -> list[str]:
    """Return the words of one field of its status; empty if it is gone."""
    try:
        lines = (PROC / str(pid) / "status").read_text(errors="replace").splitlines()
    except OSError:
        return []
    return next((line.split()[1:] for line in lines if line.startswith(f"{field}:")), [])
