"""Sample every device once per second, keep 15 minutes, and pass on a rollup per minute.

Any driver call can hang forever. One thread reads the devices in turn, each with a deadline. If a device
hangs, that thread is abandoned and a new one continues with the others. The device is stale until its call
returns, so there is at most one lost thread per device.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from provisioning.gpu import release
from provisioning.gpu.outbox import Outbox
from provisioning.gpu.problems import DeviceGone, GpuLost, NoDriver, NvmlProblem, TimedOut
from provisioning.gpu.ring import CAPACITY, Ring
from provisioning.gpu.rollup import MINUTE_S, ProcessTally, Rollup, minute
from provisioning.gpu.samples import Sample

log = logging.getLogger(__name__)

REFRESH_S = 60.0
RETRY_S = 5.0
DEADLINE_S = 2.0
OPEN_DEADLINE_S = 30.0
"""The first contact may have to load the driver."""
MAX_WAITING = 60
"""Minutes buffered while the sink fails; then the oldest is dropped."""


class SampleSource(Protocol):
    """A readable device. `read` may raise `NvmlProblem`, and may hang."""

    @property
    def uuid(self) -> str: ...

    def read(self, at_s: float) -> Sample: ...


DevicesSource = Callable[[], Sequence[SampleSource]]
Sink = Callable[[list[Rollup]], None]


class _DriverHung(TimedOut):
    """Our own deadline passed. A driver that reports a timeout itself has at least returned."""


class _Caller:
    """A thread that makes one call at a time, for callers with a deadline."""

    def __init__(self) -> None:
        self._todo: queue.SimpleQueue[tuple[Callable[[], Any], queue.SimpleQueue[Any]] | None] = (
            queue.SimpleQueue()
        )
        self._thread = threading.Thread(target=self._run, name="gpu-caller", daemon=True)
        self._thread.start()

    def call(self, work: Callable[[], Any], timeout_s: float) -> Any:
        """Return or raise the result of `work`. After `_DriverHung`, only `is_busy` may be called."""
        answer: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._todo.put((work, answer))
        try:
            value, error = answer.get(timeout=timeout_s)
        except queue.Empty:
            self._todo.put(None)  # ends once the call returns
            raise _DriverHung(f"A device did not respond within {timeout_s:g} s.") from None
        if error is not None:
            raise error
        return value

    def is_busy(self) -> bool:
        return self._thread.is_alive()

    def close(self) -> None:
        self._todo.put(None)

    def _run(self) -> None:
        while (item := self._todo.get()) is not None:
            work, answer = item
            try:
                answer.put((work(), None))
            except BaseException as error:
                answer.put((None, error))


class Sampler:
    """Samples devices in the background. `start` and `stop` are thread-safe and idempotent.

    `devices_source` returns the devices. It is called every `refresh_s`, and soon after a device was lost.
    `sink` gets the rollups of one minute as a list; if it fails, they are buffered and retried. Without a
    driver the threads end. While a GPU of this node is being reset (`release`) or this process forks, nothing
    is read and the driver is closed.
    """

    def __init__(
        self,
        interval_s: int,
        devices_source: DevicesSource,
        sink: Sink,
        *,
        clock: Callable[[], float] = time.time,
        deadline_s: float = DEADLINE_S,
        refresh_s: float = REFRESH_S,
        capacity: int = CAPACITY,
    ) -> None:
        if interval_s < 1 or MINUTE_S % interval_s:
            raise ValueError("the interval must divide a minute")
        self.interval_s = interval_s
        self._devices_source = devices_source
        self._clock = clock
        self._deadline_s = deadline_s
        self._refresh_s = refresh_s
        self._capacity = capacity
        self._sender: Outbox[Rollup] = Outbox(sink, content="samples", limit=MAX_WAITING)
        self._sources: list[SampleSource] = []
        self._refresh_at = 0.0
        self._seen_driver = False
        self._stuck: dict[str, _Caller] = {}
        self._caller: _Caller | None = None
        self._minute = -1
        self._tallies: dict[str, ProcessTally] = {}
        self._rings: dict[str, Ring] = {}
        self._logged_texts: dict[str, str] = {}
        self._end = threading.Event()
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None

    # -- lifecycle --------------------------------------------------------------------------

    def start(self) -> None:
        with self._lock:
            if self._thread is None or not self._thread.is_alive():
                self._end = threading.Event()
                self._thread = threading.Thread(
                    target=self._run, args=(self._end,), name="gpu-sampler", daemon=True
                )
                self._thread.start()

    def stop(self, *, timeout_s: float = 5.0) -> None:
        """End the threads; one that hangs in the driver ends with the process."""
        with self._lock:
            thread, self._thread = self._thread, None
            self._end.set()
        if thread is not None:
            thread.join(timeout_s)

    @property
    def running(self) -> bool:
        thread = self._thread
        return thread is not None and thread.is_alive()

    # -- state ------------------------------------------------------------------------------

    def ring(self, uuid: str) -> Ring | None:
        return self._rings.get(uuid)

    def latest(self) -> Mapping[str, Sample]:
        """Return the newest sample of each responding device."""
        return {
            uuid: ring.latest
            for uuid, ring in list(self._rings.items())
            if ring.latest is not None and uuid not in self._stuck
        }

    def stale(self) -> frozenset[str]:
        """Return devices that hang now; `""` stands for the list of devices."""
        return frozenset(self._stuck)

    # -- work -------------------------------------------------------------------------------

    def _run(self, end: threading.Event) -> None:
        try:
            while not end.is_set():
                now = self._clock()
                try:
                    if release.is_release_requested():
                        self._release_driver()
                    else:
                        self.tick(now)
                except NoDriver as problem:
                    log.info("GPU sampling ended: %s", problem.message)
                    return
                except Exception:
                    log.exception("GPU sampling failed, will retry")
                # Keep to the interval; if a round took too long, skip to the next.
                left_s = self.interval_s - self._clock() % self.interval_s
                end.wait(min(float(self.interval_s), max(0.01, left_s)))
        finally:
            end.set()
            self._sender.wake()
            if self._caller is not None:
                self._caller.close()
                self._caller = None
            if not self._stuck:
                self._close_source()

    def _release_driver(self) -> None:
        """Close the driver's library; the next round opens it again."""
        self._release_answering()
        self._sources = []
        self._refresh_at = 0.0
        if not self._stuck:
            try:
                self._call("", self._close_source, OPEN_DEADLINE_S)
            except _DriverHung as problem:
                self._log_once("", problem.sentence)

    def _close_source(self) -> None:
        close = getattr(self._devices_source, "close", None)
        if close is not None:
            close()

    def tick(self, now_s: float) -> None:
        """Run one round: read every device once, and roll up a complete minute.

        Called by the thread, or directly by tests. Raises `NoDriver`.
        """
        self._release_answering()
        if now_s >= self._refresh_at or self._refresh_at - now_s > 2 * self._refresh_s:
            self._refresh(now_s)
        self._close_minute(now_s)
        for source in list(self._sources):
            if source.uuid not in self._stuck:
                self._read(source, now_s)

    def _release_answering(self) -> None:
        for uuid, caller in list(self._stuck.items()):
            if not caller.is_busy():
                log.warning("%s responds again", uuid or "the GPU driver")
                del self._stuck[uuid]

    def _call(self, key: str, work: Callable[[], Any], timeout_s: float) -> Any:
        if self._caller is None:
            self._caller = _Caller()
        try:
            return self._caller.call(work, timeout_s)
        except _DriverHung:
            self._stuck[key], self._caller = self._caller, None
            raise

    def _refresh(self, now_s: float) -> None:
        self._refresh_at = now_s + RETRY_S
        if "" in self._stuck:
            return  # still pending; keep the known devices
        try:
            self._sources = list(self._call("", self._devices_source, OPEN_DEADLINE_S))
        except _DriverHung as problem:
            self._log_once("", problem.sentence)
            return
        except NvmlProblem as problem:
            if isinstance(problem, NoDriver) and not self._seen_driver:
                raise
            self._log_once("", problem.sentence)
            self._sources = []
            return
        self._seen_driver = True
        self._logged_texts.pop("", None)
        self._refresh_at = now_s + self._refresh_s
        uuids = {source.uuid for source in self._sources}
        oldest_s = now_s - self._capacity * self.interval_s
        for uuid, ring in list(self._rings.items()):
            if uuid not in uuids and (ring.latest is None or ring.latest.at_s < oldest_s):
                del self._rings[uuid]

    def _read(self, source: SampleSource, now_s: float) -> None:
        uuid = source.uuid
        try:
            sample = self._call(uuid, lambda: source.read(now_s), self._deadline_s)
        except (GpuLost, DeviceGone) as problem:
            self._log_once(uuid, problem.sentence)
            self._sources = [item for item in self._sources if item.uuid != uuid]
            self._refresh_at = min(self._refresh_at, now_s + RETRY_S)
            return
        except NvmlProblem as problem:
            self._log_once(uuid, problem.sentence)
            return
        self._logged_texts.pop(uuid, None)
        ring = self._rings.get(uuid)
        if ring is None:
            ring = self._rings[uuid] = Ring(self._capacity)
        ring.append(sample)
        self._tallies.setdefault(uuid, ProcessTally()).add(sample.processes)

    def _log_once(self, uuid: str, text: str) -> None:
        """Log a problem once."""
        if self._logged_texts.get(uuid) != text:
            self._logged_texts[uuid] = text
            log.warning("could not sample %s: %s", uuid or "GPUs", text)

    def _close_minute(self, now_s: float) -> None:
        current = int(now_s // MINUTE_S)
        if current == self._minute:
            return
        over, self._minute = self._minute, current
        tallies, self._tallies = self._tallies, {}
        if over < 0:
            return
        start_s = over * MINUTE_S
        rollups = []
        for uuid, ring in sorted(self._rings.items()):
            tally = tallies.get(uuid)
            summed = minute(
                ring.between(start_s, start_s + MINUTE_S),
                uuid=uuid,
                start_s=start_s,
                interval_s=self.interval_s,
                processes=tally.shares(self.interval_s) if tally else (),
            )
            # A silent device has a rollup too, with all samples missing.
            if summed.n or uuid in self._stuck or any(item.uuid == uuid for item in self._sources):
                rollups.append(summed)
        if rollups:
            self._sender.put(rollups)
            if self.running:
                self._sender.ensure_running(self._end)

    def flush(self) -> bool:
        """Pass on buffered rollups in this thread; return False if the sink failed."""
        return self._sender.flush()
