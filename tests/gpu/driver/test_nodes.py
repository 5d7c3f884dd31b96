"""Inventory, sampler and watcher as a process, on every supported driver and kind of GPU."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import product
from typing import Any

import pytest

from tests.gpu.driver.machine import GPU, HALF, KINDS, RELEASES, SEVENTH, Machine, line_of, uuid_of
from tests.suite.choice import quick_of, sample

pytestmark = pytest.mark.engine
Make = Callable[..., Machine]

BLACKWELL = 570
OTHER = uuid_of(2)
SLOT = "0000:1b:00"


@contextmanager
def xids(machine: Machine, number: int, *, log: bool) -> Iterator[None]:
    """Report an XID repeatedly until it was received."""
    done = threading.Event()

    def tell() -> None:
        while not done.wait(0.05):
            machine.xid(number, log=log)

    thread = threading.Thread(target=tell)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()


def look(machine: Machine, *, log: bool = True) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any]]:
    """A node's inventory, samples, and report of an XID 79."""
    node = machine.start("tests.gpu.driver.node", str(machine.root))
    found, samples = line_of(node), line_of(node)
    with xids(machine, 79, log=log):
        told = line_of(node)
    return found, samples, told


QUICK = {
    ("H100", 580),
    ("A100", 550),
    ("T4", 535),
    ("MIG", 570),
    ("vGPU", 580),
    ("unprivileged", 550),
    ("B200", 535),
}


@pytest.mark.parametrize(
    ("kind", "release"),
    quick_of(product(KINDS, RELEASES), QUICK, "every pair; `make test` has seven", several=True),
)
def test_inventory_samples_and_xids_on_every_driver(machine: Make, release: int, kind: str) -> None:
    made = machine(release, *KINDS[kind])
    # Without rights, the kernel's log is not read either.
    found, samples, told = look(made, log=kind != "unprivileged")
    assert found["driver_version"] == RELEASES[release]
    assert told["seen"] == [[SLOT, 79]], "a vGPU tells none by NVML: the kernel's log does"
    if kind == "B200" and release < BLACKWELL:
        assert (found["state"], found["gpus"], found["missing"]) == ("gpu_lost", [], [f"{SLOT}.0"])
        assert f"The NVIDIA driver {RELEASES[release]} lists no GPU, but PCI lists 1 GPU" in found["sentence"]
        assert "Install a newer driver" in found["sentence"]
        assert samples["problem"] == "no_driver"
        return
    assert (found["state"], found["sentence"], found["missing"]) == ("ok", "", [])
    (gpu,) = found["gpus"]
    assert gpu["uuid"] == GPU and gpu["virtual"] is (kind == "vGPU")
    judge_gpu(gpu, kind, release)
    judge_samples(samples, kind, release)


def judge_gpu(gpu: dict[str, Any], kind: str, release: int) -> None:
    memory, mig = gpu["memory"], kind in ("MIG", "unprivileged")
    assert gpu["recovery_action"] == ("none" if release >= 570 and kind != "vGPU" else None)
    # Ampere replaced retired pages by remapped rows; neither is reported with MIG instances.
    rows = kind not in ("T4", "vGPU") and not mig
    assert memory["remap_pending"] is (False if rows else None)
    assert memory["retired_pages"] == (0 if kind == "T4" else None)
    assert memory["ecc_uncorrected"] == (None if kind == "vGPU" else 0)
    assert gpu["links"]["active"] == {"T4": 0, "vGPU": 0, "A100": 12}.get(kind, 18)
    assert gpu["mig_mode"] is (None if kind in ("T4", "vGPU") else mig)
    assert gpu["processes"] == (None if kind == "unprivileged" else [])
    assert [instance["uuid"] for instance in gpu["instances"]] == ([HALF, SEVENTH] if mig else [])
    if mig:
        half, seventh = gpu["instances"]
        assert (half["profile"], half["sms"], seventh["profile"], seventh["sms"]) == (
            "3g.40gb",
            60,
            "1g.10gb",
            16,
        )
        # Placements of instances are reported to administrators only.
        assert half["start"] == (4 if kind == "MIG" else -1)
        places = {profile["name"]: len(profile["placements"]) for profile in gpu["profiles"]}
        assert places["1g.10gb"] == (7 if kind == "MIG" else 0)


def judge_samples(samples: dict[str, Any], kind: str, release: int) -> None:
    latest, mig = samples["latest"], kind in ("MIG", "unprivileged")
    assert set(latest) == ({GPU, HALF, SEVENTH} if mig else {GPU})
    assert {rollup["uuid"]: rollup["n"] for rollup in samples["rollups"]} == dict.fromkeys(latest, 3)
    whole = latest[GPU]
    assert whole["memory_used_mib"] == 3
    assert whole["gpu_util_pct"] == (None if mig else 63)
    # Hopper's counters of PCIe came with R570; without them the driver measures for a moment.
    counted = release >= 570 and kind not in ("T4", "A100", "vGPU")
    assert whole["pcie_tx_kib_s"] == (0 if counted else None if kind == "vGPU" else 1000)
    assert whole["nvlink_tx_kib_s"] == (None if kind in ("T4", "vGPU") else 0)
    assert whole["temperature_c"] == (None if kind == "vGPU" else 41)
    assert whole["processes"] == (None if kind == "unprivileged" else [])
    if mig:
        assert (latest[HALF]["gpu_util_pct"], latest[HALF]["processes"]) == (42, [])


@pytest.mark.parametrize(
    ("code", "state", "advice"),
    sample(
        [
            (9, "no_driver", "The NVIDIA kernel module is not loaded. PCI lists 1 NVIDIA GPU."),
            (18, "driver_mismatch", "Reboot this machine, or reload the NVIDIA kernel modules"),
            (4, "no_permission", "access to /dev/nvidiactl"),
        ],
        3,
        "the rows take the same path",
    ),
)
def test_driver_start_failures_are_states(machine: Make, code: int, state: str, advice: str) -> None:
    found, samples, told = look(machine(580, f"gpu H100 {GPU}", f"nvml_refuses {code}"))
    assert (found["state"], advice in found["sentence"]) == (state, True)
    assert told["seen"] == [[SLOT, 79]]
    assert samples.get("problem", state) == state


def test_lost_gpu_does_not_hide_others(machine: Make) -> None:
    made = machine(550, f"gpu H100 {GPU}", f"gpu H100 {OTHER}")
    made.fault("lost", gpu=1)
    found, samples, _ = look(made)
    assert found["state"] == "gpu_lost" and "GPU 1 is not responding" in found["sentence"]
    assert [gpu["uuid"] for gpu in found["gpus"]] == [GPU] == list(samples["latest"])


def test_lost_gpu_is_reported_by_nvml_only(machine: Make) -> None:
    """Without the kernel log, and although the GPU answers no call."""
    made = machine(580, f"gpu H100 {GPU}")
    node = made.start("tests.gpu.driver.node", str(made.root))
    assert line_of(node)["state"] == "ok" and GPU in line_of(node)["latest"]
    made.is_watched()
    made.xid(79, log=False)
    made.fault("lost")
    assert line_of(node)["seen"] == [[SLOT, 79]]


def test_lost_gpu_does_not_end_the_watch_of_others(machine: Make) -> None:
    """NVML refuses to wait for events while a lost GPU is registered."""
    made = machine(570, f"gpu H100 {GPU}", f"gpu H100 {OTHER}")
    node = made.start("tests.gpu.driver.node", str(made.root))
    assert len(line_of(node)["gpus"]) == len(line_of(node)["latest"]) == 2
    made.is_watched()
    made.fault("lost", gpu=1)
    with xids(made, 48, log=False):
        assert line_of(node)["seen"] == [[SLOT, 48]]


def test_pending_remaps_and_recovery_action(machine: Make) -> None:
    made = machine(570, f"gpu H200 {GPU}")
    made.fault("remap_pending")
    made.fault("recovery", 4)
    found, _, _ = look(made)
    (gpu,) = found["gpus"]
    assert (gpu["memory"]["remap_pending"], gpu["recovery_action"]) == (True, "drain_and_reset")


@pytest.mark.parametrize("release", RELEASES)
def test_library_exports_the_functions_of_its_branch(libraries: dict[int, Any], release: int) -> None:
    exported = (libraries[release] / "libnvidia-ml.so.1").read_bytes()
    assert (b"nvmlDeviceGetGpuFabricInfoV\0" in exported) is (release >= 550)
    assert (b"nvmlDeviceGetSramEccErrorStatus\0" in exported) is (release >= 550)
    assert b"nvmlDeviceGetCurrentClocksEventReasons\0" in exported
