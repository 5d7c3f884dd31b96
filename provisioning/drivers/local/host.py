"""Inventory of the local pool's only node."""

from __future__ import annotations

import os
from pathlib import Path

from provisioning.drivers.local import cgroups, disk, gpus, headroom, home_mount, limits, pressure
from provisioning.drivers.local.environment import Environment
from provisioning.gpu import host as hardware
from provisioning.gpu.facts import MachineState
from provisioning.types import (
    HEADROOM,
    HOME_HOLD,
    PRESSURE,
    HeldEnvironment,
    HomeHold,
    Isolation,
    LimitEnforcement,
    NodeInfo,
)

RESERVE_MIB = 1024
MAX_HELD = 512
TOOLS = ("git", "ssh")
"""Programs reported beside those of templates; needed to clone repositories."""


def node_info(
    *,
    name: str,
    homes: Path,
    readings: Path,
    environment: Environment,
    environment_path: Path,
    isolation: Isolation,
    isolation_warning: str,
    cgroup_host: cgroups.CgroupHost,
    scan: gpus.GpuScan,
    environments: tuple[HeldEnvironment, ...] = (),
    programs: tuple[str, ...] = (),
    home_limit_mib: int = 0,
    home_hold: HomeHold = HomeHold.MEASURED,
) -> NodeInfo:
    """Return the node's current state, with the GPUs of `scan`. Raises `OSError` if values are unreadable.

    `programs` are reported too, if installed. The folder `readings` holds recent readings of the machine.
    """
    facts = hardware.read_host_facts()
    warnings = [*scan.warnings]
    if not scan.devices and scan.state is not MachineState.OK and facts.nvidia_gpus_on_pci:
        # The hardware exists but is unusable: warn where operators look.
        warnings.append(scan.note)
    if isolation_warning:
        warnings.append(isolation_warning)
    if unlimited := limits.warning(cgroup_host):
        warnings.append(unlimited)
    if endless := limits.homes_warning(home_limit_mib):
        warnings.append(endless)
    if not environment.exists:
        warnings.append(
            f"The notebook environment {environment_path} does not exist. Run `make up` to build it."
        )
    homes.mkdir(mode=0o700, parents=True, exist_ok=True)
    if open_homes := home_mount.mount_problem(homes):
        warnings.append(open_homes)
    if short := disk.warning(homes):
        warnings.append(short)
    return NodeInfo(
        name=name,
        cpu_milli=cpu_milli(),
        memory_mib=memory_mib(cgroup_host),
        disk_mib=disk.available_mib(homes),
        devices=scan.devices,
        programs={
            **environment.programs(),
            **{name: environment.which(name) for name in (*TOOLS, *programs)},
        },
        isolation=isolation,
        limits=LimitEnforcement.CGROUP if cgroup_host.version else LimitEnforcement.RLIMIT,
        limited=limits.enforced_resources(cgroup_host, home_limit_mib),
        accelerator_note=scan.note,
        warnings=tuple(dict.fromkeys(warnings)),
        driver_version=scan.driver_version,
        cuda_version=scan.cuda_version,
        accelerator_state=scan.state.value,
        provides=facts.provides,
        facts={
            **facts.as_json(),
            "missing_gpus": list(scan.missing),
            PRESSURE: pressure.read_pressure(),
            HEADROOM: headroom.read_headroom(readings),
            **({HOME_HOLD: home_hold.value} if home_limit_mib else {}),
        },
        environments=environments[:MAX_HELD],
    )


def cpu_milli() -> int:
    """Return the milli-CPUs that this process may use: by its CPU affinity, or its quota if lower."""
    milli = len(os.sched_getaffinity(0)) * 1000
    quota = cgroups.cpu_quota_milli()
    return min(milli, quota) if quota else milli


def memory_mib(cgroup_host: cgroups.CgroupHost) -> int:
    """Return the memory for all workspaces in MiB, without the portal's own needs.

    It is the machine's memory, or the limit of a control group around all workspaces.
    """
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("MemTotal:"):
            machine = int(line.split()[1]) >> 10
            around = cgroups.enclosing_memory_limit_mib(cgroup_host)
            return max(0, (machine if around is None else min(machine, around)) - RESERVE_MIB)
    raise OSError("/proc/meminfo has no MemTotal")
