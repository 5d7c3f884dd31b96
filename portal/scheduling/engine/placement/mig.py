"""Chooses MIG instances, and plans changes to a GPU's MIG layout.

An instance takes consecutive slots of its GPU's memory axis (8 slots; 4 on an A30). A layout is legal if the
instances do not overlap and each starts where its profile may start (`mig_layouts`). The existing instances
come from the snapshot, which drivers fill from the device.

Fragmentation is measured as for whole GPUs, on the mask of unused slots: the free slots that no legal
placement of a profile can cover, summed over all profiles and weighted by popularity.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache

from portal.scheduling.engine.placement.arrays import mig_parents
from portal.scheduling.engine.placement.mig_layouts import Geometry, Profile, geometry
from portal.scheduling.engine.placement.types import DeviceCapacity, NodeCapacity
from provisioning.types import (
    WHOLE_DEVICE_MILLI,
    AcceleratorRequest,
    DeviceGrant,
    DeviceKind,
    MigRepartition,
    MigSlice,
    NodePlacement,
)

Weights = tuple[tuple[str, int], ...]


@lru_cache(maxsize=4096)
def fragmentation(layout: Geometry, free: int, weights: Weights) -> int:
    """Return the sum of weight × free slots that the profile cannot cover. `free` has a bit per free slot."""
    total = 0
    for profile, weight in _weighted(layout, weights):
        covered = 0
        for placed in profile.masks():
            if placed & ~free == 0:
                covered |= placed
        total += weight * (free & ~covered).bit_count()
    return total


def _weighted(layout: Geometry, weights: Weights) -> list[tuple[Profile, int]]:
    """Return the layout's profiles with their weights; equal weights if the mix requests none of them.

    A profile with media extensions takes the same slots as the one without, and counts only if requested.
    """
    weights_by_name = dict(weights)
    pairs = [
        (profile, weights_by_name[profile.name])
        for profile in layout.profiles
        if profile.name in weights_by_name
    ]
    return pairs or [(profile, 1) for profile in layout.profiles if not profile.media]


@dataclass(slots=True)
class _Gpu:
    """One GPU with MIG instances: its free slots and idle instances.

    `kept` lists the profiles of the instances that stay, in use or not.
    """

    uuid: str
    layout: Geometry | None
    free: int
    idle: list[DeviceCapacity]
    kept: list[str] = field(default_factory=list)
    warned: bool = False
    fixed: bool = False
    chosen: list[DeviceCapacity] = field(default_factory=list)
    created: list[MigSlice] = field(default_factory=list)
    destroyed: list[DeviceCapacity] = field(default_factory=list)

    def warned_of(self, device: DeviceCapacity) -> bool:
        """Return whether the instance or its GPU has a warning."""
        return self.warned or device.warned

    def loss(self, taken: int, weights: Weights) -> int:
        """Return by how much fragmentation grows if the slots `taken` are allocated, in slots × weight."""
        if self.layout is None:
            return 0
        before = fragmentation(self.layout, self.free, weights)
        return fragmentation(self.layout, self.free & ~taken, weights) - before

    def slots_of(self, device: DeviceCapacity) -> int:
        return (_bits(self.layout, device) or 0) if self.layout else 0

    def instances_to_destroy(self, profile: Profile, bits: int) -> list[DeviceCapacity] | None:
        """Return the idle instances to destroy before one can be created on these slots; None if impossible.

        Such instances overlap with the slots, or use up the GPU's maximum of the profile or of media
        extensions.
        """
        if bits & ~self.free:
            return None
        staying = [*self.kept, *(piece.profile for piece in self.created)]
        alike, media = staying.count(profile.name), profile.media and any(map(self._has_media, staying))
        if alike >= profile.most or media:
            return None
        destroyed = []
        for device in self.idle:
            rival = profile.media and self._has_media(device.mig_profile)
            if self.slots_of(device) & bits or rival:
                destroyed.append(device)
            elif device.mig_profile == profile.name:
                alike += 1
                if alike >= profile.most:
                    destroyed.append(device)
        return destroyed

    def _has_media(self, name: str) -> bool:
        profile = self.layout.profile(name) if self.layout else None
        return profile is not None and profile.media


@dataclass(frozen=True, slots=True)
class MigChoice:
    """Instances to allocate on one node, their cost (`loss`, in slots × weight) and the layout changes.

    `warned`: an instance or its GPU has a warning. `slots_free`: total number of free slots on the GPUs.
    """

    grants: tuple[DeviceGrant, ...]
    repartitions: tuple[MigRepartition, ...]
    loss: int
    destroyed: int
    created: int = 0
    warned: bool = False
    slots_free: int = 0


@dataclass(frozen=True, slots=True, order=True)
class _Option:
    """One candidate instance, idle or new. The smallest option is chosen.

    The location comes first, because a bad one costs other requests capacity for as long as it is in use. At
    equal cost, an existing instance is preferred, then a new one that destroys the fewest instances.
    """

    warned: bool
    loss: int
    destroyed: int
    new: bool
    slots_free: int
    start: int
    gpu: int
    spot: int
    """Index of the idle instance, or -1 for a new one."""


def choose(
    node: NodeCapacity, accelerators: AcceleratorRequest, weights: Weights, *, repartition: bool = False
) -> MigChoice | None:
    """Return the instances for the request on this node, or None. Plans new ones only with `repartition`."""
    gpus = _gpus(node, accelerators)
    loss = slots_free = 0
    warned = False
    for _ in range(accelerators.count):
        options = [*_idle_options(gpus, accelerators, weights)]
        if repartition:
            options += _new_options(gpus, accelerators, weights)
        if not options:
            return None
        best = min(options)
        loss += best.loss
        slots_free += best.slots_free
        warned |= best.warned
        _take(gpus[best.gpu], best, accelerators)
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
    return MigChoice(
        grants,
        changes,
        loss,
        destroyed=sum(len(gpu.destroyed) for gpu in gpus),
        created=sum(len(gpu.created) for gpu in gpus),
        warned=warned,
        slots_free=slots_free,
    )


def with_repartition(node: NodeCapacity, part: NodePlacement) -> tuple[NodeCapacity, NodePlacement]:
    """Return the node and the placement on it as if the plan of `part` had been executed.

    New instances have no UUIDs yet and get `planned_uuid` instead.
    """
    destroyed_uuids = {uuid for change in part.repartitions for uuid in change.destroy}
    devices = [device for device in node.devices if device.uuid not in destroyed_uuids]
    grants = list(part.devices)
    for change in part.repartitions:
        parent = next(device for device in node.devices if device.uuid == change.parent_uuid)
        layout = layout_of(parent)
        for piece in change.create:
            profile = layout.profile(piece.profile) if layout else None
            grants.append(DeviceGrant(planned_uuid(change.parent_uuid, piece)))
            devices.append(
                DeviceCapacity(
                    uuid=grants[-1].uuid,
                    model=parent.model,
                    memory_mib=profile.memory_mib if profile else 0,
                    kind=DeviceKind.MIG,
                    parent_uuid=change.parent_uuid,
                    mig_profile=piece.profile,
                    mig_start=piece.start,
                    numa=parent.numa,
                )
            )
    return replace(node, devices=tuple(devices)), NodePlacement(part.node, tuple(grants))


def planned_uuid(parent_uuid: str, piece: MigSlice) -> str:
    """Return a substitute UUID for an instance that does not exist yet."""
    return f"{parent_uuid}/{piece.profile}@{piece.start}"


def layout_of(gpu: DeviceCapacity) -> Geometry | None:
    """Return the layout of a GPU as reported by its driver, else from the table."""
    return gpu.layout or geometry(gpu.model, gpu.memory_mib)


def instances(node: NodeCapacity, accelerators: AcceleratorRequest) -> list[DeviceCapacity]:
    """Return the node's instances that match the request, in use or not."""
    models = frozenset(accelerators.allowed_models)
    parents = {device.uuid: device.model for device in node.devices}
    return [
        device
        for device in node.devices
        if device.kind is DeviceKind.MIG
        and device.mig_profile == accelerators.mig_profile
        and device.memory_mib >= accelerators.memory_mib
        and (not models or device.model in models or parents.get(device.parent_uuid) in models)
    ]


def is_idle(node: NodeCapacity, device: DeviceCapacity) -> bool:
    """Return whether the instance is unused, and both it and its GPU are in service."""
    if not _is_unused(device):
        return False
    return not any(parent.uuid == device.parent_uuid and parent.unusable for parent in node.devices)


def _is_unused(device: DeviceCapacity) -> bool:
    return device.unusable is None and device.free_milli >= WHOLE_DEVICE_MILLI


def _gpus(node: NodeCapacity, accelerators: AcceleratorRequest) -> list[_Gpu]:
    gpus_by_uuid = {device.uuid: device for device in node.devices if device.kind is not DeviceKind.MIG}
    models = frozenset(accelerators.allowed_models)
    carriers = mig_parents(node) | {device.uuid for device in gpus_by_uuid.values() if device.mig_mode}
    suitable = {device.uuid for device in instances(node, accelerators)}
    gpus = []
    children_of: dict[str, list[DeviceCapacity]] = {}
    for device in node.devices:
        siblings = children_of.setdefault(device.parent_uuid or device.uuid, [])
        if device.kind is DeviceKind.MIG:
            siblings.append(device)
    for uuid, children in children_of.items():
        if uuid not in carriers:
            continue
        parent = gpus_by_uuid.get(uuid)
        parent_works = parent is None or parent.unusable is None
        layout = layout_of(parent) if parent and not parent.unusable else None
        if layout is not None and any(_bits(layout, device) is None for device in children):
            layout = None
        if layout is not None and models and parent is not None and parent.model not in models:
            layout = None
        gpu = _Gpu(uuid, layout, (1 << layout.slots) - 1 if layout else 0, [])
        gpu.warned = parent is not None and parent.warned
        gpu.fixed = parent is None or parent.fixed
        for device in children:
            if (
                parent_works
                and _is_unused(device)
                and (device.uuid in suitable or device.mig_profile != accelerators.mig_profile)
            ):
                gpu.idle.append(device)
            else:
                gpu.kept.append(device.mig_profile)
                gpu.free &= ~gpu.slots_of(device)
        gpus.append(gpu)
    return gpus


def _bits(layout: Geometry, device: DeviceCapacity) -> int | None:
    """Return the slots of an existing instance; None if its profile or start is unknown."""
    profile = layout.profile(device.mig_profile)
    if profile is None or device.mig_start not in profile.starts:
        return None
    return ((1 << profile.width) - 1) << device.mig_start


def _idle_options(
    gpus: Sequence[_Gpu], accelerators: AcceleratorRequest, weights: Weights
) -> Iterator[_Option]:
    for place, gpu in enumerate(gpus):
        for spot, device in enumerate(gpu.idle):
            if device.mig_profile == accelerators.mig_profile:
                yield _Option(
                    warned=gpu.warned_of(device),
                    loss=gpu.loss(gpu.slots_of(device), weights),
                    destroyed=0,
                    new=False,
                    slots_free=gpu.free.bit_count(),
                    start=device.mig_start,
                    gpu=place,
                    spot=spot,
                )


def _new_options(
    gpus: Sequence[_Gpu], accelerators: AcceleratorRequest, weights: Weights
) -> Iterator[_Option]:
    for place, gpu in enumerate(gpus):
        profile = gpu.layout.profile(accelerators.mig_profile) if gpu.layout and not gpu.fixed else None
        if profile is None or profile.memory_mib < accelerators.memory_mib:
            continue
        for start, bits in zip(profile.starts, profile.masks(), strict=True):
            destroyed = gpu.instances_to_destroy(profile, bits)
            if destroyed is None:
                continue
            yield _Option(
                warned=gpu.warned,
                loss=gpu.loss(bits, weights),
                destroyed=len(destroyed),
                new=True,
                slots_free=gpu.free.bit_count(),
                start=start,
                gpu=place,
                spot=-1,
            )


def _take(gpu: _Gpu, option: _Option, accelerators: AcceleratorRequest) -> None:
    if not option.new:
        device = gpu.idle.pop(option.spot)
        gpu.kept.append(device.mig_profile)
        gpu.free &= ~gpu.slots_of(device)
        gpu.chosen.append(device)
        return
    profile = gpu.layout.profile(accelerators.mig_profile) if gpu.layout else None
    assert profile is not None  # only GPUs with the profile yield options
    bits = ((1 << profile.width) - 1) << option.start
    destroyed = gpu.instances_to_destroy(profile, bits) or []
    gpu.idle = [device for device in gpu.idle if device not in destroyed]
    gpu.destroyed.extend(destroyed)
    gpu.free &= ~bits
    gpu.created.append(MigSlice(accelerators.mig_profile, option.start))
