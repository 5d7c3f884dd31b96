"""Samples of the granted GPUs, read through NVML."""

from __future__ import annotations

import time

from .own_gpu_use import OwnUse

TYPE_CHECKING = False
if TYPE_CHECKING:
    import ctypes
    import threading
    from typing import Any

DEADLINE_S = 2.0


class Gpus:
    """Utilisation and memory of the granted GPUs through NVML; None if they cannot be read.

    The utilisation of MIG instances and of `shared` GPUs is that of this workspace's processes, if
    `by_process`: /proc shows which processes have device files open.

    Any NVML call may block forever, so a separate thread makes the calls and heartbeats continue without it.
    """

    def __init__(
        self, uuids: list[str], shared: list[str] | None = None, *, by_process: bool = False
    ) -> None:
        self.uuids = list(uuids)
        self.shared = list(shared or [])
        self.by_process = by_process
        self.own_use: OwnUse | None = None
        self.library: Any = None
        self.broken = not self.uuids
        self.thread: threading.Thread | None = None
        self.requested: threading.Event
        self.answered: threading.Event
        self.waits_since = 0.0  # start of a pending request; 0 if there is none
        self.answer: list[dict[str, Any]] | None = None

    def _load(self) -> None:
        import ctypes

        self.library = ctypes.CDLL("libnvidia-ml.so.1")
        if self.library.nvmlInit_v2() != 0:
            raise OSError("could not start NVML")

    def sample(self) -> list[dict[str, Any]] | None:
        """Return a list of {uuid, utilization_percent, memory_used_mib, memory_total_mib}, or None.

        Takes at most `DEADLINE_S`, and returns immediately while an earlier request is pending.
        """
        if self.broken:
            return None
        if self.thread is None:
            import threading

            self.requested, self.answered = threading.Event(), threading.Event()
            self.thread = threading.Thread(target=self._serve_queries, daemon=True)
            self.thread.start()
        if self.waits_since and not self.answered.is_set():
            return None
        if not self.waits_since:
            self.answered.clear()
            self.waits_since = time.monotonic()
            self.requested.set()
            if not self.answered.wait(DEADLINE_S):
                return None
        self.waits_since = 0.0
        return self.answer

    def stale_s(self) -> int | None:
        """Return for how many seconds the driver has not answered; None if it answers."""
        return int(time.monotonic() - self.waits_since) if self.waits_since else None

    def _serve_queries(self) -> None:
        """Thread: query the driver on each request until it is unavailable."""
        while not self.broken:
            self.requested.wait()
            self.requested.clear()
            try:
                if self.library is None:
                    self._load()
                self.answer = self._devices()
            except (OSError, AttributeError):
                self.broken = True
                self.answer = None
            self.answered.set()

    def _devices(self) -> list[dict[str, Any]]:
        handles = {uuid: handle for uuid in self.uuids if (handle := self._handle(uuid)) is not None}
        own: dict[str, int | None] = {}
        if self.by_process:
            if self.own_use is None:
                self.own_use = OwnUse(self.library, self.shared)
            own = self.own_use.percents(handles)
        return [self._device(uuid, handles.get(uuid), own) for uuid in self.uuids]

    def _handle(self, uuid: str) -> ctypes.c_void_p | None:
        import ctypes

        handle = ctypes.c_void_p()
        is_present = self.library.nvmlDeviceGetHandleByUUID(uuid.encode(), ctypes.byref(handle)) == 0
        return handle if is_present else None

    def _device(
        self, uuid: str, handle: ctypes.c_void_p | None, own: dict[str, int | None]
    ) -> dict[str, Any]:
        import ctypes

        sample: dict[str, Any] = {
            "uuid": uuid,
            "utilization_percent": None,
            "memory_used_mib": None,
            "memory_total_mib": None,
        }
        if handle is None:
            return sample
        rates = (ctypes.c_uint * 2)()
        if uuid in own:
            sample["utilization_percent"] = own[uuid]
        elif self.library.nvmlDeviceGetUtilizationRates(handle, ctypes.byref(rates)) == 0:
            sample["utilization_percent"] = int(rates[0])
        memory = (ctypes.c_ulonglong * 3)()  # total, free, used
        if self.library.nvmlDeviceGetMemoryInfo(handle, ctypes.byref(memory)) == 0:
            sample["memory_total_mib"] = int(memory[0]) >> 20
            sample["memory_used_mib"] = int(memory[2]) >> 20
        return sample
