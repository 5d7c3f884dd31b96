"""Inventory of this machine's GPUs. A missing or broken driver is a state, never an exception."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import ParamSpec, TypeVar

import pynvml

from provisioning.gpu import release
from provisioning.gpu.facts import (
    RECOVERY_ACTIONS,
    BrokenGpu,
    GpuFacts,
    GpuProcess,
    MachineState,
    Memory,
    MigInstance,
    MigProfile,
    Pcie,
    Scan,
)
from provisioning.gpu.host import nvidia_gpus
from provisioning.gpu.missing import NOUVEAU, has_nouveau, not_shown
from provisioning.gpu.missing import sentence as missing_sentence
from provisioning.gpu.nvml import (
    DeadlineThread,
    Device,
    DeviceGone,
    DriverMismatch,
    GpuLost,
    NoDriver,
    NoPermission,
    Nvml,
    NvmlProblem,
    ResetRequired,
    TimedOut,
    session,
)
from provisioning.gpu.topology import SOME_SWITCH, NvlinkFacts, islands, pci_place

T = TypeVar("T")
P = ParamSpec("P")
SCAN_TIMEOUT_S = 20.0
_CLOCKS = {"sm": pynvml.NVML_CLOCK_SM, "memory": pynvml.NVML_CLOCK_MEM, "video": pynvml.NVML_CLOCK_VIDEO}
_LIMITS = {
    "slowdown": pynvml.NVML_TEMPERATURE_THRESHOLD_SLOWDOWN,
    "shutdown": pynvml.NVML_TEMPERATURE_THRESHOLD_SHUTDOWN,
    "memory_max": pynvml.NVML_TEMPERATURE_THRESHOLD_MEM_MAX,
    "gpu_max": pynvml.NVML_TEMPERATURE_THRESHOLD_GPU_MAX,
}
_STATES: tuple[tuple[type[NvmlProblem], MachineState], ...] = (
    (NoDriver, MachineState.NO_DRIVER),
    (DriverMismatch, MachineState.DRIVER_MISMATCH),
    (NoPermission, MachineState.NO_PERMISSION),
    (ResetRequired, MachineState.RESET_REQUIRED),
    (GpuLost, MachineState.GPU_LOST),
    (TimedOut, MachineState.TIMEOUT),
)
_bounded = DeadlineThread()


def scan(
    *,
    root: Path = Path("/"),
    timeout_s: float = SCAN_TIMEOUT_S,
    patience_s: float = math.inf,
    bounded: DeadlineThread = _bounded,
) -> Scan:
    """Return all GPUs with their facts, and the state of the machine. Never raises for driver errors.

    A GPU that does not answer does not hide the others. A hanging driver is abandoned after `timeout_s`.
    `root` holds /proc and /sys. Waits while a GPU of this machine is being reset; raises
    `release.ResetNotOver` after `patience_s`.
    """
    release.wait(patience_s)
    try:
        return bounded.call(lambda: _scan(root), timeout_s=timeout_s)
    except NvmlProblem as problem:
        return Scan(state_of(problem), _problem_sentence(problem, root))


def state_of(problem: NvmlProblem) -> MachineState:
    """Return the machine's state for a problem that affects all of it."""
    return next((state for kind, state in _STATES if isinstance(problem, kind)), MachineState.ERROR)


def _problem_sentence(problem: NvmlProblem, root: Path) -> str:
    if isinstance(problem, NoDriver) and (count := len(nvidia_gpus(root))):
        noun = "NVIDIA GPU" if count == 1 else "NVIDIA GPUs"
        fix = NOUVEAU if has_nouveau(root) else problem.fix
        return f"{problem.message} PCI lists {count} {noun}. {fix}"
    if isinstance(problem, NoDriver):
        return f"{problem.message} Workspaces run without a GPU. {problem.fix}"
    return problem.sentence


def _scan(root: Path) -> Scan:
    gpus: list[GpuFacts] = []
    broken: list[BrokenGpu] = []
    shown: set[str] = set()
    with session() as driver:
        count = driver.count()
        for index in range(count):
            uuid = ""
            try:
                device = driver.device(index)
                shown.add(_read_optional(device.pci_bus_id) or "")
                uuid = device.uuid()
                gpus.append(_gpu(driver, device, index, uuid, root))
            except NvmlProblem as problem:
                text = f"GPU {index} is not responding. {problem.sentence}"
                broken.append(BrokenGpu(index, _state_word(problem), text, uuid))
        versions = driver.driver_version() or "", driver.cuda_version() or ""
    names = islands({gpu.pci_bus_id or gpu.uuid: gpu.links for gpu in gpus})
    gpus = [replace(gpu, island=names.get(gpu.pci_bus_id or gpu.uuid, "")) for gpu in gpus]
    missing = not_shown(root, shown)
    state, sentence = _overall_state(count, broken, missing, versions[0])
    return Scan(state, sentence, tuple(gpus), tuple(broken), *versions, missing=missing)


def _state_word(problem: NvmlProblem) -> str:
    return problem.state if isinstance(problem, DeviceGone) else state_of(problem).value


def _overall_state(
    count: int, broken: list[BrokenGpu], missing: tuple[str, ...], driver: str
) -> tuple[MachineState, str]:
    if not count and not missing:
        return MachineState.NO_GPU, (
            "The NVIDIA driver is installed, but this machine has no GPU. Workspaces run without a GPU."
        )
    if broken:
        states = {item.state for item in broken}
        for state in (MachineState.GPU_LOST, MachineState.RESET_REQUIRED):
            if state.value in states:
                return state, broken[0].sentence
        return MachineState.ERROR, broken[0].sentence
    if missing:
        return MachineState.GPU_LOST, missing_sentence(missing, shown=count, driver=driver)
    return MachineState.OK, ""


def _gpu(driver: Nvml, device: Device, index: int, uuid: str, root: Path) -> GpuFacts:
    bus = device.pci_bus_id() or ""
    place = pci_place(bus, root)
    affinity = device.memory_affinity() if place.numa < 0 else None
    mig = device.mig_mode()
    ecc = _read_optional(device.ecc_mode)
    capability = device.compute_capability()
    profiles = _profiles(device) if mig and mig[0] else ()
    return GpuFacts(
        uuid=uuid,
        index=index,
        minor=device.minor(),
        pci_bus_id=bus,
        model=device.name(),
        memory_mib=device.memory()[0] >> 20,
        compute_capability=f"{capability[0]}.{capability[1]}" if capability else "",
        virtual=device.is_virtual(),
        mig_mode=mig[0] if mig else None,
        mig_pending=mig[1] if mig else None,
        instances=_instances(driver, device, profiles) if mig and mig[0] else (),
        profiles=profiles,
        links=_read_optional(_links, device) or NvlinkFacts(),
        island="",
        place=place,
        pcie=Pcie(*(_read_optional(device.pcie) or (None,) * 4)),
        numa=affinity if affinity is not None else place.numa,
        ecc=ecc[0] if ecc else None,
        ecc_pending=ecc[1] if ecc else None,
        clocks_mhz={name: _read_optional(device.clock_mhz, kind) for name, kind in _CLOCKS.items()},
        max_clocks_mhz={name: _read_optional(device.max_clock_mhz, kind) for name, kind in _CLOCKS.items()},
        power_limit_mw=_read_optional(device.power_limit_mw),
        power_range_mw=_read_optional(device.power_range_mw),
        temperature_c=_read_optional(device.temperature_c),
        temperature_limits_c={
            name: _read_optional(device.temperature_limit_c, kind) for name, kind in _LIMITS.items()
        },
        processes=_processes(driver, device),
        persistence=_read_optional(device.persistence_mode),
        recovery_action=_recovery(device),
        memory=_memory(device),
    )


def _read_optional(read: Callable[P, T | None], *args: P.args, **kwargs: P.kwargs) -> T | None:
    """Return an optional value; errors give None, except if the GPU is lost or hangs."""
    try:
        return read(*args, **kwargs)
    except (GpuLost, DeviceGone, TimedOut):
        raise
    except NvmlProblem:
        return None


def _recovery(device: Device) -> str | None:
    values = _read_optional(device.fields, [pynvml.NVML_FI_DEV_GET_GPU_RECOVERY_ACTION])
    action = values[0] if values else None
    return None if action is None else RECOVERY_ACTIONS.get(action, f"action_{action}")


def _memory(device: Device) -> Memory:
    rows = _read_optional(device.remapped_rows)
    return Memory(
        remapped_corrected=rows[0] if rows else None,
        remapped_uncorrected=rows[1] if rows else None,
        remap_pending=rows[2] if rows else None,
        remap_failed=rows[3] if rows else None,
        retired_pages=_read_optional(device.retired_pages),
        retired_pending=_read_optional(device.retired_pending),
        ecc_corrected=_read_optional(device.ecc_errors, uncorrected=False, aggregate=True),
        ecc_uncorrected=_read_optional(device.ecc_errors, uncorrected=True, aggregate=True),
    )


def _links(device: Device) -> NvlinkFacts:
    active = total = 0
    peers: set[str] = set()
    switched = False
    for link in range(pynvml.NVML_NVLINK_MAX_LINKS):
        works = device.link_active(link)
        if works is None:
            continue
        total += 1
        if works:
            active += 1
            switch, peer = device.link_peer(link)
            switched = switched or switch
            if peer or switch:
                peers.add(peer or SOME_SWITCH)
    return NvlinkFacts(active, total, tuple(sorted(peers)), switched)


def _profiles(device: Device) -> tuple[MigProfile, ...]:
    """Return the profiles that this GPU supports with this driver, with their legal placements."""
    profiles: list[MigProfile] = []
    for number in range(pynvml.NVML_GPU_INSTANCE_PROFILE_COUNT):
        profile = _read_optional(device.mig_profile, number)
        if profile is None:
            continue
        info, name = profile
        memory_mib, slices = int(info.memorySizeMB), int(info.sliceCount)
        profiles.append(
            MigProfile(
                name=name or f"{slices}g.{round(memory_mib / 1024)}gb",
                profile_id=int(info.id),
                memory_mib=memory_mib,
                sms=int(info.multiprocessorCount),
                slices=slices,
                most=int(info.instanceCount),
                placements=_read_optional(device.mig_placements, int(info.id)) or (),
            )
        )
    return tuple(profiles)


def _instances(driver: Nvml, device: Device, profiles: tuple[MigProfile, ...]) -> tuple[MigInstance, ...]:
    by_id = {profile.profile_id: profile for profile in profiles}
    instances = []
    for mig in device.mig_devices():
        try:
            instances.append(_instance(driver, device, mig, by_id))
        except DeviceGone:
            continue  # destroyed meanwhile
    return tuple(instances)


def _instance(driver: Nvml, device: Device, mig: Device, by_id: dict[int, MigProfile]) -> MigInstance:
    instance = mig.gpu_instance_id()
    placed = _read_optional(device.gpu_instance_placement, -1 if instance is None else instance)
    attributes = _read_optional(mig.attributes)
    name = mig.name()
    profile = by_id.get(placed[0]) if placed else None
    compute = mig.compute_instance_id()
    return MigInstance(
        uuid=mig.uuid(),
        name=name,
        profile=profile.name if profile else _profile_in_name(name),
        start=placed[1] if placed else -1,
        size=placed[2] if placed else -1,
        memory_mib=mig.memory()[0] >> 20,
        sms=int(attributes.multiprocessorCount) if attributes is not None else None,
        gpu_instance=instance if instance is not None else -1,
        compute_instance=compute if compute is not None else -1,
        processes=_processes(driver, mig) or (),
    )


def _profile_in_name(name: str) -> str:
    """Return the GPU instance's profile from a device name: `NVIDIA H200 MIG 1c.3g.71gb` → `3g.71gb`."""
    mig_name = name.rpartition("MIG ")[2].strip() if "MIG " in name else ""
    compute_profile, _, profile = mig_name.partition(".")
    return profile if compute_profile.endswith("c") else mig_name


def _processes(driver: Nvml, device: Device) -> tuple[GpuProcess, ...] | None:
    processes = _read_optional(device.processes)
    if processes is None:
        return None
    return tuple(
        GpuProcess(pid, None if memory is None else memory >> 20, _process_name(driver, pid))
        for pid, memory in processes
    )


def _process_name(driver: Nvml, pid: int) -> str:
    """Return the program's name without path and arguments, which may be confidential."""
    name = _read_optional(driver.process_name, pid) or ""
    return name.split(" ")[0].rpartition("/")[2]
