"""Whether a host has room for what processes have in GPUs' memory. Pure.

What is brought away becomes ordinary memory of the very process, so the limits of its workspace count first:
where they are passed, the kernel ends a process, and what should have been kept is lost.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from provisioning.gpu.suspend.run import Look

SPARE_BYTES = 256 << 20
"""What stays free beside it: tables of pages, and what the app itself takes meanwhile."""


@dataclass(frozen=True, slots=True)
class Short:
    """`where` has less free than is needed: `workspace` is held to its limit, `node` has no more."""

    where: str
    needed_bytes: int
    free_bytes: int


def held_bytes(seen: Look, pids: Iterable[int]) -> int:
    """What processes have in GPUs' memory. Where it is not told of one, all that its GPU has in use."""
    total = 0
    for uuid, users in seen.used_by(pids).items():
        amounts = list(users.values())
        known = sum(amount for amount in amounts if amount is not None)
        total += known if None not in amounts else max(known, seen.gpus[uuid].used)
    return total


def shortage(held: int, free: Mapping[str, int]) -> Short | None:
    """Where there is no room for `held` bytes and what has to stay free; the tightest of `free` by name."""
    needed = held + SPARE_BYTES
    tightest = min(free.items(), key=lambda item: item[1], default=None)
    if tightest is None or tightest[1] >= needed:
        return None
    return Short(tightest[0], needed, tightest[1])
