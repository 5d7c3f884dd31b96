"""Executes one step of a build within its limits. Standard library only.

Run as `python -I -S confine.py PARENT_PID` with a plan as JSON on standard input: `argv`, `env`,
`cgroup_procs`, `rlimits`, `nice`, `umask`, and `files` by name. Each file is opened here, and its descriptor
replaces `{name}` in argv. The step ends with the thread that started it and leads its own process group. With
`user` it switches to that user (`as_user.py`, in the folder `code`), with the program's files mounted.
"""

# ruff: noqa: PTH123, S606 - pathlib would double the time that this program takes to start

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import resource
import signal
import sys

PR_SET_PDEATHSIG = 1


def main() -> None:
    parent = int(sys.argv[1])
    plan = json.loads(sys.stdin.buffer.read())
    os.setsid()
    end_with(parent)
    os.umask(plan["umask"])
    for path in plan["cgroup_procs"]:
        with open(path, "w", encoding="ascii") as file:
            file.write(str(os.getpid()))
    with contextlib.suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, 0, plan["nice"])
    for name, value in plan["rlimits"].items():
        kind = getattr(resource, name)
        hard = resource.getrlimit(kind)[1]
        value = value if hard == resource.RLIM_INFINITY else min(value, hard)
        resource.setrlimit(kind, (value, value))
    descriptors = {}
    for name, path in plan["files"].items():
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW)
        os.set_inheritable(descriptor, True)
        descriptors[f"{{{name}}}"] = str(descriptor)
    if plan["user"]:
        sys.path.insert(0, plan["code"])
        # Imported here: the path had to be set.
        import as_user  # type: ignore[import-not-found,unused-ignore]

        as_user.become(plan["user"])
        end_with(parent)  # changing the user resets the parent-death signal
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    argv = [descriptors.get(argument, argument) for argument in plan["argv"]]
    try:
        os.execve(argv[0], argv, plan["env"])
    except OSError as error:
        sys.exit(f"could not start {argv[0]}: {error.strerror}")


def end_with(parent: int) -> None:
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        sys.exit(1)  # the parent died before prctl


if __name__ == "__main__":
    main()
