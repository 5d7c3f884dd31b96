"""Change the MIG layout of one GPU: replace idle instances by new ones, safely even if killed meanwhile.

A change is written to a journal on disk before anything is destroyed. The journal is removed once the new
layout exists. Any process that finds a journal whose lock is free finishes the change (`recover`), or
restores the old layout if that fails. Observers therefore see either the old layout or the new one.

    <base>/.mig/<uuid of the GPU>.json    the change in progress (`PartitionJournal`)
    <base>/.mig/<uuid of the GPU>.lock    held while a process works on it
    <base>/.mig/<uuid of the GPU>.before  its previous instances, reported while the change is in progress
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import msgspec

from provisioning.drivers.local.state import write_atomically
from provisioning.errors import BackendUnavailable, NoCapacity, UncleanDevices
from provisioning.gpu.nvml import (
    Device,
    GpuInstance,
    Nvml,
    NvmlProblem,
    destroy_compute_instance,
    session,
)
from provisioning.types import DeviceInfo, MigRepartition, MigSlice

FOLDER = ".mig"
LOCK_WAIT_S = 10.0
"""An inventory holds the lock for much less than this."""
LOCK_POLL_INTERVAL_S = 0.05
Scrub = Callable[[str], bool]
"""Scrubs an instance by its UUID and returns whether it is proven clean."""


@dataclass(frozen=True, slots=True)
class PartitionJournal:
    """A change in progress: instances to destroy, as they were, and instances to create."""

    parent_uuid: str
    destroy: tuple[MigSlice, ...]
    create: tuple[MigSlice, ...]


def repartition(
    base: Path, change: MigRepartition, scrub: Scrub, *, before: Callable[[], Sequence[DeviceInfo]] = tuple
) -> tuple[str, ...]:
    """Carry out `change`; return the UUIDs of the new instances in the order of `change.create`.

    `before` returns the GPU's current instances, which inventory reports until the change is complete.

    Idempotent. Raises `NoCapacity` if an instance to destroy is in use or missing, or the GPU refuses the
    layout; the old layout remains. Raises `UncleanDevices` if memory could not be proven clean before or
    after the change. Raises `BackendUnavailable` if the driver does not answer or another process works on
    the layout.
    """
    with _lock(base, change.parent_uuid, wait_s=LOCK_WAIT_S) as acquired:
        if not acquired:
            raise BackendUnavailable(
                "Another worker is changing this GPU's MIG layout. The portal retries automatically."
            )
        try:
            with session() as driver:
                _finish(base, driver, change.parent_uuid)
                _write_before(base, change.parent_uuid, before())
                gpu = driver.by_uuid(change.parent_uuid)
                if not _is_applied(gpu, change):
                    to_destroy = _instances_to_destroy(gpu, change)
                    for uuid, _ in to_destroy:
                        if not scrub(uuid):
                            raise UncleanDevices(
                                "An idle MIG instance could not be verified clean. Check its GPU.",
                                devices=(uuid,),
                            )
                    # Scrubbing takes a while, so check again that no instance is in use.
                    to_destroy = _instances_to_destroy(gpu, change)
                    journal = PartitionJournal(
                        change.parent_uuid, tuple(piece for _, piece in to_destroy), change.create
                    )
                    _write(base, journal)
                    _finish(base, driver, change.parent_uuid)
                    if not _is_applied(gpu, change):
                        raise NoCapacity(
                            "The GPU rejected the MIG layout and kept the old one.",
                            detail=f"{change}",
                        )
                uuids = tuple(_uuid_at(gpu, piece) for piece in change.create)
        except NvmlProblem as problem:
            raise BackendUnavailable(problem.sentence) from problem
        unclean = tuple(uuid for uuid in uuids if not scrub(uuid))
        if unclean:
            raise UncleanDevices(
                "A new MIG instance could not be verified clean. Check its GPU.", devices=unclean
            )
        return uuids


def recover(base: Path) -> bool:
    """Finish changes that a killed worker left.

    Call it before an inventory. Returns False while another process changes a layout, or if a change
    cannot be finished. Those GPUs then have neither the old nor the new layout.
    """
    complete = True
    for path in sorted((base / FOLDER).glob("*.json")) if (base / FOLDER).is_dir() else ():
        with _lock(base, path.stem) as acquired:
            if not acquired:
                complete = False
                continue
            try:
                with session() as driver:
                    _finish(base, driver, path.stem)
            except NvmlProblem:
                complete = False
    return complete


@contextlib.contextmanager
def layouts_locked(base: Path) -> Iterator[Mapping[str, tuple[DeviceInfo, ...]]]:
    """Block layout changes meanwhile; yield the GPUs where one is in progress.

    Each is mapped to its instances from before the change. A GPU whose layout changes for the first time is
    not known here yet: compare `repartitioned_gpus` before and after.
    """
    busy: dict[str, tuple[DeviceInfo, ...]] = {}
    with contextlib.ExitStack() as stack:
        for parent_uuid in repartitioned_gpus(base):
            acquired = stack.enter_context(_lock(base, parent_uuid, shared=True))
            if not acquired or _path(base, parent_uuid).exists():
                instances = _read_before(base, parent_uuid)
                if instances is not None:
                    busy[parent_uuid] = instances
        yield busy


def repartitioned_gpus(base: Path) -> tuple[str, ...]:
    """Return the GPUs whose layout was ever changed here."""
    return tuple(sorted(path.stem for path in (base / FOLDER).glob("*.lock")))


# -- the steps -------------------------------------------------------------------------------


def _finish(base: Path, driver: Nvml, parent_uuid: str) -> None:
    """Carry out the GPU's journal, if any: forward, or back if the new layout is refused."""
    journal = _read(base, parent_uuid)
    if journal is None:
        return
    gpu = driver.by_uuid(parent_uuid)
    try:
        _apply_layout(gpu, destroy=journal.destroy, create=journal.create)
    except NvmlProblem:
        _apply_layout(gpu, destroy=journal.create, create=journal.destroy)
    _path(base, parent_uuid).unlink(missing_ok=True)


def _apply_layout(gpu: Device, *, destroy: Sequence[MigSlice], create: Sequence[MigSlice]) -> None:
    """Destroy the instances in `destroy` and create those in `create`. Idempotent."""
    for piece in destroy:
        instance = None if piece in create else _instance_at(gpu, piece)
        if instance is not None:
            for compute in instance.compute_instances():
                destroy_compute_instance(compute)
            instance.destroy()
    for piece in create:
        instance = _instance_at(gpu, piece) or gpu.create_gpu_instance(piece.profile, piece.start)
        if not instance.compute_instances():
            instance.create_compute_instance()


def _instance_at(gpu: Device, piece: MigSlice) -> GpuInstance | None:
    """Return the GPU instance with this profile and start, if it exists."""
    return next((instance for instance in gpu.gpu_instances() if _piece(gpu, instance) == piece), None)


def _is_applied(gpu: Device, change: MigRepartition) -> bool:
    """Return whether the complete new layout exists already."""
    layout = _layout(gpu)
    pieces, uuids = {piece for _, piece, _ in layout}, {uuid for uuid, _, _ in layout}
    return set(change.create) <= pieces and not uuids & set(change.destroy)


def _instances_to_destroy(gpu: Device, change: MigRepartition) -> list[tuple[str, MigSlice]]:
    """Return the instances to destroy. Raises `NoCapacity` if one is in use or missing."""
    present = {uuid: (piece, busy) for uuid, piece, busy in _layout(gpu)}
    for uuid in change.destroy:
        if uuid not in present:
            raise NoCapacity(f"MIG instance {uuid} is missing.")
        if present[uuid][1]:
            raise NoCapacity(f"MIG instance {uuid} is in use.")
    return [(uuid, present[uuid][0]) for uuid in change.destroy]


def _uuid_at(gpu: Device, piece: MigSlice) -> str:
    return next(uuid for uuid, placed, _ in _layout(gpu) if placed == piece)


def _layout(gpu: Device) -> list[tuple[str, MigSlice, bool]]:
    """Return the instances available to tenants: UUID, profile and placement, and whether in use."""
    layout = []
    for instance in gpu.mig_devices():
        number = instance.gpu_instance_id()
        placed = None if number is None else gpu.gpu_instance_placement(number)
        if placed is not None:
            # Unknown counts as in use.
            processes = instance.processes()
            piece = MigSlice(gpu.profile_name(placed[0]), placed[1])
            layout.append((instance.uuid(), piece, processes is None or bool(processes)))
    return layout


def _piece(gpu: Device, instance: GpuInstance) -> MigSlice:
    return MigSlice(gpu.profile_name(instance.profile_id), instance.start)


# -- the journal -----------------------------------------------------------------------------


def _path(base: Path, parent_uuid: str) -> Path:
    return base / FOLDER / f"{parent_uuid}.json"


def _write(base: Path, journal: PartitionJournal) -> None:
    write_atomically(_path(base, journal.parent_uuid), json.dumps(asdict(journal)).encode())


def _read(base: Path, parent_uuid: str) -> PartitionJournal | None:
    try:
        return msgspec.json.decode(_path(base, parent_uuid).read_bytes(), type=PartitionJournal)
    except FileNotFoundError:
        return None


def _before_path(base: Path, parent_uuid: str) -> Path:
    return base / FOLDER / f"{parent_uuid}.before"


def _write_before(base: Path, parent_uuid: str, instances: Sequence[DeviceInfo]) -> None:
    write_atomically(_before_path(base, parent_uuid), msgspec.json.encode(list(instances)))


def _read_before(base: Path, parent_uuid: str) -> tuple[DeviceInfo, ...] | None:
    try:
        text = _before_path(base, parent_uuid).read_bytes()
    except FileNotFoundError:
        return None
    return msgspec.json.decode(text, type=tuple[DeviceInfo, ...])


@contextlib.contextmanager
def _lock(base: Path, parent_uuid: str, *, shared: bool = False, wait_s: float = 0.0) -> Iterator[bool]:
    """Lock the GPU's layout; yield whether that succeeded. The kernel unlocks it if the holder dies."""
    kind = fcntl.LOCK_SH if shared else fcntl.LOCK_EX
    until = time.monotonic() + wait_s
    folder = base / FOLDER
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    descriptor = os.open(folder / f"{parent_uuid}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    acquired = False
    try:
        while not (acquired := _try_lock(descriptor, kind)) and time.monotonic() < until:
            time.sleep(LOCK_POLL_INTERVAL_S)
        yield acquired
    finally:
        if not shared and acquired and not _path(base, parent_uuid).exists():
            # The layout itself is readable again.
            _before_path(base, parent_uuid).unlink(missing_ok=True)
        os.close(descriptor)


def _try_lock(descriptor: int, kind: int) -> bool:
    try:
        fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
