"""Keeps devices of one request close: NVLink island, then NUMA node, then node; across nodes rack, block."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from portal.scheduling.engine.placement.arrays import Bools
from portal.scheduling.engine.placement.types import DeviceCapacity
from provisioning.types import Within

TIGHTEST_FIRST = (Within.ISLAND, Within.NUMA, Within.NODE)


def bond_of(device: DeviceCapacity, within: Within) -> str | int | None:
    """The island, NUMA node or node that the device belongs to; None where it is not known."""
    if within is Within.ISLAND:
        return device.island or None
    if within is Within.NUMA:
        return device.numa if device.numa >= 0 else None
    return 0


def groups(devices: Sequence[DeviceCapacity], eligible: Bools, within: Within) -> list[list[int]]:
    """Columns of the eligible devices by what bonds them, each in the order of the columns."""
    found: dict[str | int, list[int]] = {}
    for column, device in enumerate(devices):
        if eligible[column] and (bond := bond_of(device, within)) is not None:
            found.setdefault(bond, []).append(column)
    return list(found.values())


def largest_group(devices: Sequence[DeviceCapacity], eligible: Bools, within: Within) -> int:
    """How many eligible devices share one bond, at most."""
    return max((len(group) for group in groups(devices, eligible, within)), default=0)


def tightest(
    devices: Sequence[DeviceCapacity],
    eligible: Bools,
    count: int,
    required: Within,
    order: Callable[[int], int],
) -> tuple[int, int, list[int]] | None:
    """The smallest sufficient group of the tightest bond: its rank (0 is an island), size and columns.

    Inside the group, and between groups of one size, the devices that `order` puts first are taken.
    None when no group that satisfies `required` is large enough.
    """
    for rank, within in enumerate(TIGHTEST_FIRST):
        enough = [group for group in groups(devices, eligible, within) if len(group) >= count]
        if enough:
            ranked = [sorted(group, key=lambda column: (order(column), column)) for group in enough]
            best = min(
                ranked,
                key=lambda group: (len(group), [order(column) for column in group[:count]], group[:count]),
            )
            return rank, len(best), best[:count]
        if within is required:
            return None
    return None
