"""Attacks from a workspace on the kernel: privileged and new system calls."""

from __future__ import annotations

import errno
import json
import platform
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from provisioning.drivers.local.isolation import probe
from provisioning.drivers.local.seccomp.profile import MACHINES, numbers
from tests.provisioning.local.local_support import Pool, ask, filters_of
from tests.provisioning.local.proc_support import open_descriptors

NUMBERS = numbers(MACHINES[platform.machine()]) if platform.machine() in MACHINES else {}
BAD = 0xFFFF_FFFF  # flags unknown to every kernel
NEW_USER, NEW_NET, NEW_NS = 0x10000000, 0x40000000, 0x00020000
AF_ALG, AF_VSOCK = 38, 40
PTRACE_ATTACH = 16
CHILD_IN_NEW_USER = NEW_USER | signal.SIGCHLD

# With arguments for which the unfiltered kernel would usually not return EPERM.
ATTEMPTS: list[tuple[str, list[int]]] = [
    ("io_uring_setup", [1, 0]),
    ("io_uring_enter", [-1, 0, 0, 0, 0]),
    ("io_uring_register", [-1, 0, 0, 0]),
    ("bpf", [BAD, 0, 0]),
    ("perf_event_open", [0, 0, -1, -1, BAD]),
    ("userfaultfd", [BAD]),
    ("userfaultfd", [1]),  # faults of own memory only, permitted
    ("keyctl", [BAD, 0, 0, 0, 0]),
    ("keyctl", [0, -3, 1]),  # the id of the own session keyring
    ("add_key", [0, 0, 0, 0, -3]),
    ("request_key", [0, 0, 0, 0]),
    ("unshare", [NEW_USER]),
    ("unshare", [NEW_USER | NEW_NET]),
    ("unshare", [NEW_NS]),
    ("unshare", [0]),
    ("clone", [CHILD_IN_NEW_USER, 0, 0, 0, 0]),
    ("clone", [CHILD_IN_NEW_USER | 1 << 40, 0, 0, 0, 0]),
    ("setns", [-1, 0]),
    ("mount", [0, 0, 0, 0, 0]),
    ("umount2", [0, BAD]),
    ("pivot_root", [0, 0]),
    ("chroot", [0]),
    ("fsopen", [0, 0]),
    ("open_tree", [-1, 0, BAD]),
    ("move_mount", [-1, 0, -1, 0, BAD]),
    ("mount_setattr", [-1, 0, BAD, 0, 0]),
    ("kexec_load", [0, 0, 0, BAD]),
    ("kexec_file_load", [-1, -1, 0, 0, BAD]),
    ("init_module", [0, 0, 0]),
    ("finit_module", [-1, 0, BAD]),
    ("delete_module", [0, 0]),
    ("open_by_handle_at", [-1, 0, 0]),
    ("personality", [0x0040000]),  # disables address randomization
    ("personality", [0x0400000]),  # makes all memory executable
    ("swapon", [0, 0]),
    ("reboot", [0, 0, 0, 0]),
    ("syslog", [10, 0, 0]),
    ("fanotify_init", [0, 0]),
    ("kcmp", [0, 0, BAD, 0, 0]),
    ("move_pages", [0, 0, 0, 0, 0, BAD]),
    ("process_madvise", [-1, 0, 0, 0, 0]),
    ("socket", [AF_ALG, 5, 0]),
    ("socket", [AF_ALG | 1 << 32, 5, 0]),
    ("socket", [AF_VSOCK, 1, 0]),
]

CALL = """
import ctypes, json, os, sys
libc = ctypes.CDLL(None, use_errno=True)
answers = []
for number, arguments in json.loads(sys.argv[1]):
    ctypes.set_errno(0)
    result = libc.syscall(ctypes.c_long(number), *[ctypes.c_long(one) for one in arguments])
    if result == 0 and number == int(sys.argv[2]):
        os._exit(9)  # in a child that must not be
    answers.append([result, ctypes.get_errno()])
print(json.dumps(answers))
"""


@pytest.fixture(scope="module")
def workspace(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Pool, Any, Any]]:
    """A pool and its workspace with its observation."""
    if not probe().bwrap:
        pytest.skip(f"no working bubblewrap here: {probe().reason}")
    assert probe().seccomp, probe().seccomp_reason
    pool = Pool(tmp_path_factory.mktemp("calls"))
    spec = pool.spec()
    seen = pool.run(spec)
    yield pool, spec, seen
    pool.close()


@pytest.fixture
def inside(workspace: Any) -> Callable[..., list[Any]]:
    """Run a Python program in the workspace. Returns exit code, output and errors."""

    def run(code: str, *arguments: str) -> list[Any]:
        argv = f"[sys.executable, '-c', {code!r}, *{arguments!r}]"
        expression = (
            "(lambda done: [done.returncode, done.stdout, done.stderr])(__import__('subprocess').run("
            f"{argv}, capture_output=True, text=True, timeout=60))"
        )
        found = ask(workspace[2], expression)
        assert isinstance(found, list), found
        return found

    return run


def calls(inside: Any, attempts: list[tuple[int, list[int]]]) -> list[list[int]]:
    code, said, complaint = inside(CALL, json.dumps(attempts), str(NUMBERS["clone"]))
    assert code == 0, complaint
    return [list(load) for load in json.loads(said)]


def works(inside: Any, code: str, *arguments: str) -> None:
    code_, said, complaint = inside(code, *arguments)
    assert (code_, said.split()[-1:]) == (0, ["worked"]), complaint


# --- refused calls --------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "arguments"), ATTEMPTS, ids=lambda value: str(value))
def test_system_call_is_refused(inside: Any, name: str, arguments: list[int]) -> None:
    assert calls(inside, [(NUMBERS[name], arguments)]) == [[-1, errno.EPERM]]


def test_clone3_returns_enosys(inside: Any) -> None:
    assert calls(inside, [(NUMBERS["clone3"], [0, 0])]) == [[-1, errno.ENOSYS]]


def test_unknown_system_calls_return_enosys(inside: Any) -> None:
    attempts = [(number, [BAD] * 6) for number in (467, 468, 469, 500, 1000, 0x3FFFFFFF)]
    assert calls(inside, attempts) == [[-1, errno.ENOSYS]] * len(attempts)


def test_x32_system_calls_return_enosys(inside: Any) -> None:
    attempts = [(0x40000000 + number, [0] * 6) for number in (*range(1, 40), 425, 512, 520, 547)]
    assert calls(inside, attempts) == [[-1, errno.ENOSYS]] * len(attempts)


@pytest.mark.skipif(platform.machine() != "x86_64", reason="int 0x80 is of this architecture")
def test_32_bit_system_call_kills_the_process(inside: Any) -> None:
    program = """
import ctypes, mmap
page = mmap.mmap(-1, 4096, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
page.write(b"\\xb8" + (20).to_bytes(4, "little") + b"\\xcd\\x80\\xc3")  # getpid
address = ctypes.addressof(ctypes.c_char.from_buffer(page))
print("begun", flush=True)
ctypes.CFUNCTYPE(ctypes.c_int)(address)()
print("came back")
"""
    code, said, _ = inside(program)
    assert said == "begun\n"
    # A kernel without 32-bit support ends it differently.
    assert code in (-signal.SIGSYS, -signal.SIGSEGV)


def test_process_outside_cannot_be_traced(inside: Any) -> None:
    outside = int(Path("/proc/self").readlink().name)
    attempts = [(NUMBERS["ptrace"], [PTRACE_ATTACH, outside, 0, 0]), (NUMBERS["pidfd_open"], [outside, 0])]
    assert calls(inside, attempts) == [[-1, errno.ESRCH]] * 2


def test_seccomp_filter_cannot_be_removed(inside: Any, workspace: Any) -> None:
    """Another filter can only restrict it, also in a new program."""
    program = """
import ctypes, struct, subprocess, sys
libc = ctypes.CDLL(None, use_errno=True)
allow = ctypes.create_string_buffer(struct.pack("<HBBI", 6, 0, 0, 0x7FFF0000), 8)
class Program(ctypes.Structure):
    _fields_ = [("length", ctypes.c_ushort), ("filter", ctypes.c_void_p)]
program = Program(1, ctypes.addressof(allow))
assert libc.prctl(22, 2, ctypes.byref(program), 0, 0) == 0
assert libc.prctl(22, 0, 0, 0, 0) == -1 and libc.prctl(38, 0, 0, 0, 0) == -1
code = "import ctypes; l = ctypes.CDLL(None, use_errno=True); l.syscall(%s, 1, 0); print(ctypes.get_errno())"
print(subprocess.run([sys.executable, "-c", code % sys.argv[1]], capture_output=True, text=True).stdout)
"""
    code, said, complaint = inside(program, str(NUMBERS["io_uring_setup"]))
    assert (code, said.strip()) == (0, str(errno.EPERM)), complaint


def test_seccomp_filter_applies_to_every_process(workspace: Any) -> None:
    pool, spec, seen = workspace
    found = filters_of(pool, spec)
    assert len(found) >= 4 and set(found.values()) == {"2"}  # bubblewrap, the agent, its relay, the app
    assert ask(seen, "open('/proc/self/status').read().count('NoNewPrivs:\\t1')") == 1


def test_filter_file_is_not_accessible_inside(workspace: Any) -> None:
    pool, spec, seen = workspace
    (file,) = (pool.home / "local" / ".seccomp").iterdir()
    assert file.stat().st_mode & 0o077 == 0
    for pid in filters_of(pool, spec):
        assert str(file) not in open_descriptors(pid)
    assert ask(seen, f"os.path.exists({str(file)!r})") is False


# --- permitted calls ------------------------------------------------------------------------------


def test_processes_threads_and_shared_memory_work(inside: Any) -> None:
    """As program files, as `spawn` requires."""
    program = """
import multiprocessing, sys, threading
from multiprocessing import shared_memory
def double(number):
    return 2 * number
def fill(name):
    block = shared_memory.SharedMemory(name)
    block.buf[:2] = b"ok"
    block.close()
if __name__ == "__main__":
    for way in ("fork", "spawn", "forkserver"):
        context = multiprocessing.get_context(way)
        with context.Pool(2) as pool:
            assert pool.map(double, range(4)) == [0, 2, 4, 6]
        block = shared_memory.SharedMemory(create=True, size=16)
        child = context.Process(target=fill, args=(block.name,))
        child.start()
        child.join()
        assert bytes(block.buf[:2]) == b"ok" and child.exitcode == 0
        block.close()
        block.unlink()
    threads = [threading.Thread(target=double, args=(1,)) for _ in range(32)]
    [one.start() for one in threads]
    [one.join() for one in threads]
    print("worked")
"""
    works(
        inside,
        "import subprocess, sys; open('/tmp/program.py', 'w').write(sys.argv[1]);"
        "sys.exit(subprocess.run([sys.executable, '/tmp/program.py']).returncode)",
        program,
    )


def test_programs_and_terminals_work(inside: Any) -> None:
    works(
        inside,
        """
import asyncio, os, pty, subprocess, sys
assert subprocess.run(["bash", "-c", "echo $((6 * 7)) | cat"], capture_output=True).stdout == b"42\\n"
pid, terminal = pty.fork()
if pid == 0:
    os.execvp("bash", ["bash", "-c", "tty; stty size"])
said = b""
while True:
    try:
        part = os.read(terminal, 4096)
    except OSError:
        break
    if not part:
        break
    said += part
assert b"/dev/pts/" in said and os.waitpid(pid, 0)[1] == 0
async def run():
    process = await asyncio.create_subprocess_exec("true")
    return await process.wait()
assert asyncio.run(run()) == 0
print("worked")
""",
    )


def test_debuggers_reach_processes_of_the_workspace(inside: Any) -> None:
    """Like gdb (ptrace), py-spy and NCCL (process_vm_readv), from a parent to its child."""
    works(
        inside,
        """
import ctypes, os, signal, sys
libc = ctypes.CDLL(None, use_errno=True)
libc.ptrace.argtypes = [ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p]
libc.ptrace.restype = ctypes.c_long
word = ctypes.c_long(0x1234)
child = os.fork()
if child == 0:
    signal.pause()
class Piece(ctypes.Structure):
    _fields_ = [("base", ctypes.c_void_p), ("length", ctypes.c_size_t)]
got = ctypes.c_long()
there, here = Piece(ctypes.addressof(word), 8), Piece(ctypes.addressof(got), 8)
one = ctypes.c_ulong(1)
read = libc.process_vm_readv(child, ctypes.byref(here), one, ctypes.byref(there), one, 0)
assert (read, got.value) == (8, 0x1234), ctypes.get_errno()
assert libc.ptrace(16, child, None, None) == 0, ctypes.get_errno()
os.waitpid(child, 0)
assert libc.ptrace(1, child, ctypes.addressof(word), None) == 0x1234
assert libc.ptrace(17, child, None, None) == 0
null = os.open("/dev/null", os.O_RDONLY)
pidfd = os.pidfd_open(child)
copy = libc.syscall(ctypes.c_long(int(sys.argv[1])), pidfd, 1, 0)
assert copy >= 0, ctypes.get_errno()
signal.pidfd_send_signal(pidfd, signal.SIGKILL)
os.waitpid(child, 0)
print("worked")
""",
        str(NUMBERS["pidfd_getfd"]),
    )


def test_calls_of_numeric_and_gpu_libraries_work(inside: Any) -> None:
    """Pinned, anonymous and huge memory, barriers, affinity, System V segments, asynchronous reads."""
    works(
        inside,
        """
import ctypes, json, mmap, os, socket, sys
libc = ctypes.CDLL(None, use_errno=True)
numbers = json.loads(sys.argv[1])
def call(name, *arguments):
    result = libc.syscall(ctypes.c_long(numbers[name]), *[ctypes.c_long(one) for one in arguments])
    assert result >= 0, (name, os.strerror(ctypes.get_errno()))
    return result
page = mmap.mmap(-1, 1 << 16)
address = ctypes.addressof(ctypes.c_char.from_buffer(page))
call("mlock", address, 4096)
call("munlock", address, 4096)
call("madvise", address, 1 << 16, 14)
call("membarrier", 0, 0, 0)
assert os.sched_getaffinity(0)
os.sched_setaffinity(0, os.sched_getaffinity(0))
memory = os.memfd_create("shared")
os.ftruncate(memory, 4096)
ours, theirs = socket.socketpair()
socket.send_fds(ours, [b"x"], [memory])
assert os.fstat(socket.recv_fds(theirs, 1, 1)[1][0]).st_size == 4096
segment = call("shmget", 0, 4096, 0o1600)
libc.shmat.restype = ctypes.c_void_p
assert libc.shmat(segment, None, 0) not in (None, ctypes.c_void_p(-1).value)
call("shmctl", segment, 0, 0)
context = ctypes.c_ulong()
call("io_setup", 8, ctypes.addressof(context))
call("io_destroy", context.value)
call("prctl", 15, address, 0, 0, 0)
call("getrandom", address, 16, 0)
call("prlimit64", 0, 7, 0, address)
call("eventfd2", 0, 0)
for family, kind in ((socket.AF_INET, socket.SOCK_STREAM), (socket.AF_INET6, socket.SOCK_DGRAM), (16, 3)):
    socket.socket(family, kind).close()
print("worked")
""",
        json.dumps(NUMBERS),
    )
