"""GPU shares: whether this node can enforce them, their holders, and the owners of processes.

The rule is in `provisioning.gpu.shares`; `provisioning.node.guarding` enforces it. Processes are attributed
as for stops (`processes.py`), by properties they cannot choose.
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
from provisioning.gpu.shares import DeviceProcess, Rank, ShareUse, is_full, part_mib
from provisioning.types import WHOLE_DEVICE_MILLI, DeviceGrant, DeviceInfo, DeviceKind

VARIABLE = "BERTH_GPU_SHARES"
FIRST_PID_NAMESPACE = 0xEFFFFFFC
"""Inode of the initial PID namespace (PROC_PID_INIT_INO in Linux), whose PIDs NVML reports."""
UNOWNED_FOR_S = 5.0
"""Unattributed processes are checked again after this time: they may have been seen during a fork."""


@dataclass(frozen=True, slots=True)
class ShareHolder:
    """A workspace with a share of a device."""

    name: str
    workspace_id: str
    generation: int
    share: state.GpuShare


def is_on() -> bool:
    """Return whether this node allows shared GPUs (`BERTH_GPU_SHARES`, on by default)."""
    return os.environ.get(VARIABLE, "on").strip().lower() not in ("off", "0", "false", "no")


def refusal(scan: GpuScan, *, proc: Path = processes.PROC) -> str:
    """Return why this node cannot share GPUs; empty if it can."""
    whole_gpus = [device for device in scan.devices if device.kind is DeviceKind.GPU and not device.mig_mode]
    if not whole_gpus:
        return "This node has no GPU that can be shared."
    if not is_on():
        return f"GPU sharing is disabled on this node ({VARIABLE})."
    try:
        first = (proc / "self/ns/pid").stat().st_ino == FIRST_PID_NAMESPACE
    except OSError:
        first = False
    if not first:
        return "The node worker runs in a container, where it cannot see which process uses GPU memory."
    if scan.unreported:
        return (
            f"The NVIDIA driver does not list the processes on {scan.unreported[0]}, so the GPU cannot be "
            "shared."
        )
    return ""


def granted_shares(
    scan: GpuScan, grants: Sequence[DeviceGrant], granted: Sequence[DeviceInfo]
) -> tuple[state.GpuShare, ...]:
    """Return the granted shares, without whole devices. Raises `NoCapacity` if they cannot be enforced."""
    shares = tuple(
        state.GpuShare(
            grant.uuid, part_mib(device.memory_mib, grant.milli, grant.memory_mib), device.memory_mib
        )
        for grant, device in zip(grants, granted, strict=True)
        if grant.milli < WHOLE_DEVICE_MILLI
    )
    if shares and (reason := refusal(scan)):
        raise NoCapacity(f"{reason} Choose a flavor with a whole GPU.")
    return shares


class Shares:
    """Shares of devices on this node and their use. Not thread-safe."""

    def __init__(self, base: Path, instance: str) -> None:
        self._base, self._instance = base, instance
        self._records: dict[str, tuple[tuple[int, ...], tuple[ShareHolder, ...]]] = {}
        # By device: owners of its processes, and unattributed processes with their recheck time.
        self._owners: dict[str, dict[tuple[int, int], tuple[str, Rank]]] = {}
        self._unowned: dict[str, dict[tuple[int, int], float]] = {}

    def holders(self) -> list[ShareHolder]:
        """Return the current holders, without ending workspaces. Only changed records are read again."""
        previous, self._records = self._records, {}
        for name in state.names(self._base):
            folder = state.WorkspaceDir(self._base, name)
            stamp = folder.changed_at()
            before = previous.get(name)
            if before is None or before[0] != stamp:
                before = (stamp, _holders(name, folder.record()))
            self._records[name] = before
        return [holder for _, record_holders in self._records.values() for holder in record_holders]

    def usage_by_holder(
        self, uuid: str, holders: Iterable[ShareHolder], sample: Sample
    ) -> dict[str, ShareUse]:
        """Return each holder's use of the device in this sample, by name; empty if unknown."""
        if sample.processes is None:
            return {}
        by_holder = self._processes_by_holder(uuid, sample.processes)
        device_holders = [holder for holder in holders if holder.share.uuid == uuid]
        use_by_name = {
            holder.name: ShareUse(holder.share.part_mib, tuple(by_holder.get(holder.name, ())))
            for holder in device_holders
        }
        if not device_holders or not is_full(device_holders[0].share.device_mib, sample.memory_used_mib):
            return use_by_name
        short = {name for name, use in use_by_name.items() if use.is_short}
        return {
            name: ShareUse(use.part_mib, use.processes, urgent=bool(short - {name}))
            for name, use in use_by_name.items()
        }

    def _processes_by_holder(
        self, uuid: str, present: Iterable[ProcessUse]
    ) -> dict[str, list[DeviceProcess]]:
        by_name: dict[str, list[DeviceProcess]] = defaultdict(list)
        uses = {
            (use.pid, ticks): use.memory_mib
            for use in present
            if (ticks := processes.start_ticks(use.pid)) is not None
        }
        now = time.monotonic()
        owners = {key: owner for key, owner in self._owners.get(uuid, {}).items() if key in uses}
        unowned = self._unowned.get(uuid, {})
        unowned = {key: until for key, until in unowned.items() if key in uses and until > now}
        if unknown := uses.keys() - owners.keys() - unowned.keys():
            owners.update(self._rank_processes(unknown))
            unowned.update(dict.fromkeys(unknown - owners.keys(), now + UNOWNED_FOR_S))
        self._owners[uuid], self._unowned[uuid] = owners, unowned
        for (pid, ticks), memory_mib in uses.items():
            name, rank = owners.get((pid, ticks), ("", Rank.WORK))
            if name:
                by_name[name].append(DeviceProcess(pid, ticks, memory_mib, rank))
        return by_name

    def _rank_processes(
        self, identities: Iterable[tuple[int, int]]
    ) -> dict[tuple[int, int], tuple[str, Rank]]:
        owned = {
            process.pid: process
            for process in processes.scan(self._instance, spares=state.claimed(self._base))
        }
        agents = {process.pid for process in owned.values() if process.is_agent}
        ranks: dict[tuple[int, int], tuple[str, Rank]] = {}
        for pid, ticks in identities:
            owner = owned.get(pid)
            if owner is not None and owner.start_ticks == ticks:
                is_app = processes.parent_of(pid) in agents
                outer = owner.is_agent or owner.is_namespace_init
                rank = Rank.AGENT if outer else Rank.APP if is_app else Rank.WORK
                ranks[pid, ticks] = (owner.workspace, rank)
            elif name := self._holder_by_group(pid):
                ranks[pid, ticks] = (name, Rank.WORK)
        return ranks

    def _holder_by_group(self, pid: int) -> str:
        """Return the share holder whose control groups contain the process, or an empty string."""
        for name, (_, holders) in self._records.items():
            record = state.WorkspaceDir(self._base, name).record() if holders else None
            if record is not None and pid in cgroups.pids([Path(path) for path in record.cgroups]):
                return name
        return ""


def _holders(name: str, record: state.StartRecord | None) -> tuple[ShareHolder, ...]:
    if record is None or record.closed:
        return ()
    return tuple(ShareHolder(name, record.workspace_id, record.generation, share) for share in record.shares)
