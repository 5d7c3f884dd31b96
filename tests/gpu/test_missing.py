"""GPUs that PCI lists and the driver does not."""

from __future__ import annotations

from pathlib import Path

import pytest

from provisioning.gpu import inventory, missing
from provisioning.gpu.facts import MachineState, Scan
from provisioning.gpu.nvml import DeadlineThread
from tests.gpu.fake_nvml import LOST, FakeLibrary, h200, installed

BUSES = tuple(f"0000:{0x1B + 16 * number:02x}:00.0" for number in range(8))


def pci(
    root: Path, bus: str, *, driver: str = "nvidia", kind: str = "0x030200", vendor: str = "0x10de"
) -> Path:
    folder = root / "sys/bus/pci/devices" / bus
    folder.mkdir(parents=True)
    for name, text in (("vendor", vendor), ("device", "0x2335"), ("class", kind)):
        (folder / name).write_text(f"{text}\n")
    if driver:
        real = root / "sys/bus/pci/drivers" / driver
        real.mkdir(parents=True, exist_ok=True)
        (folder / "driver").symlink_to(real)
    return folder


def scan_of(library: FakeLibrary, root: Path) -> Scan:
    with installed(library):
        return inventory.scan(root=root, bounded=DeadlineThread())


@pytest.fixture
def eight(tmp_path: Path) -> Path:
    for bus in BUSES:
        pci(tmp_path, bus)
    return tmp_path


def test_missing_gpu_is_reported_with_its_pci_address(eight: Path) -> None:
    gpus = [h200(number) for number in range(8)]
    found = scan_of(FakeLibrary(gpus), eight)
    assert (found.state, found.sentence, found.missing) == (MachineState.OK, "", ())
    found = scan_of(FakeLibrary([gpu for gpu in gpus if gpu.minor != 3]), eight)
    assert found.state is MachineState.GPU_LOST and len(found.gpus) == 7
    assert found.missing == (BUSES[3],)
    assert found.sentence == (
        f"PCI lists the GPU at {BUSES[3]}, but the driver does not. "
        "Search dmesg for NVRM lines, then reboot this machine."
    )


def test_several_or_all_missing_gpus_are_reported(eight: Path) -> None:
    found = scan_of(FakeLibrary([h200(0)]), eight)
    assert found.sentence.startswith(f"PCI lists 7 GPUs that the driver does not list: {BUSES[1]}, ")
    found = scan_of(FakeLibrary([]), eight)
    assert found.state is MachineState.GPU_LOST and found.missing == BUSES
    assert found.sentence.startswith("The NVIDIA driver 570.124.06 lists no GPU, but PCI lists 8 GPUs: ")
    assert "Install a newer driver" in found.sentence and "reboot" not in found.sentence


def test_device_without_address_gets_it_from_pci(eight: Path) -> None:
    gpus = [h200(number) for number in range(8)]
    gpus[5].broken = LOST
    found = scan_of(FakeLibrary(gpus), eight)
    assert found.missing == (BUSES[5],) and "GPU 5" in found.sentence
    assert found.state is MachineState.GPU_LOST


def test_other_driver_devices_are_not_missing(tmp_path: Path) -> None:
    pci(tmp_path, BUSES[0])
    pci(tmp_path, BUSES[1], driver="vfio-pci")
    (pci(tmp_path, BUSES[2]) / "physfn").mkdir()
    pci(tmp_path, BUSES[3], kind="0x040300")
    pci(tmp_path, BUSES[4], vendor="0x1a03")
    assert scan_of(FakeLibrary([h200(0)]), tmp_path).state is MachineState.OK
    # A failed GPU has no driver; other display controller classes are GPUs as well.
    pci(tmp_path, BUSES[5], driver="")
    pci(tmp_path, BUSES[6], kind="0x038000")
    assert scan_of(FakeLibrary([h200(0)]), tmp_path).missing == (BUSES[5], BUSES[6])


@pytest.mark.parametrize("mark", [".dockerenv", "run/.containerenv", "var/run/secrets/kubernetes.io"])
def test_gpus_hidden_from_a_container_are_not_missing(eight: Path, mark: str) -> None:
    (eight / mark).mkdir(parents=True)
    assert scan_of(FakeLibrary([h200(0)]), eight).state is MachineState.OK


def test_long_lists_of_missing_gpus_are_shortened() -> None:
    many = [f"0000:{number:02x}:00.0" for number in range(17)]
    assert missing.sentence(many).count("0000:") == 16 and missing.sentence(many).startswith(
        "PCI lists 17 GPUs"
    )
