"""`walk.Calls` with `cuda.bindings.driver`; only in a separate process (`child.py`), since calls may hang."""

from __future__ import annotations

import ctypes
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from provisioning.gpu.check.device import CudaError, open_driver
from provisioning.gpu.suspend.states import Call, ProcessState
from provisioning.gpu.suspend.walk import SuspendCallFailed

LOCK_TIMEOUT_MS = 10_000
"""How long the driver waits for a process's queued work; 0 means forever."""
UNSUPPORTED = "CUDA_ERROR_NOT_SUPPORTED"
NO_LIBRARY = "no_library"
NO_BINDINGS = "no_bindings"
NO_CUDA = frozenset({"CUDA_ERROR_INVALID_VALUE", "CUDA_ERROR_NOT_INITIALIZED"})
"""Errors for a process that has not opened CUDA."""
_STATES = {
    0: ProcessState.RUNNING,
    1: ProcessState.LOCKED,
    2: ProcessState.CHECKPOINTED,
    3: ProcessState.FAILED,
}


class CudaCalls:
    """Checkpoint calls of this machine's driver. `pairs` maps an old GPU's UUID to the one to restore onto.

    Raises `SuspendCallFailed` if the driver (before 570) or the bindings (before 12.8) lack these calls.
    """

    def __init__(self, *, pairs: Mapping[str, str] | None = None) -> None:
        try:
            self._driver = open_driver()
        except ImportError as error:
            raise SuspendCallFailed(NO_BINDINGS) from error
        if not hasattr(self._driver, "cuCheckpointProcessGetState"):
            raise SuspendCallFailed(NO_BINDINGS)
        self._pairs = dict(pairs or {})
        if self._pairs and not hasattr(self._driver, "CUcheckpointGpuPair"):
            raise SuspendCallFailed(UNSUPPORTED)
        # Required for restoring if the GPUs are not kept initialised (persistence mode).
        self._call("cuInit", 0)
        try:
            # A nonexistent PID, just to test whether the calls exist.
            self._call("cuCheckpointProcessGetState", -1)
        except SuspendCallFailed as failed:
            if failed.name in (UNSUPPORTED, NO_LIBRARY):
                raise

    def state(self, pid: int) -> ProcessState:
        try:
            value = int(self._call("cuCheckpointProcessGetState", pid))
        except SuspendCallFailed as failed:
            none = failed.name in NO_CUDA or not Path("/proc", str(pid)).exists()
            return ProcessState.NONE if none else ProcessState.UNKNOWN
        return _STATES.get(value, ProcessState.UNKNOWN)

    def make(self, call: Call, pid: int) -> None:
        match call:
            case Call.LOCK:
                args = self._driver.CUcheckpointLockArgs()
                args.timeoutMs = LOCK_TIMEOUT_MS
                self._call("cuCheckpointProcessLock", pid, args)
            case Call.CHECKPOINT:
                self._call("cuCheckpointProcessCheckpoint", pid, None)
            case Call.RESTORE:
                self._call("cuCheckpointProcessRestore", pid, self._restore_args())
            case Call.UNLOCK:
                self._call("cuCheckpointProcessUnlock", pid, None)

    def _restore_args(self) -> Any:
        if not self._pairs:
            return None
        pairs = []
        for old, new in sorted(self._pairs.items()):
            pair = self._driver.CUcheckpointGpuPair()
            pair.oldUuid, pair.newUuid = self._uuid(old), self._uuid(new)
            pairs.append(pair)
        args = self._driver.CUcheckpointRestoreArgs()
        args.gpuPairs = pairs
        args.gpuPairsCount = len(pairs)
        return args

    def _uuid(self, name: str) -> Any:
        value = self._driver.CUuuid()
        ctypes.memmove(value.getPtr(), uuid.UUID(name.split("-", 1)[1]).bytes, 16)
        return value

    def _call(self, function: str, *args: Any) -> Any:
        """Make one call. Raises `SuspendCallFailed` for errors of the driver or the bindings."""
        try:
            status, *values = getattr(self._driver, function)(*args)
        except Exception as error:
            # The bindings signal a missing library or function only by the exception's class name.
            name = type(error).__name__
            if name == "DynamicLibNotFoundError":
                raise SuspendCallFailed(NO_LIBRARY) from error
            if name == "FunctionNotFoundError" or (name == "RuntimeError" and "not found" in str(error)):
                raise SuspendCallFailed(UNSUPPORTED) from error
            raise
        if int(status) != 0:
            raise SuspendCallFailed(CudaError(function, getattr(status, "name", str(status))).name)
        return values[0] if values else None
