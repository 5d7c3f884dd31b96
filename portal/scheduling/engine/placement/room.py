"""Counts the devices of a node with room for a share of a request, ignoring other requirements."""

from __future__ import annotations

from dataclasses import replace

from portal.scheduling.engine.placement.arrays import is_plain, mig_parents
from portal.scheduling.engine.placement.filters.devices import has_room
from portal.scheduling.engine.placement.mig import choose
from portal.scheduling.engine.placement.types import NodeCapacity
from provisioning.types import AcceleratorRequest

MAX_INSTANCES = 256
"""Maximum number of instances per node: 16 GPUs with 7 instances each."""


def devices_with_room(
    node: NodeCapacity, accelerators: AcceleratorRequest, *, repartition: bool = False
) -> int:
    """Return the number of devices with room for the share or, for a MIG profile, of free instances.

    With `repartition`, includes instances that another layout would create.
    """
    if accelerators.mig_profile:
        return _instances(node, accelerators, repartition=repartition)
    parents = mig_parents(node)
    models = frozenset(accelerators.allowed_models)
    return sum(
        1
        for device in node.devices
        if (not models or device.model in models)
        and is_plain(device, parents)
        and has_room(device, accelerators)
    )


def _instances(node: NodeCapacity, accelerators: AcceleratorRequest, *, repartition: bool) -> int:
    """Return how many instances fit. Uses bisection, because if a number does not fit, no larger one does."""
    least, beyond = 0, MAX_INSTANCES + 1
    while beyond - least > 1:
        count = (least + beyond) // 2
        if choose(node, replace(accelerators, count=count), (), repartition=repartition) is None:
            beyond = count
        else:
            least = count
    return least
