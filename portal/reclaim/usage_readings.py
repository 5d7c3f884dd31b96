"""Computes CPU, memory and GPU use between two reports of an agent, for `workspaces.usage_samples`."""

from __future__ import annotations

from collections.abc import Sequence
from uuid import UUID

import msgspec

from portal.reclaim.engine.activity import AgentReport
from portal.workspaces.usage_samples import MILLI_PER_CORE, UsageReading
from provisioning.types import WHOLE_DEVICE_MILLI

MAX_CPU_MILLI = 1_000_000
MAX_GPU_MEMORY_MIB = 100_000_000
"""Maximum reported value: 1,000 cores or 95 TiB. Agents are processes of their users and can report anything.

Larger values could overflow the column, and one such row would make the rows of all workspaces fail.
"""


class Accelerators(msgspec.Struct):
    """The accelerators in a workspace's resources."""

    count: int = 0
    share_milli: int = WHOLE_DEVICE_MILLI
    mig_profile: str = ""

    @property
    def measured_by_agent(self) -> bool:
        """Whether only the agent can measure the GPU use, as for shares and MIG instances."""
        return bool(self.count and (self.mig_profile or self.share_milli < WHOLE_DEVICE_MILLI))


class GpuFigures(msgspec.Struct):
    """A GPU in a heartbeat."""

    utilization_percent: int | None = None
    memory_used_mib: int | None = None


class _PreviousReport(msgspec.Struct):
    at_s: float
    cpu_seconds: float | None = None


_previous_report = msgspec.json.Decoder(_PreviousReport).decode


def reading_of(
    workspace_id: UUID,
    previous: str | None,
    report: AgentReport,
    memory_mib: int | None,
    gpus: Sequence[GpuFigures] | None,
    accelerators: Accelerators,
) -> UsageReading:
    """Return the use up to a report. `previous` is the stored report (JSON) of this start, or None."""
    before = _parse(previous)
    measured = (gpus or ()) if accelerators.measured_by_agent else ()
    # The memory of a shared GPU includes other workspaces.
    own_memory = measured if accelerators.mig_profile else ()
    percent = _total([gpu.utilization_percent for gpu in measured])
    gpu_memory = _total([gpu.memory_used_mib for gpu in own_memory])
    return UsageReading(
        workspace_id=workspace_id,
        at_s=report.at_s,
        previous_s=before.at_s if before is not None else None,
        cpu_milli=_cpu_milli(before, report) if before is not None else None,
        memory_mib=memory_mib,
        gpu_pct=round(percent / len(measured)) if percent is not None else None,
        gpu_memory_mib=gpu_memory if gpu_memory is None or gpu_memory <= MAX_GPU_MEMORY_MIB else None,
    )


def _parse(previous: str | None) -> _PreviousReport | None:
    if previous is None:
        return None
    try:
        return _previous_report(previous)
    except msgspec.MsgspecError:
        return None


def _cpu_milli(before: _PreviousReport, report: AgentReport) -> int | None:
    """Return the mean CPU use since the previous report; None if its counter was reset."""
    passed_s = report.at_s - before.at_s
    if before.cpu_seconds is None or report.cpu_seconds is None or passed_s <= 0:
        return None
    milli = round((report.cpu_seconds - before.cpu_seconds) / passed_s * MILLI_PER_CORE)
    return milli if 0 <= milli <= MAX_CPU_MILLI else None


def _total(values: Sequence[int | None]) -> int | None:
    """Return the sum of the values, or None unless all were measured. None for no values."""
    known = [value for value in values if value is not None]
    return sum(known) if known and len(known) == len(values) else None
