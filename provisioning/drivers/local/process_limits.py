"""Limits of processes and threads: per workspace by its size, and of all workspaces together.

The kernel has one table of process ids for the machine. The limit of all workspaces leaves a quarter of it to
services, so that they can always start another process.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

PER_WORKSPACE = 1024
PER_CORE = 512
SERVICES_PART = 4
"""Divisor: services keep this part of the processes, workspaces get the rest."""
LIMIT = "pids.max"
KERNEL = Path("/proc/sys/kernel")
_KERNEL_LIMITS = ("pid_max", "threads-max")


def workspace_limit(cpu_milli: int) -> int:
    """Return the limit of one workspace."""
    cores = -(-cpu_milli // 1000)
    return PER_WORKSPACE + PER_CORE * cores


def total_limit(parent: Path, kernel: Path = KERNEL) -> int | None:
    """Return the limit of all groups in `parent`; None if nothing on this machine limits processes."""
    available = min(_enclosing_limits(parent, kernel), default=None)
    return None if available is None else max(1, available - available // SERVICES_PART)


def _enclosing_limits(parent: Path, kernel: Path) -> Iterator[int]:
    """Yield the limits of the kernel, and of the groups around `parent` such as a container or a unit."""
    for path in (
        *(kernel / name for name in _KERNEL_LIMITS),
        *(ancestor / LIMIT for ancestor in parent.parents),
    ):
        with contextlib.suppress(OSError, ValueError):  # "max" is not a number
            yield int(path.read_text())


def limit_all(parent: Path) -> None:
    """Limit all groups in `parent` together, where the kernel can. Raises `OSError`."""
    file = parent / LIMIT
    with contextlib.suppress(FileNotFoundError):  # another controller's hierarchy of version 1
        limit = total_limit(parent)
        if limit is not None and file.read_text().strip() != str(limit):
            file.write_text(str(limit))
