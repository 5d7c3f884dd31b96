"""FP8 products by cuBLASLt, for devices whose FP8 circuits `mma.sync` does not use.

On sm_100 the check's own kernel compiles to F2FP and HMMA: FP8 is unpacked and multiplied in FP16. cuBLASLt
has kernels with that architecture's own instructions. On other architectures the check's own kernels multiply
in FP8, and cuBLASLt is not used. Enumerations are from cublasLt.h and library_types.h.
"""

from __future__ import annotations

import ctypes
from typing import Any

from provisioning.gpu.check.blas import call

MAJOR = 10
"""Major compute capability that needs it: that of B200 and GB200."""
TRIAL_SIDE = 128
_COMPUTE_32F, _R_32F, _E4M3 = 68, 0, 28
_TRANSA, _OP_T = 3, 1


class BlasLt:
    """A handle on the current context; products are queued on `stream`. Raises `blas.BlasError`."""

    def __init__(self, library: Any, stream: int) -> None:
        self._library, self._stream = library, ctypes.c_void_p(stream)
        self._handle, self._product = ctypes.c_void_p(), ctypes.c_void_p()
        self._call("cublasLtCreate", ctypes.byref(self._handle))
        self._call(
            "cublasLtMatmulDescCreate", ctypes.byref(self._product), ctypes.c_int(_COMPUTE_32F),
            ctypes.c_int(_R_32F),
        )  # fmt: skip
        transposed = ctypes.c_int32(_OP_T)
        self._call(
            "cublasLtMatmulDescSetAttribute", self._product, ctypes.c_int(_TRANSA),
            ctypes.byref(transposed), ctypes.c_size_t(ctypes.sizeof(transposed)),
        )  # fmt: skip
        self._one, self._zero = ctypes.c_float(1.0), ctypes.c_float(0.0)
        self._layouts: dict[tuple[int, int, int], ctypes.c_void_p] = {}

    def _call(self, name: str, *args: Any) -> None:
        call(self._library, name, *args)

    def gemm(self, a: int, b: int, c: int, side: int, depth: int) -> None:
        """Queue C = A B^T with A and B in E4M3, C in FP32, all row-major (column-major C^T = B A^T).

        `side` and `depth` are multiples of 16. Needs no workspace memory.
        """
        inner, outer = self._layout(_E4M3, depth, side), self._layout(_R_32F, side, side)
        self._call(
            "cublasLtMatmul", self._handle, self._product, ctypes.byref(self._one),
            ctypes.c_void_p(b), inner, ctypes.c_void_p(a), inner, ctypes.byref(self._zero),
            ctypes.c_void_p(c), outer, ctypes.c_void_p(c), outer,
            None, None, ctypes.c_size_t(0), self._stream,
        )  # fmt: skip

    def _layout(self, kind: int, rows: int, columns: int) -> ctypes.c_void_p:
        """Return a dense column-major layout; cached."""
        key = (kind, rows, columns)
        if key not in self._layouts:
            layout = ctypes.c_void_p()
            self._call(
                "cublasLtMatrixLayoutCreate", ctypes.byref(layout), ctypes.c_int(kind), ctypes.c_uint64(rows),
                ctypes.c_uint64(columns), ctypes.c_int64(rows),
            )  # fmt: skip
            self._layouts[key] = layout
        return self._layouts[key]
