"""Runs the agent in gVisor: the part that starts it outside, and the first step inside.

Standard library only, Python 3.9 or newer. `agent.py --around-gvisor LISTENER PORT COUNTER RUNSC [ARGUMENT…]`
runs in bubblewrap's sandbox. It forwards connections of LISTENER, a listening Unix socket inherited from the
driver, to PORT, where the app will listen, and counts the forwarded bytes in the file COUNTER for the agent.
It runs RUNSC, which starts the agent in gVisor, forwards SIGTERM to the agent, and ends with RUNSC. It also
holds other inherited descriptors, such as the lock that marks the workspace as alive.

RUNSC starts `agent.py --inside-gvisor UID CONFIG`. Inside, files of the workspace's user belong to user 0. A
user namespace maps them to UID, without additional rights, and the agent is executed in it.
"""

# ruff: noqa: PTH123, S606, UP031

from __future__ import annotations

import ctypes
import os
import platform
import signal
import struct
import sys
from mmap import mmap

from .app_listener import COUNTER_BYTES, become_relay

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import FrameType

CLONE_NEWUSER = 0x10000000
PR_SET_NO_NEW_PRIVS, PR_SET_SECCOMP, SECCOMP_MODE_FILTER = 38, 22, 2
LOAD_NUMBER, EQUAL, RETURN = (0x20, 0, 0, 0), 0x15, 0x06
ALLOW, NOT_SUPPORTED = 0x7FFF0000, 0x00050000 + 95
# lgetxattr and llistxattr: for links gVisor returns EBADF, which `ls -l` reports as an error.
XATTR_OF_LINKS = {"x86_64": (192, 195), "aarch64": (9, 12)}


def run_around(arguments: list[str]) -> int:
    """Run the outer part described above until runsc has ended; return its exit code."""
    listener, port, argv = int(arguments[0]), int(arguments[1]), arguments[3:]
    lifeline, write_end = os.pipe()
    passed = counter(arguments[2])
    relay = start_relay(listener, port, lifeline, write_end, passed)
    runsc, ending = start(argv), 0

    def on_term(_number: int, _frame: FrameType | None) -> None:
        nonlocal ending
        ending = ending or start(termination(argv))

    signal.signal(signal.SIGTERM, on_term)
    signal.signal(signal.SIGINT, on_term)
    while True:
        pid, status = os.waitpid(-1, 0)
        if pid == runsc:
            os.close(write_end)  # ends the relay
            return os.WEXITSTATUS(status) if os.WIFEXITED(status) else 128 + os.WTERMSIG(status)
        if pid == ending:
            ending = 0  # a request that comes too early has no effect; the requester repeats it
        if pid == relay:
            relay = start_relay(listener, port, lifeline, write_end, passed)


def counter(path: str) -> memoryview:
    """Create a shared counter in a new file. Raises `OSError`.

    Created before anything of the workspace runs, and kept mapped: later changes to the file name have no
    effect.
    """
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
    try:
        os.ftruncate(descriptor, COUNTER_BYTES)
        return memoryview(mmap(descriptor, COUNTER_BYTES)).cast("Q")
    finally:
        os.close(descriptor)


def termination(argv: list[str]) -> list[str]:
    """Return the command that sends SIGTERM to the agent started by `argv`, `runsc … run … ID`.

    SIGTERM to runsc itself would kill everything in it.
    """
    return [*argv[: argv.index("run")], "kill", argv[-1], "TERM"]


def start_relay(listener: int, port: int, lifeline: int, write_end: int, passed: memoryview) -> int:
    """Fork the relay process; it ends when `write_end` has been closed."""
    pid = os.fork()
    if pid == 0:
        os.close(write_end)
        become_relay(listener, port, lifeline, passed)
    return pid


def start(argv: list[str]) -> int:
    """Start runsc with only its output open and an empty environment."""
    pid = os.fork()
    if pid == 0:
        try:
            os.closerange(3, os.sysconf("SC_OPEN_MAX"))
            os.execve(argv[0], argv, {})
        except BaseException as error:
            os.write(2, ("berth: %s: %s\n" % (argv[0], error)).encode())
        finally:
            os._exit(127)
    return pid


def run_inside(arguments: list[str], program: str) -> None:
    """Map the user to UID, then execute the agent. Raises `OSError`; otherwise never returns."""
    uid, config = int(arguments[0]), arguments[1]
    libc = ctypes.CDLL(None, use_errno=True)
    check(libc.unshare(CLONE_NEWUSER), "unshare user")
    for name, text in (("uid_map", "%d 0 1" % uid), ("gid_map", "%d 0 1" % uid)):
        with open("/proc/self/%s" % name, "w", encoding="ascii") as handle:
            handle.write(text)  # gVisor does not require writing setgroups first
    check(libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), "no new privileges")
    reject_link_xattrs(libc)
    # Executing as a user other than 0 drops the capabilities of the new namespace.
    os.execv(sys.executable, [sys.executable, "-I", "-S", program, config])


def reject_link_xattrs(libc: ctypes.CDLL) -> None:
    """Make gVisor answer “not supported” instead of a wrong error. A convenience, not a protection."""
    numbers = XATTR_OF_LINKS.get(platform.machine(), ())
    code = [LOAD_NUMBER]
    code += [(EQUAL, len(numbers) - place, 0, number) for place, number in enumerate(numbers)]
    code += [(RETURN, 0, 0, ALLOW), (RETURN, 0, 0, NOT_SUPPORTED)]
    program = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *instruction) for instruction in code))
    header = struct.pack("HP", len(code), ctypes.addressof(program))
    check(libc.prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, header, 0, 0), "filter")


def check(result: int, action: str) -> None:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, "%s: %s" % (action, os.strerror(number)))
