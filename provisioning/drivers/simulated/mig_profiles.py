"""MIG profiles of simulated GPUs, and legal layouts."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from provisioning.types import MigSlice

SLOTS = 8
COMPUTE = 7
# Compute slices, memory slots, starts: as on an H100 or A100 with 80 GB, without media extensions.
_SHAPES = ((1, 1, (0, 1, 2, 3, 4, 5, 6)), (2, 2, (0, 2, 4)), (3, 4, (0, 4)), (4, 4, (0,)), (7, 8, (0,)))


@dataclass(frozen=True, slots=True)
class Profile:
    """A kind of instance: its compute slices and memory slots, and where it can start."""

    name: str
    compute: int
    width: int
    starts: tuple[int, ...]
    memory_mib: int

    def as_json(self) -> dict[str, Any]:
        """Return the profile in inventory's format."""
        return {
            "name": self.name,
            "memory_mib": self.memory_mib,
            "most": len(self.starts),
            "placements": [[start, self.width] for start in self.starts],
        }


@lru_cache(maxsize=32)
def profiles(gpu_memory_mib: int) -> dict[str, Profile]:
    """Return the profiles of a GPU with this memory, by name."""
    by_name = {}
    for compute, width, starts in _SHAPES:
        memory = gpu_memory_mib * width // SLOTS
        name = f"{compute}g.{max(1, round(memory / 1024))}gb"
        by_name[name] = Profile(name, compute, width, starts, memory)
    return by_name


def is_legal(pieces: tuple[MigSlice, ...], gpu_memory_mib: int) -> bool:
    """Return whether instances of these profiles and starts can coexist."""
    by_name, occupied, compute = profiles(gpu_memory_mib), 0, 0
    for piece in pieces:
        profile = by_name.get(piece.profile)
        if profile is None or piece.start not in profile.starts:
            return False
        bits = ((1 << profile.width) - 1) << piece.start
        if occupied & bits:
            return False
        occupied |= bits
        compute += profile.compute
    return compute <= COMPUTE


def parse(text: str, gpu_memory_mib: int) -> tuple[MigSlice, ...] | None:
    """Parse a layout like `1g.10gb@0, 3g.40gb@4`; None if invalid or not legal."""
    pieces = []
    for part in filter(None, (part.strip() for part in text.split(","))):
        match = re.fullmatch(r"([0-9a-z.+]+)@(\d)", part)
        if match is None:
            return None
        pieces.append(MigSlice(match[1], int(match[2])))
    layout = tuple(sorted(pieces, key=lambda piece: piece.start))
    return layout if is_legal(layout, gpu_memory_mib) else None
