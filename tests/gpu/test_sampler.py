"""The sampler over scripted devices: complete minutes are sent, and failing devices do not affect others."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pynvml
import pytest

from provisioning.gpu.counters import Rate
from provisioning.gpu.problems import GpuLost, NoDriver, NvmlProblem, TimedOut
from provisioning.gpu.rollup import Rollup
from provisioning.gpu.sampler import MAX_WAITING, Sampler
from provisioning.gpu.samples import ProcessUse, Sample
from provisioning.gpu.sources import NvmlDevices
from provisioning.live_samples import parse_live
from provisioning.node import sampling
from tests.gpu.fake_nvml import LOST, Err, FakeLibrary, Process, a100, h100_mig, h200, installed, t4

START = 1_800_000_000 // 60 * 60


@dataclass
class Scripted:
    uuid: str
    fails: BaseException | None = None
    hangs: threading.Event | None = None
    reads: int = 0

    def read(self, at_s: float) -> Sample:
        self.reads += 1
        if self.hangs is not None:
            self.hangs.wait(20)
        if self.fails is not None:
            raise self.fails
        return Sample(at_s, gpu_util_pct=40, processes=(ProcessUse(7, 40, 100),))


@dataclass
class Out:
    batches: list[list[Rollup]] = field(default_factory=list)
    error: Exception | None = None

    def __call__(self, rollups: list[Rollup]) -> None:
        if self.error is not None:
            raise self.error
        self.batches.append(rollups)


def sampler_of(devices: Any, out: Out, **more: Any) -> Sampler:
    source = devices if callable(devices) else lambda: list(devices)
    # A long deadline, as threads may be delayed on a busy machine.
    return Sampler(1, source, out, **{"deadline_s": 30, **more})


def until(check: Any) -> None:
    for _ in range(3000):
        if check():
            return
        threading.Event().wait(0.01)
    raise AssertionError("it did not come to pass")


def test_minute_is_sent_when_complete():
    out = Out()
    sampler = sampler_of([Scripted("GPU-1"), Scripted("GPU-2")], out)
    for second in range(60):
        sampler.tick(START + second)
    sampler.flush()
    assert out.batches == []
    sampler.tick(START + 60)
    sampler.flush()
    ((first, second_device),) = out.batches
    assert (first.uuid, first.start_s, first.n, first.missing_s) == ("GPU-1", START, 60, 0)
    assert second_device.uuid == "GPU-2"
    assert [(share.pid, share.seconds, share.sm_pct) for share in first.processes] == [(7, 60, 40)]
    assert sampler.latest()["GPU-1"].at_s == START + 60


def test_hanging_device_is_stale_and_does_not_delay_others():
    release = threading.Event()
    hung, well = Scripted("GPU-hung", hangs=release), Scripted("GPU-well")
    out = Out()
    sampler = sampler_of([hung, well], out, deadline_s=1)
    for second in range(61):
        sampler.tick(START + second)
    sampler.flush()
    assert sampler.stale() == {"GPU-hung"} and hung.reads == 1 and well.reads == 61
    assert [(item.uuid, item.n) for item in out.batches[0]] == [("GPU-well", 60)]
    assert "GPU-hung" not in sampler.latest()
    hung.hangs = None
    release.set()
    until(lambda: not sampler._stuck["GPU-hung"].is_busy())
    sampler.tick(START + 61)
    assert sampler.stale() == frozenset() and hung.reads == 2


def test_silent_device_has_empty_rollups():
    device = Scripted("GPU-1")
    out = Out()
    sampler = sampler_of([device], out)
    sampler.tick(START)
    device.fails = NvmlProblem("odd")
    for second in range(1, 121):
        sampler.tick(START + second)
    sampler.flush()
    assert [(item.n, item.missing_s) for (item,) in out.batches] == [(1, 59), (0, 60)]


def test_lost_device_is_dropped_and_the_list_refreshed():
    lost, well = Scripted("GPU-lost", fails=GpuLost("gone")), Scripted("GPU-well")
    asked: list[int] = []

    def devices() -> list[Scripted]:
        asked.append(1)
        return [well] if len(asked) > 1 else [lost, well]

    sampler = sampler_of(devices, Out())
    for second in range(7):
        sampler.tick(START + second)
    assert (lost.reads, well.reads, len(asked)) == (1, 7, 2)


def test_removed_device_is_dropped_after_its_samples_expire():
    removed, stays = Scripted("GPU-gone"), Scripted("GPU-stays")
    devices = [removed, stays]
    out = Out()
    sampler = sampler_of(lambda: list(devices), out, refresh_s=60, capacity=120)
    for second in range(0, 60, 10):
        sampler.tick(START + second)
    devices.remove(removed)
    seen = []
    for second in range(60, 360, 10):
        sampler.tick(START + second)
        seen.append(sampler.ring("GPU-gone") is not None)
    sampler.flush()
    assert [[item.uuid for item in batch] for batch in out.batches] == [
        ["GPU-gone", "GPU-stays"],
        *([["GPU-stays"]] * 4),
    ]
    assert seen[0] and not seen[-1] and seen.index(False) * 10 + 60 == 180
    assert sampler.ring("GPU-stays") is not None


def test_each_error_is_reported_once(caplog):
    device = Scripted("GPU-1", fails=NvmlProblem("It is odd."))
    sampler = sampler_of([device], Out())
    for second in range(5):
        sampler.tick(START + second)
    device.fails = None
    sampler.tick(START + 5)
    device.fails = NvmlProblem("It is odd.")
    sampler.tick(START + 6)
    assert [record.message.count("It is odd.") for record in caplog.records] == [1, 1]


def test_device_list_is_closed_at_the_end():
    class Devices:
        closed = 0

        def __call__(self) -> list[Scripted]:
            return [Scripted("GPU-1")]

        def close(self) -> None:
            self.closed += 1

    devices = Devices()
    sampler = sampler_of(devices, Out())
    sampler.start()
    until(lambda: sampler.latest())
    sampler.stop()
    assert devices.closed == 1


def test_driver_timeout_is_not_a_hang():
    device = Scripted("GPU-1", fails=TimedOut("slow"))
    sampler = sampler_of([device], Out())
    for second in range(3):
        sampler.tick(START + second)
    assert device.reads == 3 and sampler.stale() == frozenset()


def test_known_devices_are_sampled_while_the_list_hangs(monkeypatch):
    release = threading.Event()
    device = Scripted("GPU-1")
    asked: list[int] = []

    def devices() -> list[Scripted]:
        asked.append(1)
        if len(asked) > 1:
            release.wait(20)
        return [device]

    sampler = sampler_of(devices, Out(), refresh_s=2)
    sampler.tick(START)
    monkeypatch.setattr("provisioning.gpu.sampler.OPEN_DEADLINE_S", 0.05)
    for second in range(1, 10):
        sampler.tick(START + second)
    assert (device.reads, len(asked), sampler.stale()) == (10, 2, {""})
    release.set()


def test_refused_reports_are_kept_up_to_a_limit():
    out = Out(error=ConnectionError("no broker"))
    sampler = sampler_of([Scripted("GPU-1")], out)
    for number in range(MAX_WAITING + 6):
        sampler.tick(START + 60 * number)
    assert sampler.flush() is False
    out.error = None
    assert sampler.flush() is True
    starts = [batch[0].start_s for batch in out.batches]
    assert len(starts) == MAX_WAITING and starts == sorted(starts) and starts[-1] == START + 60 * 64


def test_sampling_continues_after_the_clock_is_set_back():
    device = Scripted("GPU-1")
    sampler = sampler_of([device], Out())
    sampler.tick(START + 7200)
    sampler.tick(START)
    sampler.tick(START + 1)
    assert device.reads == 3 and sampler.latest()["GPU-1"].at_s == START + 1


def test_threads_start_sample_and_end():
    device = Scripted("GPU-1")
    ticks = iter(range(10_000))
    out = Out()
    # Each look at the clock is 31 s later, so the thread never waits long and minutes go by.
    sampler = sampler_of([device], out, clock=lambda: START + 31 * next(ticks) + 0.999)
    sampler.start()
    sampler.start()
    until(lambda: len(out.batches) >= 2)
    sampler.stop()
    assert not sampler.running and device.reads > 2
    sampler.stop()


def test_sampler_thread_ends_without_a_driver():
    def devices() -> list[Scripted]:
        raise NoDriver("none")

    before = set(threading.enumerate())
    sampler = sampler_of(devices, Out())
    sampler.start()
    until(lambda: not sampler.running and set(threading.enumerate()) <= before)


def test_nvml_devices_give_samples_with_rates():
    gpu = h200(
        processes=[Process(7, 512 << 20, 100, 1_000), Process(9, 1 << 20, 120, 2_000)],
        nvmlDeviceGetUtilizationRates=(97, 41),
        nvmlDeviceGetCurrentClocksEventReasons=0x4,
    )
    counters = {"nvlink": 0, "pcie": 0}
    gpu.fields[pynvml.NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_TX] = lambda: counters["nvlink"]
    gpu.fields[pynvml.NVML_FI_DEV_PCIE_COUNT_RX_BYTES] = lambda: counters["pcie"]
    with installed(FakeLibrary([gpu])) as library:
        devices = NvmlDevices()
        (source,) = devices()
        first = source.read(100.0)
        counters.update(nvlink=4_000, pcie=2_048_000)
        (source,) = devices()  # read again: the counters are remembered
        second = source.read(102.0)
        devices.close()
        assert library.open == 0
    assert (first.gpu_util_pct, first.memory_util_pct, first.power_mw) == (97, 41, 76_541)
    assert (first.temperature_c, first.memory_temperature_c, first.throttle) == (28, 34, 4)
    assert (first.sm_clock_mhz, first.memory_clock_mhz, first.memory_used_mib) == (345, 3201, 1)
    assert first.nvlink_tx_kib_s is None and second.nvlink_tx_kib_s == 2_000
    assert second.pcie_rx_kib_s == 1_000 and second.pcie_tx_kib_s == 0
    assert first.processes == (ProcessUse(7, 100, 512), ProcessUse(9, None, 1))
    assert second.processes == (ProcessUse(7, None, 512), ProcessUse(9, None, 1))


def test_older_device_measures_pcie_only():
    with installed(FakeLibrary([t4(), a100(1)])):
        devices = NvmlDevices()
        first, second = (source.read(1.0) for source in devices())
    assert (first.pcie_tx_kib_s, first.pcie_rx_kib_s, first.nvlink_tx_kib_s) == (1200, 3400, None)
    assert first.memory_temperature_c is None and first.processes == ()
    assert second.pcie_tx_kib_s is None and second.memory_temperature_c == 40


def test_mig_instances_are_separate_devices():
    gpu = h100_mig()
    gpu.instances[0].used = 3 << 30
    gpu.instances[0].processes = [Process(7, 1 << 30)]
    with installed(FakeLibrary([gpu])):
        devices = NvmlDevices()
        sources = devices()
        parent, instance, _ = (source.read(1.0) for source in sources)
    assert [source.uuid[:3] for source in sources] == ["GPU", "MIG", "MIG"]
    assert parent.gpu_util_pct is None and parent.power_mw == 76_541
    assert instance.memory_used_mib == 3072 and instance.power_mw is None
    assert instance.processes == (ProcessUse(7, None, 1024),)


def test_instance_utilization_comes_from_counters():
    gpu = h100_mig()
    with installed(FakeLibrary([gpu])) as library:
        devices = NvmlDevices()
        _, instance, idle = devices()
        assert instance.read(1.0).gpu_util_pct is None and idle.read(1.0).gpu_util_pct is None
        gpu.instances[0].busy_ms += 374
        assert (instance.read(2.0).gpu_util_pct, idle.read(2.0).gpu_util_pct) == (37, 0)
        _, same, _ = devices()
        assert same is instance and same.read(3.0).gpu_util_pct == 0
        gpu.instances[0].busy_ms -= 9_000  # malformed values are ignored
        assert same.read(4.0).gpu_util_pct is None
        del gpu.instances[1]
        assert len(devices()) == 2 and len(library.gpm_samples) == 2
        gpu.instances.clear()
        gpu.mig = (1, 1)
        with pytest.raises(NvmlProblem):
            same.read(5.0)
        devices.close()
        assert library.gpm_samples == {} and library.open == 0
    older = h100_mig(capability=(8, 0))
    with installed(FakeLibrary([older])):
        devices = NvmlDevices()
        _, instance, _ = devices()
        assert [instance.read(at).gpu_util_pct for at in (1.0, 2.0)] == [None, None]


def test_nvml_devices_recover_after_loss_removal_and_driver_errors():
    library = FakeLibrary([h200(0), h200(1)])
    with installed(library):
        devices = NvmlDevices()
        first, second = devices()
        library.gpus[0].broken = LOST
        with pytest.raises(GpuLost):
            first.read(1.0)
        assert [source.uuid for source in devices()] == [second.uuid]
        library.gpus[0].broken = None
        library.gpus[0].uuid = "GPU-new"
        assert [source.uuid for source in devices()] == ["GPU-new", second.uuid]
        assert library.calls.count("nvmlInitWithFlags") == 2  # reopened, to find it again
        for gpu in library.gpus:
            gpu.broken = LOST
        with pytest.raises(GpuLost):
            devices()
        library.gpus.clear()
        with pytest.raises(NoDriver):
            devices()
        assert library.open == 0
        library.init = Err(pynvml.NVML_ERROR_UNKNOWN)
        with pytest.raises(NvmlProblem):
            devices()


def test_rates_need_two_readings_and_survive_a_reset():
    rate = Rate()
    readings = ((10, 1.0), (30, 3.0), (5, 4.0), (9, 4.0), (None, 5.0))
    assert [rate.add_reading(value, at) for value, at in readings] == [None, 10, None, None, None]


class App:
    def __init__(self) -> None:
        self.sent: list[tuple[str, dict[str, Any], str]] = []

    def send_task(self, name: str, *, kwargs: dict[str, Any], queue: str) -> None:
        self.sent.append((name, kwargs, queue))


def test_message_to_the_control_plane():
    app, out = App(), Out()
    sampler = sampler_of([Scripted(f"GPU-{number:03}") for number in range(70)], out)
    sampler.tick(START)
    sampler.tick(START + 60)
    sampler.flush()
    sampling.RollupSender(app, pool_slug="this-machine", node_name="node-a")(out.batches[0])  # type: ignore[arg-type]
    assert [len(kwargs["rollups"]) for _, kwargs, _ in app.sent] == [64, 6]
    name, kwargs, queue = app.sent[0]
    assert (name, queue) == ("control.apply_samples", "control")
    assert set(kwargs) == {"pool_slug", "node_name", "rollups"} and kwargs["node_name"] == "node-a"
    item = kwargs["rollups"][0]
    assert (item["uuid"], item["start_s"], item["span_s"], item["n"]) == ("GPU-000", START, 60, 1)
    assert set(item["metrics"]["gpu_util_pct"]) == {"n", "sum", "max", "p95", "bins"}


def test_step_does_nothing_without_the_library(monkeypatch):
    monkeypatch.setattr(sampling, "LIBRARY", "libnvidia-ml-is-not-here.so.1")
    step = sampling.SamplerStep.__new__(sampling.SamplerStep)
    step._sampler = step._guard = step._live = step._timer = None
    before = set(threading.enumerate())
    step.start(None)
    step.shutdown(None)
    assert set(threading.enumerate()) <= before and step._sampler is None


class Timer:
    def __init__(self) -> None:
        self.calls: list[Any] = []

    def call_repeatedly(self, every_s: float, work: Any) -> Timer:
        self.calls.append(work)
        return self

    def cancel(self) -> None:
        self.calls.clear()


class Redis:
    def __init__(self) -> None:
        self.hash: dict[bytes, bytes] = {}
        self.away = False

    def pipeline(self, transaction: bool) -> Redis:
        if self.away:
            raise ConnectionError("away")
        return self

    def __enter__(self) -> Redis:
        return self

    def __exit__(self, *args: object) -> None: ...

    def hset(self, key: str, mapping: dict[str, str]) -> None:
        assert key == "berth:q:node.a:samples", "what the node's user may write"
        self.hash |= {name.encode(): value.encode() for name, value in mapping.items()}

    def expire(self, key: str, seconds: int) -> None: ...

    def execute(self) -> None: ...

    def close(self) -> None: ...


def test_step_samples_while_the_broker_is_unreachable(monkeypatch):
    device, store, timer = Scripted("GPU-1"), Redis(), Timer()
    monkeypatch.setenv("BERTH_NODE_NAME", "a")
    monkeypatch.setattr(sampling, "has_library", lambda: True)
    monkeypatch.setattr("provisioning.gpu.sources.NvmlDevices", lambda: lambda: [device])
    monkeypatch.setattr(sampling.redis.Redis, "from_url", lambda *args, **kwargs: store)
    app = SimpleNamespace(conf=SimpleNamespace(broker_url="redis://127.0.0.1:1/0"))
    consumer = SimpleNamespace(app=app, timer=timer)
    step = sampling.SamplerStep.__new__(sampling.SamplerStep)
    step._sampler = step._guard = step._live = step._timer = None
    step.start(consumer)
    try:
        until(lambda: device.reads)
        (show,) = timer.calls
        store.away = True
        show()
        assert store.hash == {}
        store.away = False
        until(lambda: show() or store.hash)
        (live,) = parse_live(store.hash).values()
        assert live.gpu_util_pct == 40
        sampler = step._sampler
        step.stop(consumer)
        assert timer.calls == [] and sampler is not None and sampler.running
        step.start(consumer)
        assert step._sampler is sampler
    finally:
        step.shutdown(consumer)
    assert sampler is not None and not sampler.running and timer.calls == []


def test_live_samples_are_parsed_and_old_or_malformed_ones_ignored():
    raw = {
        b"GPU-1": b'{"at_s": 1000.0, "gpu_util_pct": 5, "processes": [{"pid": 7}]}',
        b"GPU-2": b'{"at_s": 900.0}',
        b"GPU-3": b"not json",
        b"GPU-4": b'{"at_s": "now"}',
        b"GPU-5": b"[" * 200_000,
    }
    found = parse_live(raw, now_s=1010.0)
    assert found == {"GPU-1": Sample(1000.0, gpu_util_pct=5, processes=(ProcessUse(7),))}
