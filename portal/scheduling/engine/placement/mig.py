"""MIG: profiles and legal placements, choosing an instance, and planning another layout of a GPU.

An instance takes a run of slots on its GPU's memory axis (8 slots, on an A30 four). A layout is legal
when the runs do not overlap and each begins where its profile may begin. The table below is NVIDIA's
for planning; what instances exist is taken from the snapshot, which drivers fill from the device.

The measure is the same as for whole GPUs, on the mask of slots that no tenant uses: over the profiles
by popularity, the free slots that no legal placement of the profile could cover.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache

from portal.scheduling.engine.placement.arrays import mig_parents
from portal.scheduling.engine.placement.types import DeviceCapacity, NodeCapacity
from provisioning.types import (
    WHOLE_DEVICE_MILLI,
    AcceleratorRequest,
    DeviceGrant,
    DeviceKind,
    MigRepartition,
    MigSlice,
)

Weights = tuple[tuple[str, int], ...]


@dataclass(frozen=True, slots=True)
class Profile:
    """A MIG profile: its memory, the slots it takes, and the slots at which it may begin."""

    name: str
    memory_mib: int
    width: int
    starts: tuple[int, ...]

    def masks(self) -> tuple[int, ...]:
        """The slots of each legal placement, as bits."""
        return tuple(((1 << self.width) - 1) << start for start in self.starts)


@dataclass(frozen=True, slots=True)
class Geometry:
    """The slots of a GPU model and its profiles, by name."""

    slots: int
    profiles: tuple[Profile, ...]

    def profile(self, name: str) -> Profile | None:
        return next((profile for profile in self.profiles if profile.name == name), None)


def _eight(*memory: tuple[str, int]) -> Geometry:
    """The layout that A100, H100, H200 and B200 share; `memory` gives name and MiB of each profile."""
    layout = (
        (1, (0, 1, 2, 3, 4, 5, 6)), (2, (0, 2, 4, 6)), (2, (0, 2, 4)), (4, (0, 4)), (4, (0,)), (8, (0,))
    )  # fmt: skip
    return Geometry(
        8,
        tuple(
            Profile(name, mib, width, starts)
            for (name, mib), (width, starts) in zip(memory, layout, strict=True)
        ),
    )


def _mib(gib_hundredths: int) -> int:
    return gib_hundredths * 1024 // 100


_A30 = Geometry(
    4,
    (
        Profile("1g.6gb", _mib(581), 1, (0, 1, 2, 3)),
        Profile("2g.12gb", _mib(1169), 2, (0, 2)),
        Profile("4g.24gb", _mib(2344), 4, (0,)),
    ),
)
_A100_40 = _eight(
    ("1g.5gb", _mib(475)), ("1g.10gb", _mib(975)), ("2g.10gb", _mib(975)),
    ("3g.20gb", _mib(1962)), ("4g.20gb", _mib(1962)), ("7g.40gb", _mib(3938)),
)  # fmt: skip
_A100_80 = _eight(
    ("1g.10gb", _mib(950)), ("1g.20gb", _mib(1950)), ("2g.20gb", _mib(1950)),
    ("3g.40gb", _mib(3925)), ("4g.40gb", _mib(3925)), ("7g.80gb", _mib(7900)),
)  # fmt: skip
_H100_80 = _eight(
    ("1g.10gb", _mib(962)), ("1g.20gb", _mib(1950)), ("2g.20gb", _mib(1950)),
    ("3g.40gb", _mib(3925)), ("4g.40gb", _mib(3925)), ("7g.80gb", _mib(7925)),
)  # fmt: skip
_H200 = _eight(
    ("1g.18gb", _mib(1600)), ("1g.35gb", _mib(3225)), ("2g.35gb", _mib(3225)),
    ("3g.71gb", _mib(6950)), ("4g.71gb", _mib(6950)), ("7g.141gb", _mib(13975)),
)  # fmt: skip
_B200 = _eight(
    ("1g.23gb", _mib(2050)), ("1g.45gb", _mib(4425)), ("2g.45gb", _mib(4425)),
    ("3g.90gb", 90 * 1000), ("4g.90gb", 90 * 1000), ("7g.180gb", 180 * 1000),
)  # fmt: skip

# Part of the model's name, memory from and below which (MiB), and the layout.
_GEOMETRIES: tuple[tuple[str, int, int, Geometry], ...] = (
    ("A30", 20_000, 30_000, _A30),
    ("A100", 35_000, 45_000, _A100_40),
    ("A100", 75_000, 90_000, _A100_80),
    ("H100", 75_000, 90_000, _H100_80),
    ("H200", 130_000, 150_000, _H200),
    ("B200", 170_000, 200_000, _B200),
)


def geometry(model: str, memory_mib: int) -> Geometry | None:
    """The layout of a GPU, or None where it is not known (or the GPU has no MIG)."""
    words = model.upper().replace("-", " ").split()
    for name, least, below, found in _GEOMETRIES:
        if name in words and least <= memory_mib < below:
            return found
    return None


@lru_cache(maxsize=4096)
def fragmentation(layout: Geometry, free: int, weights: Weights) -> int:
    """Σ weight × free slots that the profile cannot cover; `free` has a bit for each free slot."""
    total = 0
    for profile, weight in _weighted(layout, weights):
        covered = 0
        for placed in profile.masks():
            if placed & ~free == 0:
                covered |= placed
        total += weight * (free & ~covered).bit_count()
    return total


def _weighted(layout: Geometry, weights: Weights) -> list[tuple[Profile, int]]:
    """The layout's profiles with their weights; all count the same where the mix asks for none."""
    known = dict(weights)
    asked = [(profile, known[profile.name]) for profile in layout.profiles if profile.name in known]
    return asked or [(profile, 1) for profile in layout.profiles]


@dataclass(slots=True)
class _Gpu:
    """One GPU that carries instances: which slots tenants use, and the instances that idle."""

    uuid: str
    layout: Geometry | None
    free: int
    idle: list[DeviceCapacity]
    chosen: list[DeviceCapacity] = field(default_factory=list)
    created: list[MigSlice] = field(default_factory=list)
    destroyed: list[DeviceCapacity] = field(default_factory=list)

    def loss(self, taken: int, weights: Weights) -> int:
        """How much fragmentation grows when the slots `taken` are given away, in 1/slot of the GPU."""
        if self.layout is None:
            return 0
        before = fragmentation(self.layout, self.free, weights)
        return fragmentation(self.layout, self.free & ~taken, weights) - before


@dataclass(frozen=True, slots=True)
class MigChoice:
    """Instances to hand out on one node, what that costs (`loss`, in slots × weight), and layout changes."""

    grants: tuple[DeviceGrant, ...]
    repartitions: tuple[MigRepartition, ...]
    loss: int
    destroyed: int


def choose(
    node: NodeCapacity, wanted: AcceleratorRequest, weights: Weights, *, repartition: bool = False
) -> MigChoice | None:
    """The instances for the request on this node, or None. Free ones first; new ones only if allowed."""
    gpus = _gpus(node, wanted)
    loss = 0
    for _ in range(wanted.count):
        cost = _take_idle(gpus, wanted, weights)
        if cost is None and repartition:
            cost = _take_new(gpus, wanted, weights)
        if cost is None:
            return None
        loss += cost
    grants = tuple(DeviceGrant(device.uuid) for gpu in gpus for device in gpu.chosen)
    changes = tuple(
        MigRepartition(
            gpu.uuid,
            tuple(device.uuid for device in gpu.destroyed),
            tuple(sorted(gpu.created, key=lambda piece: piece.start)),
        )
        for gpu in gpus
        if gpu.created
    )
    return MigChoice(grants, changes, loss, sum(len(gpu.destroyed) for gpu in gpus))


def instances(node: NodeCapacity, wanted: AcceleratorRequest) -> list[DeviceCapacity]:
    """The node's instances that the request could mean, in use or not."""
    models = frozenset(wanted.allowed_models)
    parents = {device.uuid: device.model for device in node.devices}
    return [
        device
        for device in node.devices
        if device.kind is DeviceKind.MIG
        and device.mig_profile == wanted.mig_profile
        and device.memory_mib >= wanted.memory_mib
        and (not models or device.model in models or parents.get(device.parent_uuid) in models)
    ]


def is_idle(node: NodeCapacity, device: DeviceCapacity) -> bool:
    """Whether nobody uses the instance and both it and its GPU are in service."""
    if device.unusable or device.free_milli < WHOLE_DEVICE_MILLI:
        return False
    return not any(parent.uuid == device.parent_uuid and parent.unusable for parent in node.devices)


def _gpus(node: NodeCapacity, wanted: AcceleratorRequest) -> list[_Gpu]:
    known = {device.uuid: device for device in node.devices if device.kind is not DeviceKind.MIG}
    models = frozenset(wanted.allowed_models)
    carriers = mig_parents(node) | {device.uuid for device in known.values() if device.mig_mode}
    suitable = {device.uuid for device in instances(node, wanted)}
    gpus = []
    for uuid in dict.fromkeys(device.parent_uuid or device.uuid for device in node.devices):
        if uuid not in carriers:
            continue
        parent = known.get(uuid)
        children = [
            device for device in node.devices if device.kind is DeviceKind.MIG and device.parent_uuid == uuid
        ]
        layout = geometry(parent.model, parent.memory_mib) if parent and not parent.unusable else None
        if layout is not None and any(_bits(layout, device) is None for device in children):
            layout = None
        if layout is not None and models and parent is not None and parent.model not in models:
            layout = None
        free = (1 << layout.slots) - 1 if layout else 0
        idle = []
        for device in children:
            if is_idle(node, device) and (
                device.uuid in suitable or device.mig_profile != wanted.mig_profile
            ):
                idle.append(device)
            elif layout is not None:
                free &= ~(_bits(layout, device) or 0)
        gpus.append(_Gpu(uuid, layout, free, idle))
    return gpus


def _bits(layout: Geometry, device: DeviceCapacity) -> int | None:
    """The slots of an existing instance; None where its profile or its start is not known."""
    profile = layout.profile(device.mig_profile)
    if profile is None or device.mig_start not in profile.starts:
        return None
    return ((1 << profile.width) - 1) << device.mig_start


def _take_idle(gpus: Sequence[_Gpu], wanted: AcceleratorRequest, weights: Weights) -> int | None:
    options = [
        (gpu.loss(_slots_of(gpu, device), weights), gpu.free.bit_count(), device.mig_start, place, spot)
        for place, gpu in enumerate(gpus)
        for spot, device in enumerate(gpu.idle)
        if device.mig_profile == wanted.mig_profile
    ]
    if not options:
        return None
    loss, _, _, place, spot = min(options)
    gpu = gpus[place]
    device = gpu.idle.pop(spot)
    gpu.free &= ~_slots_of(gpu, device)
    gpu.chosen.append(device)
    return loss


def _take_new(gpus: Sequence[_Gpu], wanted: AcceleratorRequest, weights: Weights) -> int | None:
    options = []
    for place, gpu in enumerate(gpus):
        profile = gpu.layout.profile(wanted.mig_profile) if gpu.layout else None
        if profile is None or profile.memory_mib < wanted.memory_mib:
            continue
        for start, bits in zip(profile.starts, profile.masks(), strict=True):
            if bits & ~gpu.free:
                continue
            doomed = sum(1 for device in gpu.idle if _slots_of(gpu, device) & bits)
            options.append((doomed, gpu.loss(bits, weights), gpu.free.bit_count(), start, place, bits))
    if not options:
        return None
    _, loss, _, start, place, bits = min(options)
    gpu = gpus[place]
    gpu.free &= ~bits
    doomed_devices = [device for device in gpu.idle if _slots_of(gpu, device) & bits]
    gpu.idle = [device for device in gpu.idle if device not in doomed_devices]
    gpu.destroyed.extend(doomed_devices)
    gpu.created.append(MigSlice(wanted.mig_profile, start))
    return loss


def _slots_of(gpu: _Gpu, device: DeviceCapacity) -> int:
    return (_bits(gpu.layout, device) or 0) if gpu.layout else 0
