"""The number of cores that programs in a workspace see: its own, not the machine's.

A control group's limit does not change the number of cores that programs see. Programs that start a thread
per core of the machine are then throttled. So libraries get the number in variables; the C library, and
programs that ask it, in `/sys/devices/system/cpu/online` (ADR 0119). Runtimes that read limits find the
control group's files.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from provisioning.drivers.local import cgroups, delegation

VARIABLES = (
    "OMP_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "MKL_NUM_THREADS",
    "BLIS_NUM_THREADS",
    "NUMEXPR_NUM_THREADS",
    "NUMBA_NUM_THREADS",
    "LOKY_MAX_CPU_COUNT",
    "PYTHON_CPU_COUNT",
    "POLARS_MAX_THREADS",
    "RAYON_NUM_THREADS",
    "JULIA_NUM_THREADS",
    "GOMAXPROCS",
    "MC_CORES",
)
"""Set to the number of cores; OpenMP, BLAS, Python 3.13, joblib, Polars, Rust, Julia, Go and R read them."""
FILE = "cpu-online"
"""Name of the file with the workspace's list of cores, in the folder of its /etc files."""
ONLINE = "/sys/devices/system/cpu/online"
CGROUPS = "/sys/fs/cgroup"


def cores_of(cpu_milli: int) -> int:
    """Return the number of cores to show: rounded up, at most those of the machine."""
    return max(1, min(-(-cpu_milli // 1000), os.cpu_count() or 1))


def variables(cpu_milli: int) -> dict[str, str]:
    """Return environment variables with the number of cores."""
    return dict.fromkeys(VARIABLES, str(cores_of(cpu_milli)))


def write(folder: Path, cpu_milli: int) -> None:
    """Write the workspace's list of cores in place, since the sandbox mounts this very file."""
    cores = cores_of(cpu_milli)
    path = folder / FILE
    path.write_text(f"0-{cores - 1}\n" if cores > 1 else "0\n")
    path.chmod(0o644)


def sandbox_mounts(etc: Path, groups: Sequence[Path]) -> tuple[tuple[str, str], ...]:
    """Return the files that a sandbox mounts read-only: paths on this machine, and paths inside."""
    online = ((str(etc / FILE), ONLINE),) if Path(ONLINE).exists() else ()
    return (*online, *((str(group), _path_inside(group)) for group in groups))


def _path_inside(group: Path) -> str:
    """Return where programs look for the files of their control group."""
    controller = group.relative_to(delegation.ROOT).parts[0]
    return f"{CGROUPS}/{controller}" if controller in cgroups.V1_CONTROLLERS else CGROUPS
