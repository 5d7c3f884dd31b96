"""Kernels of one workspace, forked from a process that has imported ipykernel. Standard library only.

The kernel server is a single thread without an event loop, a ZeroMQ context or a kernel, so it can be forked
safely. It belongs to one workspace and ends with that workspace's server. Each request is one packet of JSON
(`arguments`, `env`, `cwd`) with a stream socket. The server answers on that socket with a line containing the
kernel's PID, and, when the kernel has ended, a line with its exit code, negative for a signal as in
`subprocess.Popen`.
"""

from __future__ import annotations

import contextlib
import gc
import json
import os
import runpy
import select
import signal
import site
import socket
import sys
import tempfile
import time
from typing import Any

MODULE = "ipykernel_launcher"
PACKAGES = "BERTH_PACKAGES"
"""Variable that names the folder of the user's own packages (`packages_overlay.py`)."""
MAX_REQUEST_BYTES = 128 * 1024
ANSWER_TIMEOUT_S = 5.0
KERNEL_OOM_SCORE = 300
CPU_COUNT = "PYTHON_CPU_COUNT"
"""Set in every workspace. An interpreter that does not read it finds the same number in the sandbox."""
# Read when an interpreter or library starts: a kernel that sets one of these gets a separate process.
FIXED_AT_START = (
    "PYTHON",
    "LD_",
    "LC_",
    "LANG",
    "MALLOC_",
    "GLIBC_",
    "OPENSSL_",
    "SSL_",
    "PYDEVD_",
    "DEBUGPY_",
    "IPYTHON_SUPPRESS",
)

_environ_before_imports = dict(os.environ)
_link: socket.socket | None = None
_server_pid = 0


# -- in the kernel server -----------------------------------------------------------------------


def serve(link: socket.socket) -> None:
    """Fork a kernel per request until `link` is closed. In a kernel, return when it has ended."""
    kernels: dict[int, tuple[int, socket.socket]] = {}  # by pidfd
    poller = select.poll()
    poller.register(link, select.POLLIN)
    while True:
        for descriptor, _ in poller.poll():
            if descriptor in kernels:
                poller.unregister(descriptor)
                _report_exit(descriptor, *kernels.pop(descriptor))
                continue
            data, descriptors, _, _ = socket.recv_fds(link, MAX_REQUEST_BYTES, 1)
            if not data:
                return
            if len(descriptors) != 1:
                continue
            status = socket.socket(fileno=descriptors[0])
            pid = os.fork()
            if pid == 0:
                link.close()
                status.close()
                for pidfd, (_, kernel_socket) in kernels.items():
                    os.close(pidfd)
                    kernel_socket.close()
                _become_kernel(json.loads(data))
                return
            _register(pid, status, kernels, poller)


def _register(
    pid: int, status: socket.socket, kernels: dict[int, tuple[int, socket.socket]], poller: select.poll
) -> None:
    """Report the kernel's PID; kill the kernel if the requester has gone."""
    descriptor = os.pidfd_open(pid)
    try:
        status.sendall(b"%d\n" % pid)
    except OSError:
        os.kill(pid, signal.SIGKILL)
    kernels[descriptor] = (pid, status)
    poller.register(descriptor, select.POLLIN)


def _report_exit(descriptor: int, pid: int, status: socket.socket) -> None:
    os.close(descriptor)
    _, code = os.waitpid(pid, 0)
    with contextlib.suppress(OSError), status:
        status.sendall(b"%d\n" % os.waitstatus_to_exitcode(code))


def _become_kernel(request: dict[str, Any]) -> None:
    """Run the kernel in this process like `python -m ipykernel_launcher`; return when it has ended."""
    os.setsid()
    parent = str(os.getppid())  # the kernel ends with the kernel server
    before = _environ_before_imports
    set_by_imports = {key: value for key, value in os.environ.items() if before.get(key) != value}
    os.environ.clear()
    os.environ.update(set_by_imports)
    os.environ.update(request["env"], JPY_PARENT_PID=parent)
    os.chdir(request["cwd"])
    os.umask(0o022)
    time.tzset()
    tempfile.tempdir = None
    with contextlib.suppress(OSError), open("/proc/self/oom_score_adj", "w") as handle:  # noqa: PTH123
        handle.write(str(KERNEL_OOM_SCORE))
    sys.path[0] = os.getcwd()  # noqa: PTH109 - as with -m; before, the folder of this file
    if packages := request["env"].get(PACKAGES):
        use_packages(packages)
    sys.modules.pop(__name__, None)
    # ipykernel has already read the variable at import, so pass it as an option too.
    sys.argv = [MODULE, *request["arguments"], f"--IPKernelApp.parent_handle={parent}"]
    gc.unfreeze()
    runpy.run_module(MODULE, run_name="__main__", alter_sys=True)


def use_packages(folder: str) -> None:
    """Use the interpreter and site-packages of the user's own packages, as a kernel started with it would."""
    python = os.path.join(folder, "bin", "python")  # noqa: PTH118
    name = f"python{sys.version_info.major}.{sys.version_info.minor}"
    site_packages = os.path.join(folder, "lib", name, "site-packages")  # noqa: PTH118
    if not os.path.isdir(site_packages):  # noqa: PTH112
        return
    before = list(sys.path)
    site.addsitedir(site_packages)
    added = [path for path in sys.path if path not in before]
    base = next((at for at, path in enumerate(before) if path.endswith("site-packages")), len(before))
    sys.path[:] = [*before[:base], *added, *before[base:]]
    sys.executable = python
    if "multiprocessing.spawn" in sys.modules:
        sys.modules["multiprocessing.spawn"].set_executable(python)


# -- in the workspace's server ------------------------------------------------------------------


def use(link: socket.socket, server_pid: int) -> None:
    """Request kernels over `link` from now on."""
    global _link, _server_pid
    _link, _server_pid = link, server_pid


def arguments_of(command: list[str]) -> list[str] | None:
    """Return ipykernel's arguments if `command` starts it with this environment's Python, else None."""
    names = {"python", "python3", f"python3.{sys.version_info.minor}"}
    folders = [sys.prefix, *filter(None, [os.environ.get(PACKAGES)])]
    own = {sys.executable} | {os.path.join(at, "bin", name) for at in folders for name in names}  # noqa: PTH118
    if command and command[0] in own and command[1:3] == ["-m", MODULE]:
        return command[3:]
    return None


def start(command: list[str], env: dict[str, str], cwd: str) -> ForkedKernel | None:
    """Start a kernel through the kernel server; return None if it needs a separate process."""
    arguments = arguments_of(command)
    changed = [
        key
        for key in env
        if key.startswith(FIXED_AT_START) and key != CPU_COUNT and (key, env[key]) != ("LANG", "C.UTF-8")
    ]
    if _link is None or arguments is None or changed:
        return None
    request = json.dumps({"arguments": arguments, "env": env, "cwd": cwd}).encode()
    if len(request) > MAX_REQUEST_BYTES:
        return None
    parent_end, child_end = socket.socketpair()
    try:
        with child_end:
            socket.send_fds(_link, [request], [child_end.fileno()])
        parent_end.settimeout(ANSWER_TIMEOUT_S)
        return ForkedKernel(int(_line(parent_end)), parent_end)
    except (OSError, ValueError):
        parent_end.close()  # also ends a kernel that is forked late
        return None


def _line(sock: socket.socket) -> bytes:
    """Read a line byte by byte: lines are short, and nothing after them may be consumed."""
    line = b""
    while not line.endswith(b"\n"):
        data = sock.recv(1)
        if not data:
            break
        line += data
    return line


class ForkedKernel:
    """A kernel that is not a child of this process, with Jupyter's subset of `subprocess.Popen`."""

    stdin = stdout = stderr = None

    def __init__(self, pid: int, status: socket.socket) -> None:
        self.pid = pid
        self.returncode: int | None = None
        self._status = status
        self._pidfd = os.pidfd_open(pid)

    def poll(self) -> int | None:
        """Return the exit code, or None while the kernel runs."""
        return self._poll_exit(0)

    def wait(self, timeout: float | None = None) -> int:
        """Wait until the kernel has ended. Raises `TimeoutError`."""
        code = self._poll_exit(timeout)
        if code is None:
            raise TimeoutError(f"kernel {self.pid} is still running")
        return code

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            signal.pidfd_send_signal(self._pidfd, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def _poll_exit(self, timeout_s: float | None) -> int | None:
        if self.returncode is None and select.select([self._pidfd], [], [], timeout_s)[0]:
            self._status.settimeout(ANSWER_TIMEOUT_S)
            try:
                self.returncode = int(_line(self._status))
            except (OSError, ValueError):
                self.returncode = -signal.SIGKILL  # kernel server ended too: code unknown
            self._status.close()
            os.close(self._pidfd)
        return self.returncode
