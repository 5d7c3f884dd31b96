"""Calls single kernels on the host."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np

from provisioning.gpu.check.device import ErrorLog

MASK = (1 << 64) - 1


class Host:
    """Runs kernels of the fake library by name."""

    def __init__(self, library: ctypes.CDLL) -> None:
        self.library = library

    def run(self, kernel: str, *args: Any, grid: tuple[int, int] = (1, 1), block: bool = False) -> None:
        cells = [
            ctypes.c_void_p(a.ctypes.data) if isinstance(a, np.ndarray)
            else ctypes.pointer(a) if isinstance(a, ctypes.Structure)
            else a if isinstance(a, ctypes.c_uint32)
            else ctypes.c_uint64(a & MASK)
            for a in args
        ]  # fmt: skip
        array = (ctypes.c_void_p * len(cells))(*[ctypes.addressof(c) for c in cells])
        prepare = getattr(self.library, f"prepare_{kernel}")
        prepare.restype = ctypes.c_void_p
        handle = prepare(array, grid[0], grid[1], 256, int(block))
        self.library.berth_run(ctypes.c_void_p(handle))

    def log(self, kernel: str, *args: Any) -> ErrorLog:
        log = ErrorLog(first=MASK)
        self.run(kernel, *args, log)
        return log

    def broken_unit(
        self, unit: int = 0, *, block: int = -1, clear: int = 0, stuck: int = 0, dead_address: int = 0
    ) -> None:
        """Inject faults into a unit (see host_shim.h), in one block or in all; without faults, repair it."""
        values = [ctypes.c_uint64(v) for v in (clear, stuck, dead_address)]
        self.library.berth_break_unit(ctypes.c_int(unit), ctypes.c_int(block), *values)

    def broken(
        self,
        *,
        clear_a: int = 0,
        set_a: int = 0,
        clear_b: int = 0,
        set_b: int = 0,
        cell: tuple[int, int] = (-1, -1),
    ) -> None:
        """Inject faults into the multipliers; without faults, repair them."""
        values = [ctypes.c_uint64(v) for v in (clear_a, set_a, clear_b, set_b)]
        self.library.berth_break(*values, ctypes.c_int(cell[0]), ctypes.c_int(cell[1]))
