"""Start one workspace detached from the worker that requested it. Standard library only.

Run as `python -I -S launcher.py STATUS_FD OPERATION_FD` with the plan as JSON on standard input. It forks and
its parent exits at once, so the workspace is not a child of the worker and leaves no zombie. The child takes
the workspace's life lock, which the agent holds until it ends. Then it enters the cgroups, applies the
limits, writes its identity, and executes the plan's argv. OPERATION_FD is the worker's lock on the workspace.
It is held here too, so that no second worker can start the workspace again if the first is killed. Both
descriptors close on exec. Data written to STATUS_FD is the reason why exec was not reached.

`sockets` maps names to paths of Unix sockets to listen on, `files` to files to read. The program inherits the
descriptors, and their numbers replace `{name}` in its argv. `user` is the program's user if root starts
it, with the files that this user can see (`as_user.py`). `owner` is a process: the program is a spare and
inherits a pidfd of the owner as `{owner}`. Members of the group `door` may connect to the socket `app`
(`door.py`).
"""

# ruff: noqa: PTH100, PTH101, PTH105, PTH108, PTH120, PTH123, S606, UP031, SIM105 - pathlib would double the time that this program takes to start

from __future__ import annotations

import fcntl
import json
import os
import resource
import sys
import time

TYPE_CHECKING = False
if TYPE_CHECKING:  # `typing` is slow to import
    from typing import Any

BACKLOG = 512
OOM_SCORE, OOM_ABOVE_SERVICES = 100, 50
"""If the machine runs out of memory, the kernel kills workspaces before services. Apps score higher."""


def identity(attempt: str) -> bytes:
    """Return PID, start time (stat field 22) and boot id of this process as JSON."""
    with open("/proc/self/stat", encoding="utf-8", errors="replace") as handle:
        text = handle.read()
    with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as handle:
        boot = handle.read().strip()
    ticks = int(text[text.rfind(")") + 2 :].split()[19])
    return json.dumps(
        {"pid": os.getpid(), "start_ticks": ticks, "boot_id": boot, "attempt": attempt}
    ).encode()


def take_lock(path: str) -> None:
    """Hold the lock as long as this process, including the program it executes, lives."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
    os.set_inheritable(descriptor, True)
    for _ in range(200):  # checks of the lock by others hold it for microseconds
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            time.sleep(0.005)
    raise RuntimeError("the workspace is already running")


def lower_limit(name: str, value: int) -> None:
    """Set a soft and hard limit, at most the current hard limit."""
    kind = getattr(resource, name)
    hard = resource.getrlimit(kind)[1]
    if hard != resource.RLIM_INFINITY:
        value = min(value, hard)
    resource.setrlimit(kind, (value, value))


def raise_oom_score() -> None:
    """Make the OOM killer prefer this process and its children over services, including its parent.

    If set by root, no process in a workspace can lower it again.
    """
    try:
        with open("/proc/self/oom_score_adj", "r+", encoding="ascii") as handle:
            score = max(int(handle.read()) + OOM_ABOVE_SERVICES, OOM_SCORE)
            handle.seek(0)
            handle.write(str(score))
    except OSError:
        pass


def write_new(path: str, data: bytes) -> None:
    temporary = path + ".tmp"
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    try:
        os.write(descriptor, data)
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    os.replace(temporary, path)


def open_inherited(plan: dict[str, Any]) -> dict[str, str]:
    """Open the descriptors that the program inherits; return them as words of its argv."""
    import _socket  # only the C part: `socket` takes 7 ms to import

    descriptors: dict[str, int] = {}
    for name, path in plan["sockets"].items():
        folder, _, file = path.rpartition("/")
        os.chdir(folder)  # a socket's path is limited to 107 bytes
        listener = _socket.socket(_socket.AF_UNIX, _socket.SOCK_STREAM)
        try:
            os.unlink(file)
        except FileNotFoundError:
            pass
        listener.bind(file)
        if name == "app" and plan["door"] is not None:
            os.chown(file, -1, plan["door"])
            os.chmod(file, 0o660)
        listener.listen(BACKLOG)
        os.chdir("/")
        descriptors["{%s}" % name] = listener.detach()
    for name, path in plan["files"].items():
        descriptors["{%s}" % name] = os.open(path, os.O_RDONLY | os.O_NOFOLLOW)
    if "owner" in plan:
        descriptors["{owner}"] = os.pidfd_open(plan["owner"])
    for descriptor in descriptors.values():
        os.set_inheritable(descriptor, True)
    return {placeholder: str(descriptor) for placeholder, descriptor in descriptors.items()}


def become(plan: dict[str, Any], status: int) -> None:
    """Execute the program. Never returns."""
    try:
        os.setsid()
        os.umask(0o077)
        os.chdir("/")
        take_lock(plan["lock"])
        for path in plan["cgroup_procs"]:
            with open(path, "w", encoding="ascii") as handle:
                handle.write(str(os.getpid()))
        for name, value in plan["rlimits"].items():
            lower_limit(name, value)
        raise_oom_score()
        null = os.open(os.devnull, os.O_RDONLY)
        log = os.open(plan["log"], os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o600)
        os.dup2(null, 0)
        os.dup2(log, 1)
        os.dup2(log, 2)
        os.close(null)
        os.close(log)
        placeholders = open_inherited(plan)
        write_new(plan["pid"], identity(plan["attempt"]))
        if plan.get("user"):
            sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
            # Imported here: the path had to be set, and most starts need no other user.
            import as_user  # type: ignore[import-not-found,unused-ignore]

            as_user.become(plan["user"])
        os.execve(
            plan["argv"][0], [placeholders.get(argument, argument) for argument in plan["argv"]], plan["env"]
        )
    except BaseException as error:
        text = json.dumps({"error": str(error) or repr(error), "errno": getattr(error, "errno", None)})
        os.write(status, text.encode()[:4000])
    finally:
        os._exit(1)


def main() -> int:
    status, operation = int(sys.argv[1]), int(sys.argv[2])
    os.set_inheritable(status, False)
    os.set_inheritable(operation, False)
    plan = json.loads(sys.stdin.buffer.read())
    if os.fork() == 0:
        become(plan, status)
    return 0


if __name__ == "__main__":
    os._exit(main())
