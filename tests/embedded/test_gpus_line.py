"""The line of `make up` about GPUs."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from portal.embedded import preflight
from provisioning.gpu import inventory
from provisioning.gpu.facts import MachineState, Scan
from provisioning.node.sampling import has_library


def gpus(*models: str) -> tuple[SimpleNamespace, ...]:
    return tuple(SimpleNamespace(model=model) for model in models)


@pytest.mark.skipif(has_library(), reason="this machine has an NVIDIA driver")
def test_line_without_a_driver_names_the_fix() -> None:
    line = preflight.gpus()
    assert line.startswith("  – GPUs ")
    assert (
        "The NVIDIA driver is not installed" in line
        and "run without a GPU" in line
        and "libnvidia-ml.so.1" in line
    )


def test_line_with_gpus_counts_them(monkeypatch: pytest.MonkeyPatch) -> None:
    found = Scan(MachineState.OK, "", gpus("H200", "H200", "L4"), (), "580.82", "13.0")
    monkeypatch.setattr(inventory, "scan", lambda: found)
    assert preflight.gpus() == "  ✓ GPUs                   2 × H200, 1 × L4, driver 580.82"


def test_line_with_a_lost_gpu_names_it(monkeypatch: pytest.MonkeyPatch) -> None:
    found = Scan(MachineState.GPU_LOST, "GPU 1 does not answer.", gpus("H200"), (), "580.82", "13.0")
    monkeypatch.setattr(inventory, "scan", lambda: found)
    assert preflight.gpus() == "  ! GPUs                   1 × H200, driver 580.82. GPU 1 does not answer."
