"""Facts read once before a run: the InfoROM, retired memory and loaded drivers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pynvml
import pytest

from provisioning.gpu.check.nvml_read import DeviceLost, DeviceReader, NoDevice
from tests.gpu.fake_nvml import LOST, UNSUPPORTED, Err, FakeLibrary, h100_mig, h200, installed

VERSION = "G520.0200.00.05"
BOARD = {"nouveau": False, "ecc": True, "ecc_default": None, "retired": 0}


def board(library: FakeLibrary, root: Path, uuid: str = "") -> dict[str, Any]:
    with installed(library):
        return DeviceReader(uuid or library.gpus[0].uuid, root=root).board()


@pytest.mark.parametrize(
    ("said", "valid"),
    [
        (True, True),
        (Err(pynvml.NVML_ERROR_CORRUPTED_INFOROM), False),
        (Err(UNSUPPORTED), None),
        (Err(pynvml.NVML_ERROR_NO_PERMISSION), None),
        (Err(pynvml.NVML_ERROR_UNKNOWN), None),
    ],
)
def test_inforom_validity_is_read(tmp_path: Path, said: Any, valid: bool | None) -> None:
    found = board(FakeLibrary([h200(nvmlDeviceValidateInforom=said)]), tmp_path)
    assert found == {"inforom_valid": valid, "inforom_version": VERSION, **BOARD}


def test_missing_inforom_is_not_reported(tmp_path: Path) -> None:
    none = {
        name: Err(UNSUPPORTED) for name in ("nvmlDeviceValidateInforom", "nvmlDeviceGetInforomImageVersion")
    }
    assert board(FakeLibrary([h200(**none)]), tmp_path)["inforom_version"] is None
    # A driver that lacks the functions.
    old = FakeLibrary([h200()], without=tuple(none))
    unknown = {"inforom_valid": None, "inforom_version": None}
    assert board(old, tmp_path) == {**unknown, **BOARD}
    # It is listed as unavailable and is no finding.
    with installed(old):
        reader = DeviceReader(old.gpus[0].uuid, root=tmp_path)
        assert "inforom" not in reader.snapshot()["unavailable"]
        assert reader.board() and "inforom" in reader.unavailable


def test_inforom_of_an_instance_is_that_of_its_gpu(tmp_path: Path) -> None:
    gpu = h100_mig()
    gpu.values["nvmlDeviceValidateInforom"] = Err(pynvml.NVML_ERROR_CORRUPTED_INFOROM)
    assert board(FakeLibrary([gpu]), tmp_path, gpu.instances[0].uuid)["inforom_valid"] is False


def test_lost_device_is_reported_as_lost(tmp_path: Path) -> None:
    library = FakeLibrary([h200()])
    with installed(library):
        reader = DeviceReader(library.gpus[0].uuid, root=tmp_path)
        library.gpus[0].broken = LOST
        with pytest.raises(DeviceLost):
            reader.board()


def test_nouveau_driver_is_detected(tmp_path: Path) -> None:
    (tmp_path / "sys/module/nouveau").mkdir(parents=True)
    assert board(FakeLibrary([h200()]), tmp_path)["nouveau"] is True


@pytest.mark.parametrize("default", [0, 1])
def test_ecc_mode_and_default_are_read(tmp_path: Path, default: int) -> None:
    gpu = h200(nvmlDeviceGetEccMode=(0, 1), nvmlDeviceGetDefaultEccMode=default)
    seen = board(FakeLibrary([gpu]), tmp_path)
    assert (seen["ecc"], seen["ecc_default"]) == (False, bool(default))


def test_retired_memory_counts_rows_or_pages(tmp_path: Path) -> None:
    rows = h200(nvmlDeviceGetRemappedRows=(2, 3, 0, 0))
    assert board(FakeLibrary([rows]), tmp_path)["retired"] == 5
    neither = h200(nvmlDeviceGetRemappedRows=Err(UNSUPPORTED))
    assert board(FakeLibrary([neither]), tmp_path)["retired"] is None


def display(library: FakeLibrary) -> dict[str, Any]:
    with installed(library):
        return DeviceReader(library.gpus[0].uuid).display()


@pytest.mark.parametrize(("active", "seen"), [(1, True), (0, False), (Err(UNSUPPORTED), None)])
def test_active_display_is_read(active: Any, seen: bool | None) -> None:
    gpu = h200(nvmlDeviceGetDisplayActive=active)
    assert display(FakeLibrary([gpu]))["display_active"] is seen


def test_display_clients_of_a_gpu() -> None:
    gpu = h200()
    gpu.drawing = [812, 77]
    assert display(FakeLibrary([gpu]))["drawing"] == [{"pid": pid, "memory_mib": 0} for pid in (812, 77)]
    old = FakeLibrary([gpu], without=("nvmlDeviceGetGraphicsRunningProcesses_v3",))
    assert display(old)["drawing"] is None


def start_failure(root: Path, code: int) -> NoDevice:
    with installed(FakeLibrary([h200()], init=Err(code))), pytest.raises(NoDevice) as raised:
        DeviceReader("GPU-1", root=root)
    return raised.value


def test_nvml_start_failures_name_the_fix(tmp_path: Path) -> None:
    unloaded, mismatch = pynvml.NVML_ERROR_DRIVER_NOT_LOADED, pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH
    assert start_failure(tmp_path, unloaded).fix.startswith("Load the kernel module (modprobe nvidia)")
    (tmp_path / "sys/module/nouveau").mkdir(parents=True)
    assert "blacklist nouveau" in start_failure(tmp_path, unloaded).fix
    # nouveau is named if it drives the GPUs, not if NVIDIA's driver is loaded.
    assert start_failure(tmp_path, mismatch).fix == (
        "The driver was updated but not reloaded. Reboot the node, or reload the NVIDIA kernel modules."
    )
    assert "/dev/nvidiactl" in start_failure(tmp_path, pynvml.NVML_ERROR_NO_PERMISSION).fix
    assert "Loaded kernel module" not in str(start_failure(tmp_path, mismatch))
    (tmp_path / "sys/module/nvidia").mkdir()
    (tmp_path / "sys/module/nvidia/version").write_text("570.124.06\n")
    assert str(start_failure(tmp_path, mismatch)).endswith("Loaded kernel module: 570.124.06.")
