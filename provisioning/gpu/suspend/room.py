"""Whether the host has memory for the GPU memory of suspended processes. Pure functions.

Suspended GPU memory becomes ordinary memory of the same process, so its workspace's limit applies first. If
the limit is exceeded, the kernel kills a process and its state is lost.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from provisioning.gpu.suspend.run import GpuSnapshot

SPARE_BYTES = 256 << 20
"""Additional free memory: for page tables, and for the app itself meanwhile."""


@dataclass(frozen=True, slots=True)
class Shortage:
    """`where` lacks memory: `workspace` reaches its limit, or `node` has no more."""

    where: str
    needed_bytes: int
    free_bytes: int


def held_bytes(snapshot: GpuSnapshot, pids: Iterable[int]) -> int:
    """Return the GPU memory of processes in bytes.

    If it is unknown for a process, all used memory of its GPU counts.
    """
    total = 0
    for uuid, users in snapshot.used_by(pids).items():
        amounts = list(users.values())
        known_bytes = sum(amount for amount in amounts if amount is not None)
        total += known_bytes if None not in amounts else max(known_bytes, snapshot.gpus[uuid].used)
    return total


def shortage(size: int, free: Mapping[str, int]) -> Shortage | None:
    """Return where `size` bytes and the reserve do not fit, by the tightest of `free`; None if they fit."""
    needed = size + SPARE_BYTES
    tightest = min(free.items(), key=lambda item: item[1], default=None)
    if tightest is None or tightest[1] >= needed:
        return None
    return Shortage(tightest[0], needed, tightest[1])
