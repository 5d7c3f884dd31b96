"""cuBLAS by ctypes, from the `gpu-blas` extra: measurements that floors apply to."""

from __future__ import annotations

import ctypes
import importlib
from typing import Any, Protocol

_OP_N, _OP_T = 0, 1
_R_32F, _R_64F, _R_16F, _R_16BF = 0, 1, 2, 14
_COMPUTE_32F, _COMPUTE_64F, _COMPUTE_TF32 = 68, 70, 77
# type of A and B, type of C, compute type
_TYPES = {
    "fp32": (_R_32F, _R_32F, _COMPUTE_32F),
    "tf32": (_R_32F, _R_32F, _COMPUTE_TF32),
    "fp16": (_R_16F, _R_32F, _COMPUTE_32F),
    "bf16": (_R_16BF, _R_32F, _COMPUTE_32F),
    "fp64": (_R_64F, _R_64F, _COMPUTE_64F),
}


class BlasError(Exception):
    """A failed cuBLAS call: `cublasGemmEx: 13`."""


def find(name: str = "cublas") -> Any | None:
    """Return the library, or `cublasLt` from the same package; None if not installed."""
    try:
        finder = importlib.import_module("cuda.pathfinder")
        return ctypes.CDLL(str(finder.load_nvidia_dynamic_lib(name).abs_path))
    except Exception:
        # Not installed or not loadable: own kernels measure instead, and the report says so.
        return None


def call(library: Any, name: str, *args: Any) -> None:
    """Make one call. Raises `BlasError`."""
    status = getattr(library, name)(*args)
    if status != 0:
        raise BlasError(f"{name}: {status}")


class Fp8(Protocol):
    """FP8 products, which `cublasGemmEx` does not support: `blas_lt.BlasLt`."""

    def gemm(self, a: int, b: int, c: int, side: int, depth: int) -> None: ...


class Blas:
    """A handle on the current context and `stream`; `fp8` computes products of that type, if needed."""

    def __init__(self, library: Any, stream: int, fp8: Fp8 | None = None) -> None:
        self._library, self._fp8 = library, fp8
        self._handle = ctypes.c_void_p()
        self._call("cublasCreate_v2", ctypes.byref(self._handle))
        self._call("cublasSetStream_v2", self._handle, ctypes.c_void_p(stream))
        version = ctypes.c_int()
        self._call("cublasGetVersion_v2", self._handle, ctypes.byref(version))
        self.version = f"cublas {version.value // 10000}.{version.value // 100 % 100}"
        self._scalars = {
            _COMPUTE_64F: (ctypes.c_double(1.0), ctypes.c_double(0.0)),
            _COMPUTE_32F: (ctypes.c_float(1.0), ctypes.c_float(0.0)),
            _COMPUTE_TF32: (ctypes.c_float(1.0), ctypes.c_float(0.0)),
        }

    def _call(self, name: str, *args: Any) -> None:
        call(self._library, name, *args)

    def bind(self, stream: int) -> Blas:
        """Return a handle on the current context, which may be another device's, and `stream`."""
        return Blas(self._library, stream)

    def supports(self, dtype: str) -> bool:
        return dtype in _TYPES or (dtype == "fp8" and self._fp8 is not None)

    def gemm(
        self, dtype: str, a: int, b: int, c: int, side: int, depth: int, *, narrow: bool = False
    ) -> None:
        """Queue C = A B^T, all row-major (column-major C^T = B A^T).

        `narrow`: store C in the type of A, as in training, instead of the accumulator's type.
        """
        if dtype == "fp8" and self._fp8 is not None:
            self._fp8.gemm(a, b, c, side, depth)
            return
        inner, outer, compute = _TYPES[dtype]
        one, zero = self._scalars[compute]
        self._call(
            "cublasGemmEx", self._handle, ctypes.c_int(_OP_T), ctypes.c_int(_OP_N),
            ctypes.c_int(side), ctypes.c_int(side), ctypes.c_int(depth), ctypes.byref(one),
            ctypes.c_void_p(b), ctypes.c_int(inner), ctypes.c_int(depth),
            ctypes.c_void_p(a), ctypes.c_int(inner), ctypes.c_int(depth), ctypes.byref(zero),
            ctypes.c_void_p(c), ctypes.c_int(inner if narrow else outer), ctypes.c_int(side),
            ctypes.c_int(compute), ctypes.c_int(-1),
        )  # fmt: skip

    def close(self) -> None:
        self._library.cublasDestroy_v2(self._handle)
