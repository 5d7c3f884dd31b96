"""The agent in gVisor: what starts it from the outside, and what comes first on the inside.

Standard library only, Python 3.9 or newer.
`agent.py --around-gvisor LISTENER PORT COUNTER RUNSC [ARGUMENT…]` runs in bubblewrap's sandbox. It joins the
connections of LISTENER, a listening Unix socket that the driver has passed on, to PORT, where the app will
listen, and keeps in the file COUNTER how many bytes it has passed on, for the agent to read; runs RUNSC,
which starts the agent in gVisor; has the agent end by SIGTERM when it gets that itself; and ends when RUNSC
has. It holds what else the driver has left open, the lock that says we live.

`agent.py --inside-gvisor UID CONFIG` is what RUNSC starts. Files of the workspace's user are those of user 0
in there; a user namespace makes them those of UID, without a right more, and the agent is executed in it.
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

from .way import COUNTER_BYTES, become_relay

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import FrameType

CLONE_NEWUSER = 0x10000000
PR_SET_NO_NEW_PRIVS, PR_SET_SECCOMP, SECCOMP_MODE_FILTER = 38, 22, 2
LOAD_NUMBER, EQUAL, RETURN = (0x20, 0, 0, 0), 0x15, 0x06
ALLOW, NOT_SUPPORTED = 0x7FFF0000, 0x00050000 + 95
# lgetxattr and llistxattr: of a link gVisor answers EBADF, which `ls -l` takes for an error.
XATTR_OF_LINKS = {"x86_64": (192, 195), "aarch64": (9, 12)}


def around(arguments: list[str]) -> int:
    """Run what is described above until runsc has ended; its exit code."""
    listener, port, argv = int(arguments[0]), int(arguments[1]), arguments[3:]
    lifeline, held = os.pipe()
    passed = counter(arguments[2])
    relay = start_relay(listener, port, lifeline, held, passed)
    runsc, ending = start(argv), 0

    def on_term(_number: int, _frame: FrameType | None) -> None:
        nonlocal ending
        ending = ending or start(termination(argv))

    signal.signal(signal.SIGTERM, on_term)
    signal.signal(signal.SIGINT, on_term)
    while True:
        pid, status = os.waitpid(-1, 0)
        if pid == runsc:
            os.close(held)  # the relay ends
            return os.WEXITSTATUS(status) if os.WIFEXITED(status) else 128 + os.WTERMSIG(status)
        if pid == ending:
            ending = 0  # asked too early, it did nothing, and whoever wants the end asks again
        if pid == relay:
            relay = start_relay(listener, port, lifeline, held, passed)


def counter(path: str) -> memoryview:
    """A number in a new file, which relays share. Raises `OSError`.

    Made before anything of the workspace runs, and held open: what becomes of the name later is nothing here.
    """
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
    try:
        os.ftruncate(descriptor, COUNTER_BYTES)
        return memoryview(mmap(descriptor, COUNTER_BYTES)).cast("Q")
    finally:
        os.close(descriptor)


def termination(argv: list[str]) -> list[str]:
    """The command that has the agent end what `argv`, `runsc … run … ID`, has started.

    runsc itself ends of SIGTERM, and everything in it with it.
    """
    return [*argv[: argv.index("run")], "kill", argv[-1], "TERM"]


def start_relay(listener: int, port: int, lifeline: int, held: int, passed: memoryview) -> int:
    """The process that joins connections; it ends when `held` has been closed."""
    pid = os.fork()
    if pid == 0:
        os.close(held)
        become_relay(listener, port, lifeline, passed)
    return pid


def start(argv: list[str]) -> int:
    """runsc, with nothing open but its output and with nothing in its environment."""
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


def inside(arguments: list[str], program: str) -> None:
    """Be user UID, then execute the agent. Raises `OSError`; never returns otherwise."""
    uid, config = int(arguments[0]), arguments[1]
    libc = ctypes.CDLL(None, use_errno=True)
    check(libc.unshare(CLONE_NEWUSER), "unshare user")
    for name, text in (("uid_map", "%d 0 1" % uid), ("gid_map", "%d 0 1" % uid)):
        with open("/proc/self/%s" % name, "w", encoding="ascii") as handle:
            handle.write(text)  # gVisor wants no word on setgroups first
    check(libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), "no new privileges")
    say_no_attributes_of_links(libc)
    # Executing as a user other than 0 leaves the capabilities behind that the new namespace gave.
    os.execv(sys.executable, [sys.executable, "-I", "-S", program, config])


def say_no_attributes_of_links(libc: ctypes.CDLL) -> None:
    """Have gVisor answer “not supported” where it would be wrong; a comfort, no protection."""
    numbers = XATTR_OF_LINKS.get(platform.machine(), ())
    code = [LOAD_NUMBER]
    code += [(EQUAL, len(numbers) - place, 0, number) for place, number in enumerate(numbers)]
    code += [(RETURN, 0, 0, ALLOW), (RETURN, 0, 0, NOT_SUPPORTED)]
    program = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *each) for each in code))
    header = struct.pack("HP", len(code), ctypes.addressof(program))
    check(libc.prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, header, 0, 0), "filter")


def check(result: int, what: str) -> None:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, "%s: %s" % (what, os.strerror(number)))
