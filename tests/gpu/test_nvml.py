"""The typed NVML over the real `pynvml` and a fake library."""

from __future__ import annotations

import re
import threading
from pathlib import Path

import pynvml
import pytest

from provisioning.gpu import nvml
from tests.gpu.fake_nvml import LOST, Err, FakeLibrary, Link, Process, a100, h100_mig, h200, installed, t4


def test_missing_library_is_no_driver_and_names_the_fix():
    with installed(None), pytest.raises(nvml.NoDriver) as caught, nvml.session():
        pass
    assert caught.value.state == "no_driver" and "libnvidia-ml.so.1" in caught.value.sentence


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        (pynvml.NVML_ERROR_DRIVER_NOT_LOADED, nvml.NoDriver),
        (pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH, nvml.DriverMismatch),
        (pynvml.NVML_ERROR_NO_PERMISSION, nvml.NoPermission),
        (pynvml.NVML_ERROR_GPU_IS_LOST, nvml.GpuLost),
        (pynvml.NVML_ERROR_RESET_REQUIRED, nvml.ResetRequired),
        (pynvml.NVML_ERROR_TIMEOUT, nvml.TimedOut),
        (pynvml.NVML_ERROR_UNKNOWN, nvml.NvmlProblem),
    ],
)
def test_driver_failures_have_their_exception_type(code, kind):
    with (
        installed(FakeLibrary(init=Err(code))) as library,
        pytest.raises(nvml.NvmlProblem) as caught,
        nvml.session(),
    ):
        pass
    assert type(caught.value) is kind and caught.value.code == code
    assert caught.value.sentence.endswith(".") and library.open == 0


def test_sessions_close_after_errors():
    with installed(FakeLibrary([h200()])) as library:
        with pytest.raises(KeyError), nvml.session():
            raise KeyError
        assert library.open == 0


def test_values_are_read_through_the_real_structures():
    with installed(FakeLibrary([h200()])), nvml.session() as driver:
        device = driver.device(0)
        assert (driver.driver_version(), driver.cuda_version()) == ("570.124.06", "12.8")
        assert (device.name(), device.memory()) == ("NVIDIA H200", (143_771 << 20, 1 << 20))
        assert device.pci_bus_id() == "0000:1b:00.0"
        assert device.compute_capability() == (9, 0)
        assert device.pcie() == (1, 16, 5, 16)
        assert device.clock_mhz(pynvml.NVML_CLOCK_MEM) == 3201
        assert device.temperature_limit_c(pynvml.NVML_TEMPERATURE_THRESHOLD_SLOWDOWN) == 89
        assert device.power_range_mw() == (200_000, 700_000)
        assert device.memory_affinity() == 0
        assert device.link_peer(0) == (True, "0000:07:00.0")
        assert device.fields([pynvml.NVML_FI_DEV_GET_GPU_RECOVERY_ACTION, 1]) == [0, None]
        assert driver.by_uuid(device.uuid()).name() == "NVIDIA H200"


def test_unsupported_values_are_none_and_never_zero():
    gpu = t4(nvmlDeviceGetPowerUsage=Err(pynvml.NVML_ERROR_NO_PERMISSION))
    with installed(FakeLibrary([gpu])), nvml.session() as driver:
        device = driver.device(0)
        assert device.remapped_rows() is None
        assert device.mig_mode() is None
        assert device.link_active(0) is None
        assert device.power_mw() is None
        assert device.fields([230]) == [None]
        assert device.retired_pages() == 3
    with installed(FakeLibrary([a100()], without=["nvmlDeviceGetFieldValues"])), nvml.session() as driver:
        assert driver.device(0).fields([230, 82]) == [None, None]


def test_all_ones_are_not_available():
    with (
        installed(FakeLibrary([h200(nvmlDeviceGetPowerUsage=0xFFFFFFFF)])),
        nvml.session() as driver,
    ):
        assert driver.device(0).power_mw() is None


def test_lost_device_raises_on_every_read():
    with installed(FakeLibrary([h200(broken=LOST)])), nvml.session() as driver:
        device = driver.device(0)
        for ask in (device.uuid, device.power_mw, device.mig_mode, device.processes, device.utilisation_pct):
            with pytest.raises(nvml.GpuLost):
                ask()
    lost_field = h200()
    lost_field.fields[230] = LOST
    with installed(FakeLibrary([lost_field])), nvml.session() as driver, pytest.raises(nvml.GpuLost):
        driver.device(0).fields([230])


def test_unknown_uuid_raises_device_gone():
    with installed(FakeLibrary([h200()])), nvml.session() as driver, pytest.raises(nvml.DeviceGone):
        driver.by_uuid("GPU-not-here")


def test_mig_profiles_and_placements_are_discovered():
    with installed(FakeLibrary([h100_mig()])), nvml.session() as driver:
        device = driver.device(0)
        info, name = device.mig_profile(2) or (None, "")
        assert (name, info.id, info.multiprocessorCount) == ("3g.40gb", 9, 60)
        assert device.mig_placements(9) == ((0, 4), (4, 4))
        assert device.mig_profile(5) is None and device.mig_placements(99) == ()
        first, second = device.mig_devices()
        assert device.gpu_instance_placement(first.gpu_instance_id() or -1) == (9, 4, 4)
        assert second.attributes().multiprocessorCount == 16
        assert device.utilisation_pct() is None
    with (
        installed(FakeLibrary([h100_mig()], without=["nvmlDeviceGetGpuInstanceProfileInfoV"])),
        nvml.session() as driver,
    ):
        info, name = driver.device(0).mig_profile(2) or (None, "")
        assert (name, info.id) == ("", 9)  # an older driver tells no name


def test_processes_with_and_without_memory():
    gpu = h200(processes=[Process(7, 5 << 20, 40, 100), Process(9, None, 1, 300)])
    with installed(FakeLibrary([gpu], names={7: "python"})), nvml.session() as driver:
        device = driver.device(0)
        assert device.processes() == ((7, 5 << 20), (9, None))
        assert [sample.pid for sample in device.process_utilisation(200) or ()] == [9]
        assert device.process_utilisation(900) == []
        assert driver.process_name(7) == "python" and driver.process_name(8) is None
    with installed(FakeLibrary([h100_mig()])), nvml.session() as driver:
        assert driver.device(0).process_utilisation(0) is None


def test_inactive_link_is_not_absent():
    gpu = h200(links=[Link("00000000:2B:00.0"), Link("", active=False)])
    with installed(FakeLibrary([gpu])), nvml.session() as driver:
        device = driver.device(0)
        assert [device.link_active(link) for link in range(3)] == [True, False, None]
        assert device.link_peer(0) == (False, "0000:2b:00.0") and device.link_peer(1) == (False, None)


@pytest.mark.parametrize(
    ("raw", "tidy"),
    [
        ("00000000:1B:00.0", "0000:1b:00.0"),
        (b"00010000:3B:00.0", "10000:3b:00.0"),
        ("odd", "odd"),
        ("x:y", "x:y"),
    ],
)
def test_bus_ids_have_the_sysfs_format(raw, tidy):
    assert nvml.bus_id(raw) == tidy


def test_hanging_call_ends_at_its_deadline_and_does_not_accumulate():
    release = threading.Event()
    bounded = nvml.DeadlineThread()
    assert bounded.call(lambda: None, timeout_s=5) is None
    with pytest.raises(nvml.TimedOut, match=r"0\.05 s"):
        bounded.call(lambda: release.wait(10), timeout_s=0.05)
    before = set(threading.enumerate())
    with pytest.raises(nvml.TimedOut, match="earlier call"):
        bounded.call(lambda: 1, timeout_s=0.05)
    assert set(threading.enumerate()) <= before
    release.set()
    for _ in range(100):
        try:
            assert bounded.call(lambda: 1, timeout_s=5) == 1
            break
        except nvml.TimedOut:
            continue
    with pytest.raises(nvml.GpuLost):
        bounded.call(lambda: (_ for _ in ()).throw(nvml.GpuLost("gone")), timeout_s=5)


def test_only_the_wrapper_calls_pynvml():
    wrapper = Path(nvml.__file__).parent
    call = re.compile(r"pynvml\.nvml\w+\(|getattr\(pynvml")
    files = [path for path in wrapper.parents[1].rglob("*.py") if path.parent != wrapper]
    assert [str(path) for path in files if call.search(path.read_text())] == []
    assert any(call.search(path.read_text()) for path in wrapper.glob("*.py"))
