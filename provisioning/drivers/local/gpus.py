"""GPUs of this machine as devices for tenants, with the device files that each needs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from provisioning.errors import GpuBeingReset, NoCapacity
from provisioning.gpu import inventory, release
from provisioning.gpu.facts import GpuFacts, MachineState, MigInstance
from provisioning.types import DeviceGrant, DeviceInfo, DeviceKind

CONTROL_NODES = ("/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia-uvm-tools")
RESET_WAIT_S = 10.0
"""How long to wait for a reset: a node task has less than a minute in total."""
CAPABILITIES = "proc/driver/nvidia/capabilities"


@dataclass(frozen=True, slots=True)
class GpuScan:
    """Result of a scan. `state` and `note` describe all GPUs of the machine; `warnings` name broken ones.

    `missing` has the PCI addresses of GPUs that the driver does not show.
    """

    devices: tuple[DeviceInfo, ...] = ()
    state: MachineState = MachineState.OK
    note: str = ""
    warnings: tuple[str, ...] = ()
    driver_version: str = ""
    cuda_version: str = ""
    missing: tuple[str, ...] = ()
    unreported: tuple[str, ...] = ()
    """GPUs outside MIG mode whose processes the driver does not report."""


def scan(*, root: Path = Path("/")) -> GpuScan:
    """Return every GPU, and its MIG instances in MIG mode. Never raises for driver errors.

    Raises `GpuBeingReset` if a reset prevents the scan.
    """
    try:
        facts = inventory.scan(root=root, patience_s=RESET_WAIT_S)
    except release.ResetNotOver as error:
        raise GpuBeingReset("A GPU of this node is being reset. Wait up to 2 minutes.") from error
    devices: list[DeviceInfo] = []
    for gpu in facts.gpus:
        nodes = _nodes(gpu, root)
        devices.append(_gpu_info(gpu, nodes))
        devices += [_instance(gpu, item, nodes, root) for item in gpu.instances]
    return GpuScan(
        devices=tuple(devices),
        state=facts.state,
        note=facts.sentence,
        warnings=tuple(item.sentence for item in facts.broken),
        driver_version=facts.driver_version,
        cuda_version=facts.cuda_version,
        missing=facts.missing,
        unreported=tuple(gpu.uuid for gpu in facts.gpus if gpu.processes is None and not gpu.mig_mode),
    )


def granted(scan: GpuScan, grants: Sequence[DeviceGrant]) -> tuple[DeviceInfo, ...]:
    """Return the granted devices in their current state, in that order. Raises `NoCapacity`."""
    present = {device.uuid: device for device in scan.devices}
    missing = [grant.uuid for grant in grants if grant.uuid not in present]
    if missing:
        raise NoCapacity(
            f"GPU {missing[0]} is missing. Start the workspace again to get another GPU.",
            detail=f"missing: {missing}; {scan.state.value}: {scan.note}",
        )
    devices = tuple(present[grant.uuid] for grant in grants)
    mig_gpus = [device.uuid for device in devices if device.mig_mode]
    if mig_gpus:
        raise NoCapacity(
            f"GPU {mig_gpus[0]} has been partitioned. Start the workspace again to get another GPU.",
            detail=f"in MIG mode: {mig_gpus}",
        )
    return devices


def instances_of(scan: GpuScan, parent_uuid: str) -> tuple[DeviceInfo, ...]:
    """Return the MIG instances of one GPU."""
    return tuple(device for device in scan.devices if device.parent_uuid == parent_uuid)


def with_instances(scan: GpuScan, instances_by_gpu: Mapping[str, tuple[DeviceInfo, ...]]) -> GpuScan:
    """Return the scan with other instances for the GPUs in `instances_by_gpu`."""
    devices: list[DeviceInfo] = []
    for device in scan.devices:
        if device.parent_uuid not in instances_by_gpu:
            devices.append(device)
        devices += instances_by_gpu.get(device.uuid, ())
    return replace(scan, devices=tuple(devices))


def _nodes(gpu: GpuFacts, root: Path) -> tuple[str, ...]:
    own = () if gpu.minor is None else (f"/dev/nvidia{gpu.minor}",)
    return tuple(path for path in (*own, *CONTROL_NODES) if (root / path[1:]).exists())


def _gpu_info(gpu: GpuFacts, nodes: tuple[str, ...]) -> DeviceInfo:
    return DeviceInfo(
        uuid=gpu.uuid,
        index=gpu.index,
        model=gpu.model,
        memory_mib=gpu.memory_mib,
        healthy=not gpu.unusable_reason,
        health_note=gpu.unusable_reason,
        nodes=nodes,
        mig_mode=bool(gpu.mig_mode),
        island=gpu.island,
        numa=gpu.numa,
        compute_capability=gpu.compute_capability,
        facts=gpu.as_json(),
    )


def _instance(gpu: GpuFacts, item: MigInstance, nodes: tuple[str, ...], root: Path) -> DeviceInfo:
    folder = root / CAPABILITIES / f"gpu{gpu.minor}" / "mig" / f"gi{item.gpu_instance}"
    access = [
        _capability_node(path)
        for path in (folder / "access", folder / f"ci{item.compute_instance}" / "access")
    ]
    return DeviceInfo(
        uuid=item.uuid,
        index=gpu.index,
        model=item.name,
        memory_mib=item.memory_mib,
        kind=DeviceKind.MIG,
        parent_uuid=gpu.uuid,
        healthy=not gpu.unusable_reason,
        health_note=gpu.unusable_reason,
        nodes=(*nodes, *(path for path in access if path)),
        mig_profile=item.profile,
        mig_start=item.start,
        # Instances have no peer copies, so they belong to no island.
        numa=gpu.numa,
        compute_capability=gpu.compute_capability,
        facts={
            "sms": item.sms,
            "memory_slices": item.size if item.size >= 0 else None,
            "gpu_instance": item.gpu_instance,
        },
    )


def _capability_node(path: Path) -> str:
    """Return the device file that grants access to a MIG instance, or an empty string."""
    try:
        for line in path.read_text().splitlines():
            key, _, value = line.partition(":")
            if key.strip() == "DeviceFileMinor":
                return f"/dev/nvidia-caps/nvidia-cap{int(value)}"
    except (OSError, ValueError):
        pass
    return ""
