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
from provisioning.drivers.simulated.mig_profiles import legal, profiles
from provisioning.drivers.simulated.script import Topology
from provisioning.errors import NoCapacity
from provisioning.types import DeviceInfo, DeviceKind, MigRepartition, MigSlice


@dataclass(frozen=True, slots=True)
class Instance:
    """An existing MIG instance."""

    uuid: str
    piece: MigSlice


def standing(connection: sqlite3.Connection, topology: Topology, gpu: str) -> tuple[Instance, ...]:
    """Return the current instances of one GPU, by start."""
    row = connection.execute("SELECT pieces FROM layouts WHERE device = ?", (gpu,)).fetchone()
    return _first(gpu, topology.layout) if row is None else _read(row[0])


def all_standing(connection: sqlite3.Connection) -> dict[str, tuple[Instance, ...]]:
    """Return the instances of all GPUs whose layout was changed."""
    found = connection.execute("SELECT device, pieces FROM layouts")
    return {str(device): _read(pieces) for device, pieces in found}


def find(
    connection: sqlite3.Connection, pool: str, topology: Topology, uuid: str
) -> tuple[str, Instance] | None:
    """Return the instance with this UUID and its GPU, if it exists."""
    if not topology.layout or not uuid.startswith("SIM-MIG-"):
        return None
    changed = all_standing(connection)
    for gpu, instances in changed.items():
        for each in instances:
            if each.uuid == uuid:
                return gpu, each
    found = _firsts(pool, topology).get(uuid)
    return found if found is not None and found[0] not in changed else None


def change(
    connection: sqlite3.Connection, topology: Topology, wanted: MigRepartition, busy: Collection[str]
) -> tuple[str, ...]:
    """Carry out a change inside the transaction; returns the UUIDs of the new instances. Idempotent.

    Raises `NoCapacity` if an instance to destroy is in use or missing, or the layout is not legal.
    """
    now = standing(connection, topology, wanted.parent_uuid)
    by_uuid = {each.uuid: each for each in now}
    by_piece = {each.piece: each.uuid for each in now}
    if not set(wanted.destroy) & set(by_uuid) and set(wanted.create) <= set(by_piece):
        return tuple(by_piece[piece] for piece in wanted.create)
    for uuid in wanted.destroy:
        if uuid not in by_uuid:
            raise NoCapacity(f"MIG instance {uuid} is no longer there. The workspace is placed again.")
        if uuid in busy:
            raise NoCapacity(f"MIG instance {uuid} is in use. The workspace is placed again.")
    left = [each for each in now if each.uuid not in wanted.destroy]
    if not legal((*(each.piece for each in left), *wanted.create), topology.gpu_memory_mib):
        raise NoCapacity("The GPU refuses this MIG layout, the old one stands. Place the workspace again.")
    row = connection.execute("SELECT serial FROM layouts WHERE device = ?", (wanted.parent_uuid,)).fetchone()
    serial = 1 if row is None else int(row[0]) + 1
    made = [Instance(_uuid(wanted.parent_uuid, piece, serial), piece) for piece in wanted.create]
    pieces = json.dumps(
        [
            [each.uuid, each.piece.profile, each.piece.start]
            for each in sorted([*left, *made], key=lambda each: each.piece.start)
        ]
    )
    connection.execute(
        "INSERT INTO layouts (device, serial, pieces) VALUES (?, ?, ?) "
        "ON CONFLICT (device) DO UPDATE SET serial = excluded.serial, pieces = excluded.pieces",
        (wanted.parent_uuid, serial, pieces),
    )
    return tuple(each.uuid for each in made)


def devices(
    gpu: DeviceInfo, topology: Topology, instances: tuple[Instance, ...] | None
) -> Iterator[DeviceInfo]:
    """Yield the instances of a GPU for inventory."""
    known = profiles(topology.gpu_memory_mib)
    for each in _first(gpu.uuid, topology.layout) if instances is None else instances:
        profile = known[each.piece.profile]
        yield DeviceInfo(
            uuid=each.uuid,
            index=gpu.index,
            model=f"{gpu.model} MIG {profile.name}",
            memory_mib=profile.memory_mib,
            kind=DeviceKind.MIG,
            parent_uuid=gpu.uuid,
            mig_profile=profile.name,
            mig_start=each.piece.start,
        )


def memory_of(topology: Topology, instance: Instance) -> int:
    """Return the memory of an instance in MiB."""
    return profiles(topology.gpu_memory_mib)[instance.piece.profile].memory_mib


@lru_cache(maxsize=4096)
def _first(gpu: str, layout: tuple[MigSlice, ...]) -> tuple[Instance, ...]:
    return tuple(Instance(_uuid(gpu, piece, 0), piece) for piece in layout)


@lru_cache(maxsize=32)
def _firsts(pool: str, topology: Topology) -> dict[str, tuple[str, Instance]]:
    return {
        each.uuid: (gpu, each)
        for gpu in hardware.gpu_uuids(pool, topology)
        for each in _first(gpu, topology.layout)
    }


def _uuid(gpu: str, piece: MigSlice, serial: int) -> str:
    """Return a UUID that differs whenever an instance is created again."""
    digest = hashlib.sha256(f"{gpu}/{piece.profile}@{piece.start}/{serial}".encode()).hexdigest()
    return f"SIM-MIG-{digest[:8]}-{digest[8:12]}-{digest[12:16]}-{digest[16:20]}-{digest[20:32]}"


def _read(pieces: str) -> tuple[Instance, ...]:
    return tuple(Instance(uuid, MigSlice(profile, start)) for uuid, profile, start in json.loads(pieces))
