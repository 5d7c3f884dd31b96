"""Provides a proxy (`egress_proxy.py`) on the loopback of a network namespace. Standard library only.

The listening socket is created in the namespace on a port below 1024, so no program inside can have taken it.
The proxy that serves it runs outside, in its own session, and ends with the sandbox.

Run as `python -I -S proxy_inside.py MARK` with a plan as JSON on standard input: `pid` and `start_ticks` of a
process of the sandbox, `port`, `log` (a file), and the plan of `egress_proxy.py` without `listener` and
`watched`. MARK is a path that identifies the proxy among processes. Exits with 0 once the socket listens,
otherwise with another code and the reason on standard error.
"""

# ruff: noqa: PTH120, PTH123, S606 - pathlib would double the time that this program takes to start

from __future__ import annotations

import ctypes
import fcntl
import json
import os
import socket
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:  # `typing` is slow to import
    from typing import Any

CLONE_NEWUSER, CLONE_NEWNET = 0x10000000, 0x40000000
NS_GET_USERNS = 0xB701
BACKLOG = 128

libc = ctypes.CDLL(None, use_errno=True)


def setns(descriptor: int, kind: int, name: str) -> None:
    if libc.setns(descriptor, kind) < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"setns {name}: {os.strerror(number)}")


def listener_in(network: int, port: int) -> int:
    """Return a socket that listens on 127.0.0.1:`port` of the open network namespace. Raises `OSError`.

    A child creates it inside the namespace, with the rights of the user namespace that owns it.
    """
    owner = fcntl.ioctl(network, NS_GET_USERNS)
    local_end, app_end = socket.socketpair()
    child = os.fork()
    if child == 0:
        try:
            setns(owner, CLONE_NEWUSER, "user")
            setns(network, CLONE_NEWNET, "net")
            listener = socket.socket()
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind(("127.0.0.1", port))
            listener.listen(BACKLOG)
            socket.send_fds(app_end, [b"x"], [listener.fileno()])
            os._exit(0)
        except OSError as error:
            print(error, file=sys.stderr, flush=True)
        finally:
            os._exit(1)
    app_end.close()
    with local_end:
        _, descriptors, _, _ = socket.recv_fds(local_end, 1, 1)
    os.waitpid(child, 0)
    if not descriptors:
        raise OSError("could not create the proxy's socket")
    return descriptors[0]


def become_proxy(plan: dict[str, Any], mark: str) -> None:
    """Execute the proxy. Never returns."""
    try:
        os.setsid()
        log = os.open(plan["log"], os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW, 0o600)
        file = os.memfd_create("plan", 0)
        os.write(file, json.dumps(plan).encode())
        os.lseek(file, 0, os.SEEK_SET)
        os.dup2(file, 0)
        os.dup2(log, 1)
        os.dup2(log, 2)
        for name in ("listener", "watched"):
            os.set_inheritable(plan[name], True)
        program = os.path.join(os.path.dirname(os.path.abspath(__file__)), "egress_proxy.py")  # noqa: PTH100, PTH118
        os.execve(sys.executable, [sys.executable, "-I", "-S", program, mark], {})
    finally:
        os._exit(1)


def main() -> None:
    plan = json.loads(sys.stdin.buffer.read())
    network = os.open(f"/proc/{plan['pid']}/ns/net", os.O_RDONLY | os.O_CLOEXEC)
    plan["watched"] = os.pidfd_open(plan["pid"])
    with open(f"/proc/{plan['pid']}/stat", errors="replace") as handle:
        text = handle.read()
    if int(text[text.rfind(")") + 2 :].split()[19]) != plan["start_ticks"]:
        raise ProcessLookupError("the sandbox has ended")
    plan["listener"] = listener_in(network, plan["port"])
    if os.fork() == 0:
        become_proxy(plan, sys.argv[1])


if __name__ == "__main__":
    try:
        main()
    except (OSError, KeyError, ValueError) as error:
        print(error, file=sys.stderr, flush=True)
        os._exit(1)
    os._exit(0)
