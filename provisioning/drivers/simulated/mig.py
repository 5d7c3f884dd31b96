"""MIG layouts of simulated GPUs.

A GPU has the layout of the pool's settings until its first change; then its layout is stored in the state.
"""

from __future__ import annotations

import hashlib
import json
import sqlite3
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from functools import lru_cache

from provisioning.drivers.simulated import hardware
from provisioning.drivers.simulated.mig_profiles import is_legal, profiles
from provisioning.drivers.simulated.script import Topology
from provisioning.errors import NoCapacity
from provisioning.types import DeviceInfo, DeviceKind, MigRepartition, MigSlice


@dataclass(frozen=True, slots=True)
class Instance:
    """An existing MIG instance."""

    uuid: str
    piece: MigSlice


def current_instances(connection: sqlite3.Connection, topology: Topology, gpu: str) -> tuple[Instance, ...]:
    """Return the current instances of one GPU, by start."""
    row = connection.execute("SELECT pieces FROM layouts WHERE device = ?", (gpu,)).fetchone()
    return _initial_layout(gpu, topology.layout) if row is None else _read(row[0])


def changed_layouts(connection: sqlite3.Connection) -> dict[str, tuple[Instance, ...]]:
    """Return the instances of all GPUs whose layout was changed."""
    rows = connection.execute("SELECT device, pieces FROM layouts")
    return {str(device): _read(pieces) for device, pieces in rows}


def find(
    connection: sqlite3.Connection, pool: str, topology: Topology, uuid: str
) -> tuple[str, Instance] | None:
    """Return the instance with this UUID and its GPU, if it exists."""
    if not topology.layout or not uuid.startswith("SIM-MIG-"):
        return None
    changed = changed_layouts(connection)
    for gpu, instances in changed.items():
        for instance in instances:
            if instance.uuid == uuid:
                return gpu, instance
    gpu_and_instance = _initial_instances(pool, topology).get(uuid)
    return gpu_and_instance if gpu_and_instance is not None and gpu_and_instance[0] not in changed else None


def change(
    connection: sqlite3.Connection, topology: Topology, repartition: MigRepartition, busy: Collection[str]
) -> tuple[str, ...]:
    """Carry out a change inside the transaction; return the UUIDs of the new instances. Idempotent.

    Raises `NoCapacity` if an instance to destroy is in use or missing, or the layout is not legal.
    """
    current = current_instances(connection, topology, repartition.parent_uuid)
    by_uuid = {instance.uuid: instance for instance in current}
    by_piece = {instance.piece: instance.uuid for instance in current}
    if not set(repartition.destroy) & set(by_uuid) and set(repartition.create) <= set(by_piece):
        return tuple(by_piece[piece] for piece in repartition.create)
    for uuid in repartition.destroy:
        if uuid not in by_uuid:
            raise NoCapacity(f"MIG instance {uuid} is missing.")
        if uuid in busy:
            raise NoCapacity(f"MIG instance {uuid} is in use.")
    remaining = [instance for instance in current if instance.uuid not in repartition.destroy]
    if not is_legal(
        (*(instance.piece for instance in remaining), *repartition.create), topology.gpu_memory_mib
    ):
        raise NoCapacity("The GPU rejected the MIG layout and kept the old one.")
    row = connection.execute(
        "SELECT serial FROM layouts WHERE device = ?", (repartition.parent_uuid,)
    ).fetchone()
    serial = 1 if row is None else int(row[0]) + 1
    created = [Instance(_uuid(repartition.parent_uuid, piece, serial), piece) for piece in repartition.create]
    pieces = json.dumps(
        [
            [instance.uuid, instance.piece.profile, instance.piece.start]
            for instance in sorted([*remaining, *created], key=lambda instance: instance.piece.start)
        ]
    )
    connection.execute(
        "INSERT INTO layouts (device, serial, pieces) VALUES (?, ?, ?) "
        "ON CONFLICT (device) DO UPDATE SET serial = excluded.serial, pieces = excluded.pieces",
        (repartition.parent_uuid, serial, pieces),
    )
    return tuple(instance.uuid for instance in created)


def devices(
    gpu: DeviceInfo, topology: Topology, instances: tuple[Instance, ...] | None
) -> Iterator[DeviceInfo]:
    """Yield the instances of a GPU for inventory."""
    by_name = profiles(topology.gpu_memory_mib)
    for instance in _initial_layout(gpu.uuid, topology.layout) if instances is None else instances:
        profile = by_name[instance.piece.profile]
        yield DeviceInfo(
            uuid=instance.uuid,
            index=gpu.index,
            model=f"{gpu.model} MIG {profile.name}",
            memory_mib=profile.memory_mib,
            kind=DeviceKind.MIG,
            parent_uuid=gpu.uuid,
            mig_profile=profile.name,
            mig_start=instance.piece.start,
        )


def memory_of(topology: Topology, instance: Instance) -> int:
    """Return the memory of an instance in MiB."""
    return profiles(topology.gpu_memory_mib)[instance.piece.profile].memory_mib


@lru_cache(maxsize=4096)
def _initial_layout(gpu: str, layout: tuple[MigSlice, ...]) -> tuple[Instance, ...]:
    return tuple(Instance(_uuid(gpu, piece, 0), piece) for piece in layout)


@lru_cache(maxsize=32)
def _initial_instances(pool: str, topology: Topology) -> dict[str, tuple[str, Instance]]:
    return {
        instance.uuid: (gpu, instance)
        for gpu in hardware.gpu_uuids(pool, topology)
        for instance in _initial_layout(gpu, topology.layout)
    }


def _uuid(gpu: str, piece: MigSlice, serial: int) -> str:
    """Return a UUID that differs whenever an instance is created again."""
    digest = hashlib.sha256(f"{gpu}/{piece.profile}@{piece.start}/{serial}".encode()).hexdigest()
    return f"SIM-MIG-{digest[:8]}-{digest[8:12]}-{digest[12:16]}-{digest[16:20]}-{digest[20:32]}"


def _read(pieces: str) -> tuple[Instance, ...]:
    return tuple(Instance(uuid, MigSlice(profile, start)) for uuid, profile, start in json.loads(pieces))
