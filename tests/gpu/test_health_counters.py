"""Health counters in samples: as the driver reports them, and missing instead of 0."""

from __future__ import annotations

from collections.abc import Iterator

import pynvml
import pytest

from provisioning.gpu.nvml import session
from provisioning.gpu.sources import HEALTH_EVERY_S, GpuSource
from provisioning.gpu.watcher import last_xids
from provisioning.gpu.watcher.watcher import Watcher
from provisioning.gpu.watcher.xid_report import XidReport
from tests.gpu.fake_nvml import Err, FakeGpu, FakeLibrary, h200, installed, t4


@pytest.fixture(autouse=True)
def nobody_watches() -> Iterator[None]:
    last_xids.forget()
    yield
    last_xids.forget()


def source_of(gpu: FakeGpu) -> Iterator[GpuSource]:
    with installed(FakeLibrary([gpu])), session() as driver:
        device = driver.device(0)
        yield GpuSource(device, device.uuid())


def test_counted_errors_are_reported() -> None:
    gpu = h200(nvmlDeviceGetRemappedRows=(3, 1, 0, 1), nvmlDeviceGetPcieReplayCounter=7)
    gpu.values["nvmlDeviceGetTotalEccErrors"] = {0: 12, 1: 2}
    gpu.fields[pynvml.NVML_FI_DEV_TOTAL_ENERGY_CONSUMPTION] = 123_456_789
    for source in source_of(gpu):
        sample = source.read(100.0)
        assert (sample.ecc_corrected, sample.ecc_uncorrected, sample.pcie_replays) == (12, 2, 7)
        assert (sample.remapped_corrected, sample.remapped_uncorrected, sample.remap_failed) == (3, 1, 1)
        assert sample.energy_mj == 123_456_789 and sample.last_xid is None
        # Read rarely; a restarted counter is added to its previous total.
        gpu.values["nvmlDeviceGetPcieReplayCounter"] = 2
        assert source.read(100.0 + HEALTH_EVERY_S - 1).pcie_replays == 7
        assert source.read(100.0 + HEALTH_EVERY_S).pcie_replays == 9
        # Counters are read even after the clock was set back.
        gpu.values["nvmlDeviceGetPcieReplayCounter"] = 3
        assert source.read(50.0).pcie_replays == 10


def test_wrapped_counter_continues() -> None:
    gpu = h200(nvmlDeviceGetPcieReplayCounter=2**32 - 2)
    gpu.values["nvmlDeviceGetTotalEccErrors"] = {0: 12, 1: 2}
    gpu.fields[pynvml.NVML_FI_DEV_TOTAL_ENERGY_CONSUMPTION] = 2**64 - 5
    for source in source_of(gpu):
        assert source.read(100.0).pcie_replays == 2**32 - 2
        gpu.values["nvmlDeviceGetPcieReplayCounter"] = 3
        gpu.fields[pynvml.NVML_FI_DEV_TOTAL_ENERGY_CONSUMPTION] = 5
        # Errors before a reset are neither counted twice nor lost.
        gpu.values["nvmlDeviceGetTotalEccErrors"] = {0: 1, 1: 0}
        sample = source.read(100.0 + HEALTH_EVERY_S)
        assert (sample.pcie_replays, sample.energy_mj) == (2**32 + 3, 2**64 + 5)
        assert (sample.ecc_corrected, sample.ecc_uncorrected) == (13, 2)


def test_unsupported_values_are_omitted() -> None:
    for source in source_of(t4()):
        sample = source.read(100.0)
        assert (sample.remapped_corrected, sample.remap_failed, sample.energy_mj) == (None, None, None)


def test_failing_counter_does_not_fail_the_sample() -> None:
    for source in source_of(h200(nvmlDeviceGetRemappedRows=Err(pynvml.NVML_ERROR_UNKNOWN))):
        sample = source.read(100.0)
        assert sample.power_mw == 76_541 and sample.pcie_replays is None


def test_last_xid_is_reported_if_a_watcher_runs() -> None:
    for source in source_of(h200()):
        assert source.read(100.0).last_xid is None
        last_xids.watching()
        assert source.read(101.0).last_xid == 0
        watcher = Watcher(lambda seen: None)
        watcher.handle(XidReport("0000:1b:00", 31))
        watcher.handle(XidReport("0000:2b:00", 79))
        assert source.read(102.0).last_xid == 31
