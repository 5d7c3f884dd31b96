"""The seccomp filter, run by an interpreter for each architecture and every call."""

from __future__ import annotations

import copy
import json
import struct
from collections.abc import Iterator
from typing import Any

import pytest
from local_support import filters_of

from provisioning.drivers.local import isolation, start
from provisioning.drivers.local.isolation import SandboxProbe
from provisioning.drivers.local.seccomp import bpf, filters, profile
from provisioning.drivers.local.seccomp.bpf import Compare, Comparison, FilterRules, Rule
from provisioning.drivers.local.seccomp.profile import MACHINES, numbers
from provisioning.errors import MissingDependency, ProvisioningError

ALLOW, KILL, EPERM, ENOSYS = 0x7FFF0000, 0x80000000, 0x00050001, 0x00050026
AUDIT = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
I386, ARM, RISCV = 0x40000003, 0x40000028, 0xC00000F3
NEW_NAMESPACES = (0x00020000, 0x02000000, 0x04000000, 0x08000000, 0x10000000, 0x20000000, 0x40000000)
MODERN = "6.1.0-18-amd64"
GARBAGE = 1 << 32


def run(program: bytes, architecture: int, number: int, *arguments: int) -> int:
    """Return the verdict of the kernel: classic BPF over a struct seccomp_data."""
    padded = [*arguments, *[0] * (6 - len(arguments))]
    data = struct.pack("<IIQ6Q", number & 0xFFFFFFFF, architecture, 0, *padded)
    code = list(struct.iter_unpack("<HBBI", program))
    accumulator, at = 0, 0
    while True:
        operation, when_true, when_false, constant = code[at]
        at += 1
        if operation == 0x20:
            assert constant % 4 == 0 and constant < len(data)
            (accumulator,) = struct.unpack_from("<I", data, constant)
        elif operation == 0x54:
            accumulator &= constant
        elif operation == 0x06:
            return int(constant)
        elif operation == 0x05:
            at += constant
        else:
            holds = {
                0x15: accumulator == constant,
                0x25: accumulator > constant,
                0x35: accumulator >= constant,
            }[operation]
            at += when_true if holds else when_false


def program_for(machine: str, release: str = MODERN) -> bytes:
    return bpf.compile_rules(profile.rules(MACHINES[machine], release))


@pytest.fixture(params=sorted(MACHINES))
def machine(request: pytest.FixtureRequest) -> str:
    return str(request.param)


class Kernel:
    """Runs the filter for calls by name."""

    def __init__(self, machine: str, release: str = MODERN) -> None:
        self.program, self.architecture = program_for(machine, release), AUDIT[machine]
        self.numbers = numbers(MACHINES[machine])

    def __call__(self, name: str, *arguments: int) -> int:
        return run(self.program, self.architecture, self.numbers[name], *arguments)


@pytest.fixture
def kernel(machine: str) -> Kernel:
    return Kernel(machine)


def test_unconditional_calls_match_the_profile(machine: str, kernel: Kernel) -> None:
    entries = json.loads(profile.PROFILE.read_text())["syscalls"]
    own = {"x86_64": "amd64", "aarch64": "arm64"}[machine]
    allowed = {
        name
        for entry in entries
        if entry["action"] == "SCMP_ACT_ALLOW"
        and not entry.get("args")
        and "caps" not in entry.get("includes", {})
        and own in entry.get("includes", {}).get("arches", [own])
        for name in entry["names"]
    } | {"pidfd_getfd"}
    assert len(allowed) > 350
    seen = 0
    for name, number in kernel.numbers.items():
        if name in ("clone", "personality", "socket"):
            continue
        expected = ALLOW if name in allowed else ENOSYS if name == "clone3" or number > 466 else EPERM
        assert kernel(name) == expected, name
        assert kernel(name, *[(1 << 64) - 1] * 6) == expected, name
        seen += 1
    assert seen > 300
    gaps = set(range(467)) - set(kernel.numbers.values())
    assert gaps and {run(kernel.program, kernel.architecture, number) for number in gaps} == {EPERM}


@pytest.mark.parametrize(
    "name",
    [
        "io_uring_setup", "io_uring_enter", "io_uring_register", "bpf", "perf_event_open", "userfaultfd",
        "keyctl", "add_key", "request_key", "unshare", "setns", "mount", "umount2", "pivot_root", "chroot",
        "fsopen", "fsconfig", "fsmount", "fspick", "open_tree", "move_mount", "mount_setattr", "kexec_load",
        "kexec_file_load", "init_module", "finit_module", "delete_module", "open_by_handle_at", "swapon",
        "swapoff", "reboot", "syslog", "acct", "quotactl", "settimeofday", "clock_settime", "kcmp",
        "fanotify_init", "sethostname", "setdomainname", "vhangup", "move_pages", "process_madvise",
    ],
)  # fmt: skip
def test_filter_refuses_the_call(kernel: Kernel, name: str) -> None:
    assert kernel(name) == EPERM


@pytest.mark.parametrize(
    "name",
    [
        "read", "execve", "exit_group", "futex", "mmap", "mprotect", "ptrace", "process_vm_readv",
        "process_vm_writev", "pidfd_open", "pidfd_getfd", "pidfd_send_signal", "memfd_create", "mlock",
        "mlock2", "membarrier", "ioctl", "shmget", "shmat", "sched_setaffinity", "rseq", "seccomp", "prctl",
        "prlimit64", "sendmsg", "recvmsg", "landlock_restrict_self", "io_setup", "statx", "faccessat2",
        "close_range",
    ],
)  # fmt: skip
def test_filter_allows_the_call(kernel: Kernel, name: str) -> None:
    assert kernel(name) == ALLOW


def test_clone_allows_processes_and_threads_but_no_namespaces(kernel: Kernel) -> None:
    fork, thread, vfork = 0x01200011, 0x003D0F00, 0x4111
    for flags in (fork, thread, vfork):
        assert kernel("clone", flags) == ALLOW
        for namespace in NEW_NAMESPACES:
            assert kernel("clone", flags | namespace) == EPERM
            assert kernel("clone", flags | namespace | GARBAGE) == EPERM
    assert kernel("clone3") == ENOSYS  # the C library falls back to `clone`


def test_blocked_socket_families_ignore_upper_bits(kernel: Kernel) -> None:
    for family in (1, 2, 10, 16, 17, 37, 39, 41, 45):
        assert kernel("socket", family) == ALLOW
        assert kernel("socket", family | GARBAGE) == ALLOW  # the kernel reads 32 bits
    for family in (38, 40):  # AF_ALG, AF_VSOCK
        assert kernel("socket", family) == EPERM
        assert kernel("socket", family | GARBAGE) == EPERM


def test_only_linux_personalities_are_allowed(kernel: Kernel) -> None:
    for value in (0, 8, 0x20000, 0x20008, 0xFFFFFFFF):
        assert kernel("personality", value) == ALLOW
    for value in (1, 0x40000, 0x0400000, 0x4000000, 0xFFFFFFFE):
        assert kernel("personality", value) == EPERM


def test_other_calling_conventions_are_refused(machine: str, kernel: Kernel) -> None:
    other = {AUDIT["x86_64"], AUDIT["aarch64"], I386, ARM, RISCV} - {AUDIT[machine]}
    for architecture in other:
        assert {run(kernel.program, architecture, number) for number in range(600)} == {KILL}
    x32 = 0x40000000
    assert {run(kernel.program, AUDIT[machine], x32 + number) for number in range(600)} == {ENOSYS}
    assert run(kernel.program, AUDIT[machine], -1) == ENOSYS


def test_unknown_newer_calls_return_enosys(machine: str, kernel: Kernel) -> None:
    """The C library then falls back to older calls; EPERM would be an error."""
    newest = kernel.numbers["removexattrat"]
    assert run(kernel.program, AUDIT[machine], newest) == ALLOW
    assert {run(kernel.program, AUDIT[machine], number) for number in range(newest + 1, 1000)} == {ENOSYS}


def test_ptrace_is_refused_on_old_kernels(machine: str) -> None:
    for release, expected in (("4.7.10", EPERM), ("4.8.0", ALLOW), ("10.0-rc1", ALLOW)):
        assert Kernel(machine, release)("ptrace") == expected
        assert Kernel(machine, release)("process_vm_readv") == expected


@pytest.mark.parametrize(
    ("compare", "value", "mask", "held", "missed"),
    [
        (Compare.EQ, 5, 0, [5], [4, 6]),
        (Compare.NE, 5, 0, [4, 6], [5]),
        (Compare.LT, 5, 0, [0, 4], [5, 6]),
        (Compare.LE, 5, 0, [4, 5], [6]),
        (Compare.GT, 5, 0, [6], [4, 5]),
        (Compare.GE, 5, 0, [5, 6], [4]),
        (Compare.MASKED_EQ, 4, 6, [4, 5, 12], [2, 6]),
    ],
)
def test_each_comparison_alone_and_combined(
    compare: Compare, value: int, mask: int, held: list[int], missed: list[int]
) -> None:
    tested = Comparison(1, compare, value, mask)
    both = FilterRules(
        architecture=AUDIT["x86_64"],
        calls={
            3: (Rule(ALLOW, (tested,)), Rule(ENOSYS, (Comparison(0, Compare.EQ, 9),))),
            4: (Rule(ALLOW, (tested, Comparison(0, Compare.EQ, 9))),),
        },
        default=EPERM,
        newest=5,
        unknown=ENOSYS,
    )
    program = bpf.compile_rules(both)

    def ask(number: int, *arguments: int) -> int:
        return run(program, AUDIT["x86_64"], number, *arguments)

    assert [ask(3, 0, one) for one in held] == [ALLOW] * len(held)
    assert [ask(3, 0, one) for one in missed] == [EPERM] * len(missed)
    assert [ask(3, 9, one) for one in missed] == [ENOSYS] * len(missed)
    assert {ask(4, 9, one) for one in held} == {ALLOW} and {ask(4, 8, one) for one in held} == {EPERM}
    assert {ask(4, 9, one) for one in missed} == {EPERM}


def test_long_jumps_work_and_too_long_programs_are_refused() -> None:
    def many(number: int) -> FilterRules:
        calls = {one: (Rule(0x00050000 + one % 4000),) for one in range(number)}
        return FilterRules(AUDIT["x86_64"], calls, EPERM, number - 1, ENOSYS)

    program = bpf.compile_rules(many(1500))
    assert [run(program, AUDIT["x86_64"], one) for one in range(1500)] == [
        0x00050000 + n for n in range(1500)
    ]
    with pytest.raises(ValueError, match="limit is 4096"):
        bpf.compile_rules(many(3000))


@pytest.mark.parametrize(
    "change",
    [
        {"action": "SCMP_ACT_NOTIFY"},
        {"action": "SCMP_ACT_ERRNO", "errnoRet": None},
        {"names": ["read"], "action": "SCMP_ACT_ERRNO", "errnoRet": 1},
        {"includes": {"distributions": ["any"]}},
        {"includes": {"minKernel": "new"}},
        {"args": [{"index": 0, "value": 1 << 32, "op": "SCMP_CMP_EQ"}]},
        {"args": [{"index": 1, "value": 1, "op": "SCMP_CMP_EQ"}]},
        {"args": [{"index": 0, "value": 1, "op": "SCMP_CMP_ODD"}]},
        {
            "args": [
                {"index": 0, "value": 1, "op": "SCMP_CMP_GT"},
                {"index": 0, "value": 9, "op": "SCMP_CMP_LT"},
            ]
        },
    ],
    ids=lambda change: next(reversed(change)),
)
def test_unknown_parts_of_a_newer_profile_are_refused(
    change: dict[str, Any], tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    written = json.loads(profile.PROFILE.read_text())
    entry = next(copy.deepcopy(syscall) for syscall in written["syscalls"] if syscall["names"] == ["socket"])
    written["syscalls"].append({**entry, **change} if "names" not in change else change)
    monkeypatch.setattr(profile, "PROFILE", tmp_path / "profile.json")
    profile.PROFILE.write_text(json.dumps(written))
    with pytest.raises(ValueError):
        profile.rules(MACHINES["x86_64"], MODERN)


# --- use on a node --------------------------------------------------------------------------------


@pytest.fixture
def afresh(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Cached values of this machine are cleared before and after."""
    monkeypatch.setattr(isolation, "_known", {})
    made = filters.machine_filter
    made.cache_clear()
    yield
    made.cache_clear()


def test_filter_file_is_written_once_and_repaired(tmp_path: Any, afresh: None) -> None:
    found = filters.machine_filter()
    path = filters.file_of(tmp_path, found.digest)
    assert path.read_bytes() == found.program and path.stat().st_mode & 0o077 == 0
    before = path.stat()
    assert filters.file_of(tmp_path, found.digest) == path and path.stat() == before
    path.write_bytes(found.program[:-8])
    assert filters.file_of(tmp_path, found.digest).read_bytes() == found.program
    with pytest.raises(ValueError):
        filters.file_of(tmp_path, "0" * 64)


@pytest.mark.parametrize("broken", ["machine", "list"])
def test_missing_filter_is_refused_in_multi_user_mode_and_warned_of_otherwise(
    broken: str, make_pool: Any, sandbox: None, afresh: None, tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    if broken == "machine":
        monkeypatch.setattr(filters.platform, "machine", lambda: "riscv64")
    else:
        monkeypatch.setattr(profile, "PROFILE", tmp_path / "nothing.json")
    pool = make_pool()
    (node,) = pool.driver.inventory().nodes
    (warning,) = [one for one in node.warnings if "System calls" in one]
    assert ("riscv64" if broken == "machine" else "install Berth again") in warning
    monkeypatch.setenv("BERTH_MULTIUSER", "1")
    with pytest.raises(MissingDependency) as caught:
        pool.start(pool.spec())
    assert caught.value.code == "isolation_required" and "system call" in caught.value.message
    monkeypatch.delenv("BERTH_MULTIUSER")
    spec = pool.spec()
    pool.run(spec)
    assert set(filters_of(pool, spec).values()) == {"0"}


def test_kernel_refusing_the_filter_is_reported(sandbox: None, afresh: None, monkeypatch: Any) -> None:
    broken = filters.Filter(b"\x06\0\0\0\0\0\0\0" * 4097, "0" * 64)  # longer than any kernel accepts
    monkeypatch.setattr(filters, "machine_filter", lambda: broken)
    found = isolation.probe()
    assert found.bwrap and not found.seccomp
    assert "CONFIG_SECCOMP_FILTER" in found.seccomp_reason and found.seccomp_reason in found.warning


def test_both_warnings_are_reported() -> None:
    found = SandboxProbe("/usr/bin/bwrap", network_reason="No network.", seccomp_reason="No filter.")
    assert found.warning == "No network. No filter."


def test_unreadable_filter_prevents_starts(make_pool: Any, sandbox: None, monkeypatch: Any) -> None:
    pool = make_pool()
    missing = str(pool.home / "gone.bpf")
    monkeypatch.setattr(start, "filter_files", lambda base, probe: {"seccomp": missing})
    spec = pool.spec()
    with pytest.raises((ProvisioningError, OSError)):
        pool.start(spec)
    assert pool.pids(spec.ref) == []
