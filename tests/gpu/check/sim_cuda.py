"""The device of a simulated check: real bindings over the fake driver library, with small sizes."""

from __future__ import annotations

import ctypes
import importlib
import os
from pathlib import Path
from typing import Any

from provisioning.gpu.check import compiler
from provisioning.gpu.check.probes.base import Sizes

UUID = "GPU-00000000-1111-2222-3333-444444444444"


def driver() -> Any:
    """Uses packaged kernels, which is faster; the file `nvrtc` in $TMPDIR selects the compiler."""
    if Path(os.environ.get("TMPDIR", "/tmp"), "nvrtc").exists():
        compiler.packaged = lambda unit, capability: None
    else:
        compiler.compilers = tuple
    return importlib.import_module("cuda.bindings.driver")


def sizes() -> Sizes:
    return Sizes(
        copy_bytes=1 << 20, pcie_bytes=1 << 20, exact_side=128, exact_depth=64, rate_side=128,
        rate_side_wide=128, copies=2, launches=1, blocks=3,
    )  # fmt: skip


def nccl() -> None:
    """None here; `tests/gpu/driver` has one."""


def cublas() -> Any | None:
    """The fake library contains cuBLAS; the file `cublas` in $TMPDIR enables it."""
    where = Path(os.environ.get("TMPDIR", "/tmp"), "cublas")
    if not where.exists():
        return None
    return ctypes.CDLL("libcuda.so.1")


def cublas_lt() -> Any | None:
    """Enabled with cuBLAS."""
    return cublas()
