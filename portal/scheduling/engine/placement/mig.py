"""MIG: choosing an instance, and planning another layout of a GPU.

An instance takes a run of slots on its GPU's memory axis (8 slots, on an A30 four). A layout is legal
when the runs do not overlap and each begins where its profile may begin (`mig_layouts`). What instances
exist is taken from the snapshot, which drivers fill from the device.

The measure is the same as for whole GPUs, on the mask of slots that no tenant uses: over the profiles
by popularity, the free slots that no legal placement of the profile could cover.
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
    """The layout's profiles with their weights; all count the same where the mix asks for none.

    One with media extensions takes the slots of the one without, and counts only where it is asked for.
    """
    known = dict(weights)
    asked = [(profile, known[profile.name]) for profile in layout.profiles if profile.name in known]
    return asked or [(profile, 1) for profile in layout.profiles if not profile.media]


@dataclass(slots=True)
class _Gpu:
    """One GPU that carries instances: which slots tenants use, and the instances that idle.

    `kept` are the profiles of the instances that stay, whoever uses them.
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
        """Whether the instance or its GPU has a warning."""
        return self.warned or device.warned

    def loss(self, taken: int, weights: Weights) -> int:
        """How much fragmentation grows when the slots `taken` are given away, in slots × weight."""
        if self.layout is None:
            return 0
        before = fragmentation(self.layout, self.free, weights)
        return fragmentation(self.layout, self.free & ~taken, weights) - before

    def slots_of(self, device: DeviceCapacity) -> int:
        return (_bits(self.layout, device) or 0) if self.layout else 0

    def makes_room(self, profile: Profile, bits: int) -> list[DeviceCapacity] | None:
        """The idle instances that have to go for one of the profile on these slots; None where none may be.

        They stand in its place, or use up what the GPU may have of its profile or of media extensions.
        """
        if bits & ~self.free:
            return None
        staying = [*self.kept, *(piece.profile for piece in self.created)]
        alike, media = staying.count(profile.name), profile.media and any(map(self._has_media, staying))
        if alike >= profile.most or media:
            return None
        doomed = []
        for device in self.idle:
            rival = profile.media and self._has_media(device.mig_profile)
            if self.slots_of(device) & bits or rival:
                doomed.append(device)
            elif device.mig_profile == profile.name:
                alike += 1
                if alike >= profile.most:
                    doomed.append(device)
        return doomed

    def _has_media(self, name: str) -> bool:
        profile = self.layout.profile(name) if self.layout else None
        return profile is not None and profile.media


@dataclass(frozen=True, slots=True)
class MigChoice:
    """Instances to hand out on one node, what that costs (`loss`, in slots × weight), and layout changes.

    `warned` says that an instance, or the GPU that carries it, has a warning; `slots_free` sums how empty the
    GPUs were.
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
    """One instance that could be given, idle or new. The least is taken.

    Where it stands weighs most: a bad place costs others for as long as it is held. Of places that cost the
    same, one that stands already is taken, and a new one where the fewest have to go for it.
    """

    warned: bool
    loss: int
    destroyed: int
    new: bool
    slots_free: int
    start: int
    gpu: int
    spot: int
    """Which of the idle instances, or -1 for a new one."""


def choose(
    node: NodeCapacity, wanted: AcceleratorRequest, weights: Weights, *, repartition: bool = False
) -> MigChoice | None:
    """The instances for the request on this node, or None. Only with `repartition` new ones are made."""
    gpus = _gpus(node, wanted)
    loss = slots_free = 0
    warned = False
    for _ in range(wanted.count):
        options = [*_idle_options(gpus, wanted, weights)]
        if repartition:
            options += _new_options(gpus, wanted, weights)
        if not options:
            return None
        best = min(options)
        loss += best.loss
        slots_free += best.slots_free
        warned |= best.warned
        _take(gpus[best.gpu], best, wanted)
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


def carried_out(node: NodeCapacity, part: NodePlacement) -> tuple[NodeCapacity, NodePlacement]:
    """The node as it will be when the plan of `part` has been carried out, and the placement on it.

    The new instances get names of their own (`planned_uuid`): they have no UUIDs yet.
    """
    gone = {uuid for change in part.repartitions for uuid in change.destroy}
    devices = [device for device in node.devices if device.uuid not in gone]
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
    """Stands for an instance that is yet to be made."""
    return f"{parent_uuid}/{piece.profile}@{piece.start}"


def layout_of(gpu: DeviceCapacity) -> Geometry | None:
    """The layout of a GPU: as its driver tells it, else by the table."""
    return gpu.layout or geometry(gpu.model, gpu.memory_mib)


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
    if not _is_unused(device):
        return False
    return not any(parent.uuid == device.parent_uuid and parent.unusable for parent in node.devices)


def _is_unused(device: DeviceCapacity) -> bool:
    return device.unusable is None and device.free_milli >= WHOLE_DEVICE_MILLI


def _gpus(node: NodeCapacity, wanted: AcceleratorRequest) -> list[_Gpu]:
    known = {device.uuid: device for device in node.devices if device.kind is not DeviceKind.MIG}
    models = frozenset(wanted.allowed_models)
    carriers = mig_parents(node) | {device.uuid for device in known.values() if device.mig_mode}
    suitable = {device.uuid for device in instances(node, wanted)}
    gpus = []
    children_of: dict[str, list[DeviceCapacity]] = {}
    for device in node.devices:
        its = children_of.setdefault(device.parent_uuid or device.uuid, [])
        if device.kind is DeviceKind.MIG:
            its.append(device)
    for uuid, children in children_of.items():
        if uuid not in carriers:
            continue
        parent = known.get(uuid)
        sound = parent is None or parent.unusable is None
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
                sound
                and _is_unused(device)
                and (device.uuid in suitable or device.mig_profile != wanted.mig_profile)
            ):
                gpu.idle.append(device)
            else:
                gpu.kept.append(device.mig_profile)
                gpu.free &= ~gpu.slots_of(device)
        gpus.append(gpu)
    return gpus


def _bits(layout: Geometry, device: DeviceCapacity) -> int | None:
    """The slots of an existing instance; None where its profile or its start is not known."""
    profile = layout.profile(device.mig_profile)
    if profile is None or device.mig_start not in profile.starts:
        return None
    return ((1 << profile.width) - 1) << device.mig_start


def _idle_options(gpus: Sequence[_Gpu], wanted: AcceleratorRequest, weights: Weights) -> Iterator[_Option]:
    for place, gpu in enumerate(gpus):
        for spot, device in enumerate(gpu.idle):
            if device.mig_profile == wanted.mig_profile:
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


def _new_options(gpus: Sequence[_Gpu], wanted: AcceleratorRequest, weights: Weights) -> Iterator[_Option]:
    for place, gpu in enumerate(gpus):
        profile = gpu.layout.profile(wanted.mig_profile) if gpu.layout and not gpu.fixed else None
        if profile is None or profile.memory_mib < wanted.memory_mib:
            continue
        for start, bits in zip(profile.starts, profile.masks(), strict=True):
            doomed = gpu.makes_room(profile, bits)
            if doomed is None:
                continue
            yield _Option(
                warned=gpu.warned,
                loss=gpu.loss(bits, weights),
                destroyed=len(doomed),
                new=True,
                slots_free=gpu.free.bit_count(),
                start=start,
                gpu=place,
                spot=-1,
            )


def _take(gpu: _Gpu, option: _Option, wanted: AcceleratorRequest) -> None:
    if not option.new:
        device = gpu.idle.pop(option.spot)
        gpu.kept.append(device.mig_profile)
        gpu.free &= ~gpu.slots_of(device)
        gpu.chosen.append(device)
        return
    profile = gpu.layout.profile(wanted.mig_profile) if gpu.layout else None
    assert profile is not None  # that is how it came to be an option
    bits = ((1 << profile.width) - 1) << option.start
    doomed = gpu.makes_room(profile, bits) or []
    gpu.idle = [device for device in gpu.idle if device not in doomed]
    gpu.destroyed.extend(doomed)
    gpu.free &= ~bits
    gpu.created.append(MigSlice(wanted.mig_profile, option.start))
