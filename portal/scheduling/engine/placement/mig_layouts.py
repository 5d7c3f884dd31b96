"""Legal MIG layouts: the profiles of a GPU, their widths in slots, and their possible start slots.

Layouts reported by a GPU's driver take precedence (`reported_geometry`).
The table covers other GPUs and planning ahead.
Sources: NVIDIA's MIG user guide and, for newer models, the profiles and counts of NVIDIA's mig-parted. Models
with 8 memory slots share one layout. RTX PRO 4500, 5000 and 6000 Blackwell are missing because their
placements are not published.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any

MEDIA = "+me"
MAX_SLOTS = 64


@dataclass(frozen=True, slots=True)
class Profile:
    """A MIG profile: its memory, width in slots, possible start slots and maximum number per GPU.

    Profiles with media extensions (`+me`) need engines that each GPU has only once.
    """

    name: str
    memory_mib: int
    width: int
    starts: tuple[int, ...]
    most: int

    @property
    def media(self) -> bool:
        return MEDIA in self.name

    def masks(self) -> tuple[int, ...]:
        """Return the slots of each legal placement, as bit masks."""
        return tuple(((1 << self.width) - 1) << start for start in self.starts)


@dataclass(frozen=True)
class Geometry:
    """The slots of a GPU model and its profiles, by name."""

    slots: int
    profiles: tuple[Profile, ...]

    @cached_property
    def by_name(self) -> Mapping[str, Profile]:
        return {profile.name: profile for profile in self.profiles}

    @cached_property
    def _hash(self) -> int:
        return hash((self.slots, self.profiles))

    def __hash__(self) -> int:
        # Used as a cache key for every GPU of every decision.
        return self._hash

    def profile(self, name: str) -> Profile | None:
        return self.by_name.get(name)


# Width, starts and maximum number of each profile, in the order of the names below.
_EIGHT = (
    (1, (0, 1, 2, 3, 4, 5, 6), 7),
    (1, (0, 1, 2, 3, 4, 5, 6), 1),
    (2, (0, 2, 4, 6), 4),
    (2, (0, 2, 4), 3),
    (4, (0, 4), 2),
    (4, (0,), 1),
    (8, (0,), 1),
)
_FOUR = ((1, (0, 1, 2, 3), 4), (1, (0, 1, 2, 3), 1), (2, (0, 2), 2), (2, (0, 2), 1), (4, (0,), 1))


def _layout(slots: int, *profiles: tuple[str, int]) -> Geometry:
    """Return the layout of models with this number of slots. `profiles` gives name and MiB of each."""
    shapes = {8: _EIGHT, 4: _FOUR}[slots]
    return Geometry(
        slots,
        tuple(
            Profile(name, mib, width, starts, most)
            for (name, mib), (width, starts, most) in zip(profiles, shapes, strict=True)
        ),
    )


def _mib(gib_hundredths: int) -> int:
    return gib_hundredths * 1024 // 100


def _layout_of_sizes(*gigabytes: int) -> Geometry:
    """Return a layout of 8 slots from the sizes in profile names alone: 1g, 1g double, 3g and 7g, in GB.

    Names round sizes up by at most 1/8 on every model with published sizes, so at least 7/8 of the named size
    exists.
    """
    one, double, half, full = gigabytes
    names = (
        (f"1g.{one}gb", one), (f"1g.{one}gb{MEDIA}", one), (f"1g.{double}gb", double),
        (f"2g.{double}gb", double), (f"3g.{half}gb", half), (f"4g.{half}gb", half), (f"7g.{full}gb", full),
    )  # fmt: skip
    return _layout(8, *((name, gb * 896) for name, gb in names))


_A30 = _layout(
    4,
    ("1g.6gb", _mib(581)), ("1g.6gb+me", _mib(581)), ("2g.12gb", _mib(1169)), ("2g.12gb+me", _mib(1169)),
    ("4g.24gb", _mib(2344)),
)  # fmt: skip
_A100_40 = _layout(
    8,
    ("1g.5gb", _mib(475)), ("1g.5gb+me", _mib(475)), ("1g.10gb", _mib(975)), ("2g.10gb", _mib(975)),
    ("3g.20gb", _mib(1962)), ("4g.20gb", _mib(1962)), ("7g.40gb", _mib(3938)),
)  # fmt: skip
_A100_80 = _layout(
    8,
    ("1g.10gb", _mib(950)), ("1g.10gb+me", _mib(950)), ("1g.20gb", _mib(1950)), ("2g.20gb", _mib(1950)),
    ("3g.40gb", _mib(3925)), ("4g.40gb", _mib(3925)), ("7g.80gb", _mib(7900)),
)  # fmt: skip
_H100_80 = _layout(
    8,
    ("1g.10gb", _mib(962)), ("1g.10gb+me", _mib(962)), ("1g.20gb", _mib(1950)), ("2g.20gb", _mib(1950)),
    ("3g.40gb", _mib(3925)), ("4g.40gb", _mib(3925)), ("7g.80gb", _mib(7925)),
)  # fmt: skip
_H200 = _layout(
    8,
    ("1g.18gb", _mib(1600)), ("1g.18gb+me", _mib(1600)), ("1g.35gb", _mib(3225)), ("2g.35gb", _mib(3225)),
    ("3g.71gb", _mib(6950)), ("4g.71gb", _mib(6950)), ("7g.141gb", _mib(13975)),
)  # fmt: skip
_B200 = _layout(
    8,
    ("1g.23gb", _mib(2050)), ("1g.23gb+me", _mib(2050)), ("1g.45gb", _mib(4425)), ("2g.45gb", _mib(4425)),
    ("3g.90gb", 90 * 896), ("4g.90gb", 90 * 896), ("7g.180gb", 180 * 896),
)  # fmt: skip

# Part of the model's name, memory range in MiB (from, below), and layout.
_GEOMETRIES: tuple[tuple[str, int, int, Geometry], ...] = (
    ("A30", 20_000, 30_000, _A30),
    ("A100", 35_000, 45_000, _A100_40),
    ("A100", 75_000, 90_000, _A100_80),
    ("H100", 75_000, 90_000, _H100_80),
    # The H100 NVL and other models with 94 GB, and models with 96 GB.
    ("H100", 93_000, 96_500, _layout_of_sizes(12, 24, 47, 94)),
    ("H100", 96_500, 100_000, _layout_of_sizes(12, 24, 48, 96)),
    ("H20", 93_000, 100_000, _layout_of_sizes(12, 24, 48, 96)),
    ("GH200", 93_000, 100_000, _layout_of_sizes(12, 24, 48, 96)),
    ("GH200", 140_000, 150_000, _layout_of_sizes(18, 36, 72, 144)),
    ("H200", 130_000, 150_000, _H200),
    ("B200", 170_000, 200_000, _B200),
    ("GB200", 180_000, 200_000, _layout_of_sizes(23, 47, 93, 186)),
    ("B300", 260_000, 300_000, _layout_of_sizes(34, 67, 135, 269)),
    ("GB300", 260_000, 300_000, _layout_of_sizes(35, 70, 139, 278)),
)


@lru_cache(maxsize=1024)
def geometry(model: str, memory_mib: int) -> Geometry | None:
    """Return the layout of a GPU from the table; None if it is unknown or the GPU has no MIG."""
    parts = model.upper().replace("-", " ").split()
    for name, least, below, match in _GEOMETRIES:
        if name in parts and least <= memory_mib < below:
            return match
    return None


def reported_geometry(profiles: Any) -> Geometry | None:
    """Return the layout reported by a driver; None if `profiles` is invalid.

    Each profile has `name`, `memory_mib`, `most` (its maximum number) and `placements` (start, size).
    """
    try:
        return _parse_profiles(
            tuple(
                (
                    str(profile["name"]),
                    int(profile["memory_mib"]),
                    int(profile["most"]),
                    tuple((int(start), int(size)) for start, size in profile["placements"]),
                )
                for profile in profiles
            )
        )
    except (KeyError, TypeError, ValueError):
        return None


@lru_cache(maxsize=256)
def _parse_profiles(
    profiles: tuple[tuple[str, int, int, tuple[tuple[int, int], ...]], ...],
) -> Geometry | None:
    layouts = []
    for name, memory_mib, most, places in profiles:
        widths = {size for _, size in places}
        if len(widths) == 1 and most > 0 and min(widths) > 0 and min(start for start, _ in places) >= 0:
            starts = tuple(sorted(start for start, _ in places))
            layouts.append(Profile(name, memory_mib, widths.pop(), starts, most))
    slots = max((profile.starts[-1] + profile.width for profile in layouts), default=0)
    return Geometry(slots, tuple(layouts)) if 0 < slots <= MAX_SLOTS else None
