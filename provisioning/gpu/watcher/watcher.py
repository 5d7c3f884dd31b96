"""Watches a node's GPUs: reads both sources of XIDs in separate threads and forwards them at once.

A hanging or failing source does not affect the other. Unsent events are kept and retried.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable
from pathlib import Path

from provisioning.gpu import release
from provisioning.gpu.check.consequences import RECOVERY_CHANGED, of_xid
from provisioning.gpu.problems import GpuLost, NvmlProblem
from provisioning.gpu.watcher import last_xids, nvml_events
from provisioning.gpu.watcher.kernel_log import KMSG, KernelLog
from provisioning.gpu.watcher.xid_report import XidDeduplicator, XidReport

log = logging.getLogger(__name__)
POLL_INTERVAL_S = 1.0
RETRY_S = 30.0
RESEND_S = 1.0
MAX_WAITING = 64

Sink = Callable[[list[XidReport]], None]
Follow = Callable[[Callable[[XidReport], None], Callable[[], bool]], None]


class Watcher:
    """Watcher of all GPUs. `sink` gets XIDs caused by a device; it may raise."""

    def __init__(self, sink: Sink, *, kmsg: Path = KMSG, follow: Follow = nvml_events.follow) -> None:
        self._sink, self._kmsg, self._follow = sink, kmsg, follow
        self._once = XidDeduplicator()
        self._end = threading.Event()
        self._waiting: deque[XidReport] = deque(maxlen=MAX_WAITING)
        self._ready = threading.Condition()
        self._logged_texts: dict[str, str] = {}
        self._threads: list[threading.Thread] = []

    def start(self) -> None:
        """Start watching. Call it once."""
        last_xids.watching()
        for name, work in (("log", self._read_log), ("nvml", self._read_nvml), ("send", self._send)):
            thread = threading.Thread(target=work, name=f"gpu-watch-{name}", daemon=True)
            thread.start()
            self._threads.append(thread)

    def stop(self, *, timeout_s: float = 2.0) -> None:
        """Stop watching; a thread that hangs in the driver ends with the process."""
        self._end.set()
        with self._ready:
            self._ready.notify_all()
        for thread in self._threads:
            thread.join(timeout_s)

    def handle(self, report: XidReport) -> None:
        """Handle an XID of a source. Those caused by applications are not forwarded."""
        last_xids.note(report.slot, report.xid)
        if report.xid == RECOVERY_CHANGED and not report.line:
            return  # only the kernel's line has the requested recovery, which inventory reads too
        if of_xid(report.xid, report.line) is None or not self._once.is_first(report):
            return
        log.warning("XID %d of the GPU at %s: %s", report.xid, report.slot, report.line or "by NVML")
        with self._ready:
            self._waiting.append(report)
            self._ready.notify_all()

    # -- sources ----------------------------------------------------------------------------

    def _read_log(self) -> None:
        while not self._end.is_set():
            try:
                kernel = KernelLog(self._kmsg)
            except OSError as error:
                self._log_once("log", f"could not read XIDs from the kernel log: {error}")
                self._end.wait(RETRY_S)
                continue
            try:
                while not self._end.is_set():
                    if kernel.wait(POLL_INTERVAL_S):
                        for report in kernel.read():
                            self.handle(report)
                    if kernel.is_empty:
                        self._end.wait(POLL_INTERVAL_S)
            except OSError as error:
                self._log_once("log", f"could not continue to read the kernel log: {error}")
                self._end.wait(POLL_INTERVAL_S)
            finally:
                kernel.close()

    def _read_nvml(self) -> None:
        while not self._end.is_set():
            if release.is_release_requested():
                # The kernel's log is still read.
                self._end.wait(POLL_INTERVAL_S)
                continue
            try:
                self._follow(
                    self.handle, lambda: not self._end.is_set() and not release.is_release_requested()
                )
                self._end.wait(POLL_INTERVAL_S)
                continue
            except GpuLost as problem:
                # NVML raises this while waiting for events of any GPU. Keep watching the others.
                self._log_once("nvml", f"NVML reports no XIDs of one GPU: {problem.sentence}")
                self._end.wait(POLL_INTERVAL_S)
                continue
            except NvmlProblem as problem:
                self._log_once("nvml", f"NVML reports no XIDs: {problem.sentence}")
            except Exception:
                log.exception("watching NVML for XIDs failed, will retry")
            self._end.wait(RETRY_S)

    def _log_once(self, source: str, text: str) -> None:
        """Log a problem once."""
        if self._logged_texts.get(source) != text:
            self._logged_texts[source] = text
            log.warning("%s", text)

    # -- forwarding -------------------------------------------------------------------------

    def _send(self) -> None:
        while not self._end.is_set():
            with self._ready:
                if not self._waiting:
                    self._ready.wait(POLL_INTERVAL_S)
                batch = list(self._waiting)
            if batch and not self._offer(batch):
                self._end.wait(RESEND_S)

    def _offer(self, batch: list[XidReport]) -> bool:
        try:
            self._sink(batch)
        except Exception as error:
            self._log_once("send", f"could not send XIDs to the control plane, will retry: {error}")
            return False
        self._logged_texts.pop("send", None)
        with self._ready:
            for _ in batch:
                if self._waiting:
                    self._waiting.popleft()
        return True
