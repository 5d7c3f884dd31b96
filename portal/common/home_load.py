"""Computes the load of homes relative to their node. Pure, because the scheduling engine uses it, too."""

from __future__ import annotations


def relative_load(gpu_milli: int, cpu_milli: int, *, devices: int, node_cpu_milli: int) -> int:
    """Return the part of a node that these amounts take, by devices or cores (the larger), in 1/1000.

    `devices` counts what workspaces can get: whole GPUs, and the instances of partitioned ones.
    """
    of_devices = gpu_milli // devices if devices else 0
    return max(of_devices, 1000 * cpu_milli // node_cpu_milli if node_cpu_milli else 0)
