"""The watcher of a node: XIDs from the kernel log and NVML, reported at once and once."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pynvml
import pytest

from provisioning.gpu.problems import GpuLost
from provisioning.gpu.watcher import nvml_events
from provisioning.gpu.watcher import watcher as watching
from provisioning.gpu.watcher.kernel_log import KernelLog, parse, slot_of
from provisioning.gpu.watcher.watcher import Watcher
from provisioning.gpu.watcher.xid_report import DEDUPLICATION_S, XidDeduplicator, XidReport
from tests.gpu.fake_nvml import Err, FakeLibrary, h200, installed

LOST = "NVRM: Xid (PCI:0000:3b:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus."
# As an H100 with driver 580.159.04 wrote them, for an illegal address and a device-side assertion.
ILLEGAL = (
    "NVRM: Xid (PCI:0000:00:06): 31, pid=773, name=faults, channel 0x0000000a, intr 00000000. MMU Fault: "
    "ENGINE GRAPHICS GPC1 GPCCLIENT_T1_8 faulted @ 0x0_00000000. Fault is of type FAULT_PDE "
    "ACCESS_TYPE_VIRT_WRITE"
)
ASSERTED = "NVRM: Xid (PCI:0000:00:06): 43, pid=783, name=faults, channel 0x0000000a"
OLD = "NVRM: Xid (0000:01:00): 31, Ch 0000000b"
SLOT = "0000:3b:00"


@pytest.mark.parametrize(
    ("record", "seen"),
    [
        (f"4,1234,5678901,-;{LOST}\n SUBSYSTEM=pci\n", XidReport(SLOT, 79, LOST)),
        (f"4,1,2,-,caller=T1;[drm] {LOST}", XidReport(SLOT, 79, LOST)),
        (
            "4,1,2,-;NVRM: Xid (PCI:0000:10:1c): 63, pid=1896, Row Remapper: New row marked for remapping",
            XidReport(
                "0000:10:1c",
                63,
                "NVRM: Xid (PCI:0000:10:1c): 63, pid=1896, Row Remapper: New row marked for remapping",
            ),
        ),
        (f"4,1,2,-;{OLD}", XidReport("0000:01:00", 31, OLD)),
        (f"4,1,2,-;{ILLEGAL}", XidReport("0000:00:06", 31, ILLEGAL)),
        (f"4,1,2,-;{ASSERTED}", XidReport("0000:00:06", 43, ASSERTED)),
        (
            "4,1,2,-;NVRM: Xid (PCI:0000:3B:00 GPU-I:02): 94, pid=7",
            XidReport(SLOT, 94, "NVRM: Xid (PCI:0000:3B:00 GPU-I:02): 94, pid=7"),
        ),
        ("4,1,2,-;NVRM: GPU at PCI:0000:01:00: GPU-bc0fa0b9", None),
        (f"12,1,2,-;{LOST}", None),  # a process wrote it
        (f"x,1,2,-;{LOST}", None),
        (LOST, None),
        ("4,1,2,-;", None),
        ("", None),
        (f"4,1,2,-;something\n {LOST}", None),
    ],
)  # fmt: skip
def test_kernel_log_records_are_parsed(record: str, seen: XidReport | None) -> None:
    assert parse(record) == seen


def test_long_line_is_truncated() -> None:
    seen = parse(f"4,1,2,-;{LOST}{'x' * 5000}")
    assert seen is not None and len(seen.line) == 300


@pytest.mark.parametrize("bus", ["00000000:3B:00.0", "0000:3b:00.0", "0000:3b:00"])
def test_pci_slot_notations_are_equal(bus: str) -> None:
    assert slot_of(bus) == SLOT


def test_each_xid_is_reported_once_per_minute() -> None:
    now = [100.0]
    once = XidDeduplicator(lambda: now[0])
    seen = XidReport(SLOT, 79, "a")
    assert once.is_first(seen) and not once.is_first(XidReport(SLOT, 79, "b"))
    assert once.is_first(XidReport(SLOT, 48)) and once.is_first(XidReport("0000:4b:00", 79))
    now[0] += DEDUPLICATION_S - 0.1
    assert not once.is_first(seen)
    now[0] += 0.1
    assert once.is_first(seen)


def test_only_new_records_are_read(tmp_path: Path) -> None:
    log = tmp_path / "kmsg"
    log.write_text(f"4,1,2,-;{LOST}\n")
    kernel = KernelLog(log)
    try:
        assert list(kernel.read()) == []
        with log.open("a") as file:
            file.write(f"4,2,3,-;{LOST}\n")
        assert [seen.xid for seen in kernel.read()] == [79] and list(kernel.read()) == []
    finally:
        kernel.close()


def test_overwritten_record_is_skipped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    answers: list[Any] = [BrokenPipeError(32, "overwritten"), f"4,1,2,-;{LOST}".encode(), BlockingIOError()]

    def read(*_: Any) -> bytes:
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return bytes(answer)

    (tmp_path / "kmsg").touch()
    kernel = KernelLog(tmp_path / "kmsg")
    try:
        monkeypatch.setattr(os, "read", read)
        assert [seen.xid for seen in kernel.read()] == [79] and answers == []
    finally:
        monkeypatch.undo()
        kernel.close()


def test_missing_log_is_not_polled() -> None:
    kernel = KernelLog(Path("/dev/null"))
    try:
        assert kernel.wait(0) and list(kernel.read()) == [] and kernel.is_empty
    finally:
        kernel.close()


class Events(FakeLibrary):
    """A fake NVML with events; `errors` happen one after another."""

    def __init__(self, *args: Any, errors: list[tuple[int, int]], **more: Any) -> None:
        super().__init__(*args, **more)
        self.errors, self.registered = errors, 0

    def do_nvmlEventSetCreate(self, target: Any) -> int:
        return 0

    def do_nvmlDeviceRegisterEvents(self, handle: Any, kinds: Any, events: Any) -> int:
        self.registered += 1
        # The first GPU has no events; the others still do.
        return int(pynvml.NVML_ERROR_NOT_SUPPORTED) if self.registered == 1 else 0

    def do_nvmlEventSetWait_v2(self, events: Any, target: Any, wait: Any) -> int:
        if not self.errors:
            return int(pynvml.NVML_ERROR_TIMEOUT)
        index, xid = self.errors.pop(0)
        event = target._obj
        event.device = pynvml.nvmlDeviceGetHandleByIndex(index)
        event.eventType, event.eventData = pynvml.nvmlEventTypeXidCriticalError, xid
        return 0

    def do_nvmlEventSetFree(self, events: Any) -> int:
        return 0


def test_nvml_events_name_the_device_of_an_xid() -> None:
    seen: list[XidReport] = []
    library = Events([h200(0), h200(1), h200(2)], errors=[(2, 79), (1, 31)])
    with installed(library):
        rounds = iter([True, True, True, False])
        nvml_events.follow(seen.append, lambda: next(rounds))
    assert seen == [XidReport("0000:3b:00", 79), XidReport("0000:2b:00", 31)] and library.registered == 3


def test_nvml_event_failure_is_raised() -> None:
    refused = FakeLibrary([h200()], init=Err(pynvml.NVML_ERROR_DRIVER_NOT_LOADED))
    with installed(refused), pytest.raises(nvml_events.NvmlProblem):
        nvml_events.follow(lambda _: None, lambda: False)


# --- the whole watcher ----------------------------------------------------------------------------


class Sink:
    """A sink that may be unreachable at first."""

    def __init__(self, away: int = 0) -> None:
        self.away, self.tries = away, 0
        self.found: list[XidReport] = []
        self.heard = threading.Event()

    def __call__(self, seen: list[XidReport]) -> None:
        self.tries += 1
        if self.tries <= self.away:
            raise ConnectionError("the broker is away")
        self.found += seen
        self.heard.set()


Start = Callable[..., Watcher]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    running: list[Watcher] = []
    (tmp_path / "kmsg").touch()

    def begin(sink: Sink, follow: Any = lambda tell, going: None) -> Watcher:
        watcher = Watcher(sink, kmsg=tmp_path / "kmsg", follow=follow)
        running.append(watcher)
        watcher.start()
        return watcher

    yield begin
    for watcher in running:
        watcher.stop()


def test_xid_of_either_source_is_reported_once_and_application_xids_are_not(start: Start) -> None:
    told = Sink()
    watcher = start(told)
    for xid in (13, 31, 43, 45, 68, 1):
        watcher.handle(XidReport(SLOT, xid, "x"))
    watcher.handle(XidReport(SLOT, 79, LOST))
    watcher.handle(XidReport(SLOT, 79))
    watcher.handle(XidReport(SLOT, 154))
    assert told.heard.wait(10)
    watcher.stop()
    assert told.found == [XidReport(SLOT, 79, LOST)]


def test_kernel_messages_are_reported_while_nvml_hangs(start: Start, tmp_path: Path) -> None:
    hangs, hung = threading.Event(), threading.Event()

    def follow(tell: Any, going: Any) -> None:
        hung.set()
        hangs.wait(30)

    told = Sink()
    start(told, follow)
    assert hung.wait(10)
    deadline = time.monotonic() + 20
    while not told.heard.is_set() and time.monotonic() < deadline:
        # Readers start at the end of the log.
        with (tmp_path / "kmsg").open("a") as file:
            file.write(f"4,2,3,-;{LOST}\n")
        told.heard.wait(0.1)
    hangs.set()
    assert told.found == [XidReport(SLOT, 79, LOST)]


def test_lost_gpu_does_not_end_the_watch_of_others(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    """NVML stops waiting for all devices; with the usual retry delay this test would not end."""
    monkeypatch.setattr(watching, "RETRY_S", 3600.0)
    rounds = iter([GpuLost("The GPU is lost."), None])

    def follow(tell: Any, going: Any) -> None:
        if (problem := next(rounds, None)) is not None:
            raise problem
        tell(XidReport(SLOT, 48))

    told = Sink()
    start(told, follow)
    assert told.heard.wait(20)
    assert told.found == [XidReport(SLOT, 48)]


def test_undeliverable_reports_are_kept(start: Start) -> None:
    told = Sink(away=1)
    start(told).handle(XidReport(SLOT, 48))
    assert told.heard.wait(20)
    assert told.found == [XidReport(SLOT, 48)] and told.tries == 2


def test_nvml_events_work_without_kernel_log_permission(tmp_path: Path) -> None:
    told = Sink()
    watcher = Watcher(told, kmsg=tmp_path / "nowhere", follow=lambda tell, going: tell(XidReport(SLOT, 95)))
    watcher.start()
    assert told.heard.wait(10)
    watcher.stop()
    assert told.found == [XidReport(SLOT, 95)]
