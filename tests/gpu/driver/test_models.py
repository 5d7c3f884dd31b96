"""Quick checks of all models, and of healthy GPUs in unusual machines, as real processes.

The rules decide the same for every level in `tests/gpu/check/test_models.py`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from provisioning.gpu.check import thresholds
from provisioning.gpu.check.plan import Test
from provisioning.gpu.check.report import Report, render
from provisioning.gpu.check.types import Facts, Verdict
from tests.gpu.check.test_models import MODELS
from tests.gpu.driver.machine import GPU, Machine
from tests.gpu.driver.test_checks import PCIE
from tests.suite.choice import quick_of

pytestmark = pytest.mark.engine
Make = Callable[..., Machine]
Check = Callable[..., Report]
Model = tuple[str, tuple[int, int], Verdict, Verdict]
BY_NAME: dict[str, Model] = {model[0]: model for model in MODELS}
KNOWN, WITHOUT_FIGURES = "NVIDIA GeForce RTX 4090", "NVIDIA H100 NVL"
PASS, DEGRADED, INCONCLUSIVE = Verdict.PASS, Verdict.DEGRADED, Verdict.INCONCLUSIVE


def lines_of(model: Model, *, pcie_gen: int = 4, virtual: bool = False) -> tuple[str, str]:
    """Return the lines of a machine with a healthy GPU of this model."""
    name, (major, minor), *_ = model
    judged = thresholds.judge("copy_gb_s", 1e9, Facts(GPU, name=name, compute_capability=model[1]))
    copy_gb_s = 1.05 * judged.warn_below if judged.warn_below else 800
    return (
        f"model own {major} {minor} 80 16384 {pcie_gen} {copy_gb_s:.0f} 300000 {name}",
        f"gpu own {GPU}{' virtual' if virtual else ''}",
    )


def plan_of(model: Model) -> list[Test]:
    exact = Test("exact", "exact", 20.0, params={"dtype": "fp16" if model[1] >= (7, 5) else "fp32"})
    return [*(Test(name, name, 20.0) for name in ("canary", "residue", "copy")), exact, PCIE]


@pytest.mark.parametrize(
    "name", quick_of(BY_NAME, (KNOWN, WITHOUT_FIGURES), "every model; `make test` has two")
)
def test_healthy_device_of_every_model_never_fails(with_kernels: Make, check: Check, name: str) -> None:
    model = BY_NAME[name]
    made = with_kernels(580, *lines_of(model))
    if model[1] < (7, 5):
        # No packaged kernels: compiled on the node.
        (made.folder / "nvrtc").touch()
    report = check(GPU, plan=plan_of(model))
    assert report.facts is not None and report.facts.name == name
    assert report.verdict == model[2], render(report)


SITUATIONS: dict[str, tuple[Verdict, dict[str, Any], tuple[str, ...], tuple[str, ...]]] = {
    **{f"PCIe {number}": (PASS, {"pcie_gen": number}, (), ()) for number in (1, 2, 3, 5, 6)},
    "a vGPU": (PASS, {"virtual": True}, (), ()),
    "a power cap, little slower": (PASS, {}, ("power_limit_mw 290000",), ()),
    "a power cap": (DEGRADED, {}, ("power_limit_mw 100000",), ("slow 400",)),
    "a display's watchdog": (INCONCLUSIVE, {}, (), ("watchdog count_nonzero",)),
}
"""The verdict, and what differs from a healthy GPU: its model, its machine, its faults."""


@pytest.mark.parametrize("situation", quick_of(SITUATIONS, ("PCIe 1", "a power cap"), "every situation"))
def test_healthy_device_in_an_unusual_machine_never_fails(
    with_kernels: Make, check: Check, situation: str
) -> None:
    verdict, model, lines, faults = SITUATIONS[situation]
    made = with_kernels(580, *lines_of(BY_NAME[KNOWN], **model), *lines)
    for fault in faults:
        made.fault(*fault.split())
    report = check(GPU, plan=plan_of(BY_NAME[KNOWN]))
    assert report.verdict == verdict, render(report)
