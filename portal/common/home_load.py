"""Load of the homes on a node, relative to the node. Pure, since the scheduling engine uses it, too."""

from __future__ import annotations


def relative_load(gpu_milli: int, cpu_milli: int, *, devices: int, node_cpu_milli: int) -> int:
    """Return the larger share of a node's devices or cores that these amounts take, in 1/1000.

    `devices` counts what workspaces can hold: GPUs, and instead of a partitioned one its instances.
    """
    of_devices = gpu_milli // devices if devices else 0
    return max(of_devices, 1000 * cpu_milli // node_cpu_milli if node_cpu_milli else 0)
