"""Control groups: version 2 if a subtree is delegated, else version 1 if it is writable.

Support is tested, not inferred from mounts. A subtree counts only after a process was moved into it with
limits set, and a limit counts only if the group has its file.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from provisioning.drivers.local import delegation, process_limits, processes
from provisioning.types import LimitedResource

CPU_PERIOD_US = 100_000
FULL_WITHIN_BYTES = 1 << 20
"""A group that came this close to its limit counts as full: the kernel charges several pages at once."""
PROBE = "probe-"
V1_CONTROLLERS = V2_CONTROLLERS = ("memory", "cpu", "pids")
ROOT = delegation.ROOT
LIMIT_FILES = {
    LimitedResource.CPU: ("cpu.max", "cpu.cfs_quota_us"),
    LimitedResource.MEMORY: ("memory.max", "memory.limit_in_bytes"),
    LimitedResource.PROCESSES: ("pids.max",),
}
"""Files that exist in one of a workspace's groups if the resource is limited."""
RETRY_AFTER_S = 60.0
CONTROLLER_MISSING = "control groups of this user do not have that controller"


@dataclass(frozen=True, slots=True)
class CgroupHost:
    """Parents of workspaces' groups, and the limits that they enforce; `reason` explains missing limits.

    `version` 0: no usable groups.
    """

    version: int
    parents: tuple[Path, ...] = ()
    reason: str = ""
    holds: frozenset[LimitedResource] = frozenset()


_known: dict[tuple[str, Path], tuple[float, CgroupHost]] = {}
_trying = threading.Lock()


def detect(instance: str, root: Path = ROOT) -> CgroupHost:
    """Test and return where this instance can create groups.

    Cached by this process if every limit is enforced; otherwise tested again after a minute.
    """
    with _trying:
        cached = _known.get((instance, root))
        if cached and (not cached[1].reason or time.monotonic() - cached[0] < RETRY_AFTER_S):
            return cached[1]
        host = _try(instance, root)
        _known[instance, root] = (time.monotonic(), host)
        return host


def _try(instance: str, root: Path) -> CgroupHost:
    best = CgroupHost(0, reason="this user cannot write to any control group")
    for candidate, to_vacate in (
        *_candidates_v2(root),
        *((v1_host, None) for v1_host in _candidates_v1(root)),
    ):
        host = replace(candidate, parents=tuple(parent / f"berth-{instance}" for parent in candidate.parents))
        if to_vacate is not None:
            try:
                delegation.vacate(to_vacate)
            except OSError:
                continue
        holds = _enforced_limits(host)
        if len(holds) > len(best.holds) and LimitedResource.MEMORY in holds:
            best = replace(
                host, holds=holds, reason="" if len(holds) == len(LIMIT_FILES) else CONTROLLER_MISSING
            )
        if len(holds) == len(LIMIT_FILES):
            break
    return best


def paths(host: CgroupHost, name: str) -> tuple[Path, ...]:
    """Return the paths of the workspace's groups, whether they exist or not."""
    return tuple(parent / name for parent in host.parents)


def create(host: CgroupHost, name: str, *, cpu_milli: int, memory_mib: int) -> tuple[Path, ...]:
    """Create the workspace's groups with limits. On failure raises `OSError` and removes them."""
    groups = paths(host, name)
    try:
        for group in groups:
            _make_group(host.version, group)
            _limit(host.version, group, cpu_milli, memory_mib)
    except OSError:
        remove(groups)
        raise
    return groups


def limit(host: CgroupHost, groups: Sequence[Path], *, cpu_milli: int, memory_mib: int) -> None:
    """Set the limits of existing groups. Raises `OSError`, also if more memory is already in use."""
    for group in groups:
        _limit(host.version, group, cpu_milli, memory_mib)


def remove(groups: Sequence[Path]) -> bool:
    """Remove groups; return False while one still contains a process."""
    removed = True
    for group in groups:
        try:
            for child in sorted((p for p in group.rglob("*") if p.is_dir()), reverse=True):
                child.rmdir()
            group.rmdir()
        except FileNotFoundError:
            continue
        except OSError:
            removed = False
            continue
        with contextlib.suppress(OSError):  # the parent still has other groups
            group.parent.rmdir()
    return removed


def sweep(host: CgroupHost) -> None:
    """Remove the probes of dead processes and empty parents."""
    for parent in host.parents:
        _sweep(parent)


def sweep_left(instance: str, root: Path = ROOT) -> None:
    """Like `sweep`, for all places where groups of this instance may have been created."""
    for parent in _parents(instance, root):
        _sweep(parent)


def empty_groups(instance: str, root: Path = ROOT) -> list[str]:
    """Return the names of this instance's groups that hold no process in any hierarchy."""
    empty_by_name: dict[str, bool] = {}
    for parent in _parents(instance, root):
        with contextlib.suppress(OSError):
            for group in parent.iterdir():
                if group.is_dir() and not group.name.startswith(PROBE):
                    empty_by_name[group.name] = empty_by_name.get(group.name, True) and not _has_processes(
                        (group,)
                    )
    return sorted(name for name, empty in empty_by_name.items() if empty)


def groups_named(instance: str, name: str, root: Path = ROOT) -> tuple[Path, ...]:
    """Return all possible paths of a group of this instance."""
    return tuple(parent / name for parent in _parents(instance, root))


def _has_processes(groups: Sequence[Path]) -> bool:
    """Return whether any process is inside, including those of other PID namespaces."""
    for group in groups:
        for path in (group / "cgroup.procs", *group.glob("*/**/cgroup.procs")):
            if path.read_text().strip():
                return True
    return False


def _parents(instance: str, root: Path) -> list[Path]:
    """Return all parents where groups of this instance may have been created."""
    candidates = [host for host, _ in _candidates_v2(root)] + _candidates_v1(root)
    parents = dict.fromkeys(parent for host in candidates for parent in host.parents)
    return [parent / f"berth-{instance}" for parent in parents]


def _sweep(parent: Path) -> None:
    with contextlib.suppress(OSError):
        for probe in parent.glob(f"{PROBE}*"):
            if not _probe_is_alive(probe.name):
                with contextlib.suppress(OSError):
                    probe.rmdir()
        parent.rmdir()


def _probe_name() -> str:
    """Return a name that identifies the testing process: PID namespace, PID and start ticks."""
    pid = os.getpid()
    return f"{PROBE}{_namespace()}-{pid}-{processes.start_ticks(pid)}"


def _namespace() -> str:
    return processes.pid_namespace("self").strip("pid:[]") or "0"


def _probe_is_alive(name: str) -> bool:
    """Return whether the process of this probe lives or is invisible from here."""
    namespace, _, process = name.removeprefix(PROBE).partition("-")
    pid, _, ticks = process.partition("-")
    if namespace != _namespace():
        return True
    return pid.isdecimal() and str(processes.start_ticks(int(pid))) == ticks


def pids(groups: Sequence[Path]) -> frozenset[int]:
    """Return the processes inside that are visible from this PID namespace."""
    members: set[int] = set()
    for group in groups:
        with contextlib.suppress(OSError):
            for path in (group / "cgroup.procs", *group.glob("*/**/cgroup.procs")):
                members.update(int(line) for line in path.read_text().split())
    members.discard(0)  # a process of another PID namespace
    return frozenset(members)


def oom_kills(groups: Sequence[Path]) -> int:
    """Return the number of processes in these groups killed by the OOM killer."""
    total = 0
    for group in groups:
        for name in ("memory.events", "memory.oom_control"):
            with contextlib.suppress(OSError):
                for line in (group / name).read_text().splitlines():
                    key, _, value = line.partition(" ")
                    if key == "oom_kill":
                        total += int(value)
    return total


def kept_within_memory(groups: Sequence[Path]) -> bool:
    """Return whether these groups never reached their memory limit, so another limit caused an OOM kill.

    Version 1 has only the peak use, which includes page cache. Once the peak is near the limit, the cause is
    unknown and the answer is False.
    """
    counted = False
    for group in groups:
        with contextlib.suppress(OSError, ValueError, KeyError):
            events = dict(line.split() for line in (group / "memory.events").read_text().splitlines())
            if int(events["oom"]):
                return False
            counted = True
        with contextlib.suppress(OSError, ValueError):
            highest = int((group / "memory.max_usage_in_bytes").read_text())
            if highest > int((group / "memory.limit_in_bytes").read_text()) - FULL_WITHIN_BYTES:
                return False
            counted = True
    return counted


def enclosing_memory_limit_mib(host: CgroupHost, root: Path = ROOT) -> int | None:
    """Return the smallest memory limit around all workspaces (container or unit) in MiB, or None."""
    own = delegation.own_paths()
    groups = host.parents or (
        root / own.get("", "/").lstrip("/"),
        root / "memory" / own.get("memory", "/").lstrip("/"),
    )
    limits_mib: list[int] = []
    for group in groups:
        for above in (group, *group.parents):
            for name in LIMIT_FILES[LimitedResource.MEMORY]:
                with contextlib.suppress(OSError, ValueError):  # "max" is not a number
                    limits_mib.append(int((above / name).read_text()) >> 20)
            if above == root:
                break
    return min(limits_mib, default=None)


def memory_free_bytes(groups: Sequence[Path], root: Path = ROOT) -> int | None:
    """Return the memory left to these groups and their ancestors, in bytes; None if unlimited.

    Inactive page cache counts as free, since the kernel reclaims it first.
    """
    free_bytes: list[int] = []
    for group in groups:
        for above in (group, *group.parents):
            for limit, usage in (
                ("memory.max", "memory.current"),
                ("memory.limit_in_bytes", "memory.usage_in_bytes"),
            ):
                with contextlib.suppress(OSError, ValueError):  # "max" is not a number
                    room = int((above / limit).read_text()) - int((above / usage).read_text())
                    free_bytes.append(max(0, room + _inactive_file_bytes(above)))
            if above == root:
                break
    return min(free_bytes, default=None)


def _inactive_file_bytes(group: Path) -> int:
    stat = dict(line.split() for line in (group / "memory.stat").read_text().splitlines())
    return int(stat.get("total_inactive_file", stat.get("inactive_file", 0)))


def cpu_quota_milli(root: Path = ROOT) -> int | None:
    """Return the CPU quota of this process in milli-CPUs, or None."""
    quotas: list[int] = []
    own = delegation.own_paths()
    group = root / own.get("", "/").lstrip("/")
    for above in (group, *group.parents):
        with contextlib.suppress(OSError, ValueError):
            quota, period = (above / "cpu.max").read_text().split()
            if quota != "max":
                quotas.append(int(quota) * 1000 // int(period))
        if above == root:
            break
    with contextlib.suppress(OSError, ValueError, KeyError):
        group = root / "cpu" / own["cpu"].lstrip("/")
        quota_us = int((group / "cpu.cfs_quota_us").read_text())
        if quota_us > 0:
            quotas.append(quota_us * 1000 // int((group / "cpu.cfs_period_us").read_text()))
    return min(quotas, default=None)


def _candidates_v2(root: Path) -> list[tuple[CgroupHost, Path | None]]:
    """Return possible parents, each with the group that its processes must leave first, if any."""
    return [
        (CgroupHost(2, (parent.group,)), parent.group if parent.vacate else None)
        for parent in delegation.parent_groups(root)
    ]


def _candidates_v1(root: Path) -> list[CgroupHost]:
    """Return the roots of the controllers, then this process's own group in each."""
    mounted = [name for name in V1_CONTROLLERS if (root / name / "cgroup.procs").exists()]
    if "memory" not in mounted or "cpu" not in mounted:
        return []
    own = delegation.own_paths()
    tops = CgroupHost(1, tuple(root / name for name in mounted))
    host = CgroupHost(1, tuple(root / name / own.get(name, "/").lstrip("/") for name in mounted))
    return [tops, host]


def _make_group(version: int, group: Path) -> None:
    """Create the group. Retries if the parent is removed concurrently with its last group."""
    for attempt in range(3):
        try:
            _enable_children(version, group.parent)
            process_limits.limit_all(group.parent)
            group.mkdir(exist_ok=True)
            return
        except FileNotFoundError:
            if attempt == 2:
                raise


def _enable_children(version: int, parent: Path) -> None:
    parent.mkdir(exist_ok=True)
    if version == 2:
        for folder in (parent.parent, parent):
            control = folder / "cgroup.subtree_control"
            available = set((folder / "cgroup.controllers").read_text().split())
            missing = available.intersection(V2_CONTROLLERS) - set(control.read_text().split())
            if missing:
                control.write_text(" ".join(f"+{name}" for name in sorted(missing)))


def _limit(version: int, group: Path, cpu_milli: int, memory_mib: int) -> None:
    memory_bytes = memory_mib << 20
    quota_us = max(1000, CPU_PERIOD_US * cpu_milli // 1000)
    if version == 2:
        if (group / "memory.max").exists():
            (group / "memory.max").write_text(str(memory_bytes))
            with contextlib.suppress(FileNotFoundError):  # kernels without swap accounting
                (group / "memory.swap.max").write_text("0")
        if (group / "cpu.max").exists():
            _allow_burst(group / "cpu.max.burst", 0)  # must not exceed the quota, which may shrink now
            (group / "cpu.max").write_text(f"{quota_us} {CPU_PERIOD_US}")
            _allow_burst(group / "cpu.max.burst", quota_us)
        if (group / "pids.max").exists():
            (group / "pids.max").write_text(str(process_limits.workspace_limit(cpu_milli)))
        return
    if (group / "memory.limit_in_bytes").exists():
        with contextlib.suppress(FileNotFoundError):
            (group / "memory.memsw.limit_in_bytes").write_text("-1")
        (group / "memory.limit_in_bytes").write_text(str(memory_bytes))
        with contextlib.suppress(FileNotFoundError):
            (group / "memory.memsw.limit_in_bytes").write_text(str(memory_bytes))
    if (group / "cpu.cfs_quota_us").exists():
        _allow_burst(group / "cpu.cfs_burst_us", 0)  # must not exceed the quota, which may shrink now
        (group / "cpu.cfs_period_us").write_text(str(CPU_PERIOD_US))
        (group / "cpu.cfs_quota_us").write_text(str(quota_us))
        _allow_burst(group / "cpu.cfs_burst_us", quota_us)
    if (group / "pids.max").exists():
        (group / "pids.max").write_text(str(process_limits.workspace_limit(cpu_milli)))


def _allow_burst(path: Path, burst_us: int) -> None:
    """Let unused CPU time carry over into the next period, for bursts such as a notebook's start."""
    with contextlib.suppress(OSError):  # kernels before 5.14
        path.write_text(str(burst_us))


def _enforced_limits(host: CgroupHost) -> frozenset[LimitedResource]:
    """Move a waiting process into a limited group; return the limits that really apply."""
    groups: tuple[Path, ...] = ()
    with contextlib.suppress(OSError):
        groups = create(host, _probe_name(), cpu_milli=1000, memory_mib=64)
    if not groups:
        return frozenset()
    applied: frozenset[LimitedResource] = frozenset()
    try:
        with subprocess.Popen(["cat"], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL) as process:
            for group in groups:
                (group / "cgroup.procs").write_text(str(process.pid))
            if all(process.pid in pids([group]) for group in groups):
                applied = frozenset(
                    resource
                    for resource, names in LIMIT_FILES.items()
                    if any((group / name).exists() for group in groups for name in names)
                )
    except OSError:
        applied = frozenset()
    return applied if remove(groups) else frozenset()
