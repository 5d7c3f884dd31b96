"""Parts of GPUs: whether this machine can hold workspaces to them, who has one, and whose a process is.

The rule itself is `provisioning.gpu.shares`; `provisioning.node.guarding` carries it out. What a process
belongs to is found as for stops (`processes.py`), by what it cannot choose itself.
"""

from __future__ import annotations

import os
import time
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from provisioning.drivers.local import cgroups, processes, state
from provisioning.drivers.local.gpus import GpuScan
from provisioning.errors import NoCapacity
from provisioning.gpu.samples import ProcessUse, Sample
from provisioning.gpu.shares import Held, Rank, Seen, is_full, part_mib
from provisioning.types import WHOLE_DEVICE_MILLI, DeviceGrant, DeviceInfo, DeviceKind

VARIABLE = "BERTH_GPU_SHARES"
FIRST_PID_NAMESPACE = 0xEFFFFFFC
"""The inode of the machine's own (PROC_PID_INIT_INO of Linux). NVML numbers processes as it does."""
NOBODY_FOR_S = 5.0
"""What belongs to nobody is looked at again after this: it may have been caught in the midst of a fork."""


@dataclass(frozen=True, slots=True)
class Holder:
    """A workspace that has a part of a device."""

    name: str
    workspace_id: str
    generation: int
    share: state.GpuShare


def is_on() -> bool:
    """Whether this node's operator lets GPUs be shared (`BERTH_GPU_SHARES`, on by default)."""
    return os.environ.get(VARIABLE, "on").strip().lower() not in ("off", "0", "false", "no")


def refused(scan: GpuScan, *, proc: Path = processes.PROC) -> str:
    """Why nobody gets a part of a GPU of this machine; empty where they may."""
    whole = [each for each in scan.devices if each.kind is DeviceKind.GPU and not each.mig_mode]
    if not whole:
        return "This node has no GPU that can be shared."
    if not is_on():
        return f"This node gives whole GPUs only ({VARIABLE})."
    try:
        first = (proc / "self/ns/pid").stat().st_ino == FIRST_PID_NAMESPACE
    except OSError:
        first = False
    if not first:
        return "This node's worker runs in a container, where it cannot see whose process takes GPU memory."
    if scan.untold:
        return f"The driver does not tell who computes on {scan.untold[0]}, so no part of it can be held."
    return ""


def parts(
    scan: GpuScan, grants: Sequence[DeviceGrant], granted: Sequence[DeviceInfo]
) -> tuple[state.GpuShare, ...]:
    """The parts that are granted, none for whole devices. Raises `NoCapacity` where nothing holds them."""
    found = tuple(
        state.GpuShare(
            grant.uuid, part_mib(device.memory_mib, grant.milli, grant.memory_mib), device.memory_mib
        )
        for grant, device in zip(grants, granted, strict=True)
        if grant.milli < WHOLE_DEVICE_MILLI
    )
    if found and (why := refused(scan)):
        raise NoCapacity(f"{why} Choose a flavor with a whole GPU.")
    return found


class Shares:
    """Who has a part of which device here, and what each holds. One thread uses it."""

    def __init__(self, base: Path, instance: str) -> None:
        self._base, self._instance = base, instance
        self._records: dict[str, tuple[tuple[int, ...], tuple[Holder, ...]]] = {}
        # By device: whose the processes on it are, and which are nobody's until when.
        self._owners: dict[str, dict[tuple[int, int], tuple[str, Rank]]] = {}
        self._nobody: dict[str, dict[tuple[int, int], float]] = {}

    def holders(self) -> list[Holder]:
        """Who has one now; of workspaces that are ending none. Records are read again where they changed."""
        kept, self._records = self._records, {}
        for name in state.names(self._base):
            folder = state.WorkspaceDir(self._base, name)
            stamp = folder.changed_at()
            before = kept.get(name)
            if before is None or before[0] != stamp:
                before = (stamp, _holders(name, folder.record()))
            self._records[name] = before
        return [holder for _, found in self._records.values() for holder in found]

    def seen(self, uuid: str, holders: Iterable[Holder], sample: Sample) -> dict[str, Seen]:
        """What each of these holds of the device by this sample, by name; empty where nobody is told."""
        if sample.processes is None:
            return {}
        theirs = self._attributed(uuid, sample.processes)
        its = [each for each in holders if each.share.uuid == uuid]
        found = {each.name: Seen(each.share.part_mib, tuple(theirs.get(each.name, ()))) for each in its}
        if not its or not is_full(its[0].share.device_mib, sample.memory_used_mib):
            return found
        short = {name for name, each in found.items() if each.is_short}
        return {
            name: Seen(each.part_mib, each.processes, urgent=bool(short - {name}))
            for name, each in found.items()
        }

    def _attributed(self, uuid: str, present: Iterable[ProcessUse]) -> dict[str, list[Held]]:
        by_name: dict[str, list[Held]] = defaultdict(list)
        uses = {
            (use.pid, ticks): use.memory_mib
            for use in present
            if (ticks := processes.start_ticks(use.pid)) is not None
        }
        now = time.monotonic()
        owners = {key: owner for key, owner in self._owners.get(uuid, {}).items() if key in uses}
        nobody = self._nobody.get(uuid, {})
        nobody = {key: until for key, until in nobody.items() if key in uses and until > now}
        if unknown := uses.keys() - owners.keys() - nobody.keys():
            owners.update(self._look_up(unknown))
            nobody.update(dict.fromkeys(unknown - owners.keys(), now + NOBODY_FOR_S))
        self._owners[uuid], self._nobody[uuid] = owners, nobody
        for (pid, ticks), memory_mib in uses.items():
            name, rank = owners.get((pid, ticks), ("", Rank.WORK))
            if name:
                by_name[name].append(Held(pid, ticks, memory_mib, rank))
        return by_name

    def _look_up(self, wanted: Iterable[tuple[int, int]]) -> dict[tuple[int, int], tuple[str, Rank]]:
        owned = {each.pid: each for each in processes.scan(self._instance, spares=state.claimed(self._base))}
        agents = {each.pid for each in owned.values() if each.is_agent}
        found: dict[tuple[int, int], tuple[str, Rank]] = {}
        for pid, ticks in wanted:
            its = owned.get(pid)
            if its is not None and its.start_ticks == ticks:
                is_app = processes.parent_of(pid) in agents
                outer = its.is_agent or its.is_namespace_init
                rank = Rank.AGENT if outer else Rank.APP if is_app else Rank.WORK
                found[pid, ticks] = (its.workspace, rank)
            elif name := self._by_group(pid):
                found[pid, ticks] = (name, Rank.WORK)
        return found

    def _by_group(self, pid: int) -> str:
        """Who has a part of a device and a process in its control groups; empty where that is nobody."""
        for name, (_, holders) in self._records.items():
            record = state.WorkspaceDir(self._base, name).record() if holders else None
            if record is not None and pid in cgroups.pids([Path(path) for path in record.cgroups]):
                return name
        return ""


def _holders(name: str, record: state.Record | None) -> tuple[Holder, ...]:
    if record is None or record.closed:
        return ()
    return tuple(Holder(name, record.workspace_id, record.generation, share) for share in record.shares)
