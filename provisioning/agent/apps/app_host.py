"""Preloads an app and becomes it when a workspace claims the process. Standard library only.

Run as `python app_host.py CONTROL_FD RECIPE` in a sandbox that contains nothing of any tenant and serves at
most one workspace. RECIPE is the JSON of `provisioning.preloading.Recipe`. CONTROL_FD is a stream socket to
the agent. The process writes one line `ready` once everything is imported, then reads one line of JSON, the
claim (`argv`, `env`, `home`, `rlimits`), its first information about a tenant. The process ends with the
stream. A listening socket comes with the claim. An app that supports it accepts connections itself
(`direct_listener.py`) and keeps the stream; otherwise both are closed.

Before the claim nothing is started: no event loop, thread, socket of the app, connection or secret. State
that Python modules took from the environment at import is refreshed after the claim.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import json
import os
import resource
import signal
import socket
import sys
import tempfile
import threading
import time
from typing import Any

UNCLAIMED_OOM_SCORE = 900
APP_OOM_SCORE = 300
PROVISIONER_VARIABLE = "JUPYTER_DEFAULT_PROVISIONER_NAME"


def main() -> None:
    control = socket.socket(fileno=int(sys.argv[1]))
    control.set_inheritable(False)
    recipe: dict[str, Any] = json.loads(sys.argv[2])
    oom_score(UNCLAIMED_OOM_SCORE, os.getpid())
    kernels: Any = None
    kernels_pid, kernels_link = 0, None
    if recipe["kernel_modules"]:
        # Before the app is imported, so that kernels start with a kernel's modules only.
        kernels = importlib.import_module("forked_kernels")
        load(recipe["kernel_modules"])
        if is_single_threaded():
            kernels_pid, kernels_link = fork_kernel_server(kernels, control)
    for name in recipe["blocked"]:
        sys.modules[name] = None  # type: ignore[assignment]  # blocks the import
    before = dict(os.environ)
    load(recipe["modules"])
    set_by_imports = {key: value for key, value in os.environ.items() if before.get(key) != value}
    if not is_single_threaded():
        raise RuntimeError(f"imported modules started threads: {threading.enumerate()}")
    gc.collect()
    gc.freeze()
    control.sendall(b"ready\n")
    claim, listener = receive(control)
    if claim is None:
        os._exit(0)
    limit(claim["rlimits"], [os.getpid(), *([kernels_pid] if kernels_pid else [])])
    arguments = [*claim["argv"][3:]]
    if kernels_link is not None:
        kernels.use(kernels_link, kernels_pid)
        if PROVISIONER_VARIABLE not in claim["env"]:
            arguments += recipe["kernel_options"]
    take_over(claim, set_by_imports)
    listen(recipe, listener, control)
    sys.argv = ["-c", *arguments]
    main_module = type(sys)("__main__")
    sys.modules["__main__"] = main_module
    exec(compile(claim["argv"][2], "<string>", "exec"), main_module.__dict__)  # noqa: S102 - as `python -c` does


def load(names: list[str]) -> None:
    """Import the modules that exist; an environment may lack an extension."""
    for name in names:
        try:
            importlib.import_module(name)
        except Exception:  # noqa: S112 - preloading is optional
            continue


def is_single_threaded() -> bool:
    """Return whether this is the only thread, including those of C libraries."""
    return len(os.listdir("/proc/self/task")) == 1  # noqa: PTH208


def fork_kernel_server(kernels: Any, control: socket.socket) -> tuple[int, socket.socket]:
    """Fork a process that forks kernels; return its PID and the link to it."""
    gc.collect()
    gc.freeze()
    parent_end, child_end = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    pid = os.fork()
    if pid:
        child_end.close()
        return pid, parent_end
    control.close()
    parent_end.close()
    os.setsid()
    kernels.serve(child_end)
    sys.exit(0)


def receive(control: socket.socket) -> tuple[dict[str, Any] | None, socket.socket | None]:
    """Return the claim, or None if the agent closed the stream, and the listening socket sent with it."""
    parts = bytearray()
    passed: list[int] = []
    while not parts.endswith(b"\n"):
        data, descriptors, _, _ = socket.recv_fds(control, 65536, 1)
        passed += descriptors
        if not data:
            return None, None
        parts += data
    claim: dict[str, Any] = json.loads(parts)
    for descriptor in passed:
        os.set_inheritable(descriptor, False)
    return claim, socket.socket(fileno=passed[0]) if passed else None


def listen(recipe: dict[str, Any], listener: socket.socket | None, control: socket.socket) -> None:
    """Let the app accept connections on its socket if it can; otherwise close `control`."""
    if listener is not None and recipe["direct"]:
        with contextlib.suppress(ImportError, AttributeError):
            importlib.import_module("direct_listener").use(listener, control)
            return
    if listener is not None:
        listener.close()
    control.close()


def limit(rlimits: dict[str, int], pids: list[int]) -> None:
    """Set the workspace's limits per process, for use without a control group, and its OOM score."""
    for pid in pids:
        for name, value in rlimits.items():
            resource.prlimit(pid, getattr(resource, name), (value, value))
        oom_score(APP_OOM_SCORE, pid)


def take_over(claim: dict[str, Any], set_by_imports: dict[str, str]) -> None:
    """Set the process state that a program executed for this workspace would have."""
    os.umask(0o022)
    os.chdir(claim["home"])
    os.environ.clear()
    os.environ.update(set_by_imports)
    os.environ.update(claim["env"])
    time.tzset()
    tempfile.tempdir = None
    sys.path[0] = ""  # as with -c; before, the folder of this file
    sys.path.append(os.path.dirname(os.path.abspath(__file__)))  # noqa: PTH100, PTH120 - where `forked_kernels` is
    for number in (signal.SIGTERM, signal.SIGCHLD):
        signal.signal(number, signal.SIG_DFL)


def oom_score(value: int, pid: int) -> None:
    """Set the OOM score of a process. The highest is killed first; the agent keeps 0 to report the reason."""
    with contextlib.suppress(OSError), open(f"/proc/{pid}/oom_score_adj", "w") as handle:  # noqa: PTH123
        handle.write(str(value))


if __name__ == "__main__":
    main()
