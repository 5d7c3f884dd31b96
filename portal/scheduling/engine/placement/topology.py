"""Keeps a request's devices close: NUMA node and NVLink island, then NUMA node, island, node.

Across nodes, `cluster` prefers one rack, then one block.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import IntEnum

from portal.scheduling.engine.placement.arrays import Bools
from portal.scheduling.engine.placement.types import DeviceCapacity
from provisioning.types import Within


class Bond(IntEnum):
    """Common location of a group of devices, tightest first.

    An island may span several NUMA nodes (NVSwitch joins all GPUs of a host). Requests that need NVLink
    require an island; for all other requests, crossing NUMA nodes costs more.
    """

    ISLAND_IN_NUMA = 0
    NUMA = 1
    ISLAND = 2
    NODE = 3


SATISFYING = {
    Within.NODE: tuple(Bond),
    Within.NUMA: (Bond.ISLAND_IN_NUMA, Bond.NUMA),
    Within.ISLAND: (Bond.ISLAND_IN_NUMA, Bond.ISLAND),
}
"""The bonds that meet each requirement."""
Key = tuple[str, int]


def bond_of(device: DeviceCapacity, within: Within) -> str | int | None:
    """Return the island, NUMA node or node of the device; None if unknown."""
    if within is Within.ISLAND:
        return device.island or None
    if within is Within.NUMA:
        return device.numa if device.numa >= 0 else None
    return 0


def largest_group(devices: Sequence[DeviceCapacity], eligible: Bools, within: Within) -> int:
    """Return the size of the largest group of eligible devices with this bond."""
    counts: dict[str | int, int] = {}
    for column, device in enumerate(devices):
        if eligible[column] and (bond := bond_of(device, within)) is not None:
            counts[bond] = counts.get(bond, 0) + 1
    return max(counts.values(), default=0)


def tightest_group(
    devices: Sequence[DeviceCapacity],
    eligible: Bools,
    count: int,
    required: Within,
    order: Callable[[int], int],
) -> tuple[Bond, int, list[int]] | None:
    """Return the smallest sufficient group of the tightest bond: the bond, its size and the columns to take.

    Among groups, the one that needs the fewest devices with a warning wins; within a group, `order` decides.
    None if no group that meets `required` is large enough.
    """
    for bond in SATISFYING[required]:
        enough = [group for group in _groups(devices, eligible, bond, required) if len(group) >= count]
        if enough:
            ranked = [
                sorted(group, key=lambda column: (devices[column].warned, order(column), column))
                for group in enough
            ]
            best = min(
                ranked,
                key=lambda group: (
                    sum(devices[column].warned for column in group[:count]),
                    len(group),
                    [order(column) for column in group[:count]],
                    group[:count],
                ),
            )
            return bond, len(best), best[:count]
    return None


def _groups(
    devices: Sequence[DeviceCapacity], eligible: Bools, bond: Bond, required: Within
) -> list[list[int]]:
    """Return the columns of eligible devices grouped by the bond, in column order."""
    groups: dict[Key, list[int]] = {}
    for column, device in enumerate(devices):
        if eligible[column] and (key := _key(device, bond, required)) is not None:
            groups.setdefault(key, []).append(column)
    return list(groups.values())


def _key(device: DeviceCapacity, bond: Bond, required: Within) -> Key | None:
    """Return the group of the device; None if there is no group or it is unknown."""
    match bond:
        case Bond.ISLAND_IN_NUMA:
            # Linux reports no NUMA node on machines with only one.
            has_numa = device.numa >= 0 or required is not Within.NUMA
            return (device.island, device.numa) if device.island and has_numa else None
        case Bond.NUMA:
            return ("", device.numa) if device.numa >= 0 else None
        case Bond.ISLAND:
            return (device.island, 0) if device.island else None
        case Bond.NODE:
            return ("", 0)
