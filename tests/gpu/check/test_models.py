"""The verdict of every model in every situation. A healthy GPU never fails."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from provisioning.gpu.check import hardware_state, thresholds
from provisioning.gpu.check.assess import assess
from provisioning.gpu.check.plan import plan_for
from provisioning.gpu.check.types import Facts, Level, Raw, Verdict
from provisioning.gpu.check.verdict import decide, of_tests

PASS, DEGRADED, FAIL = Verdict.PASS, Verdict.DEGRADED, Verdict.FAIL

# Name, compute capability, and the verdicts of a healthy one: quick and standard.
MODELS = [
    ("Tesla T4", (7, 5), PASS, PASS),
    ("Tesla V100-SXM2-16GB", (7, 0), DEGRADED, DEGRADED),
    ("Tesla V100-PCIE-32GB", (7, 0), DEGRADED, DEGRADED),
    ("Tesla V100S-PCIE-32GB", (7, 0), DEGRADED, DEGRADED),
    ("NVIDIA A2", (8, 6), PASS, PASS),
    ("NVIDIA A10", (8, 6), PASS, PASS),
    ("NVIDIA A10G", (8, 6), PASS, DEGRADED),
    ("NVIDIA A16", (8, 6), PASS, PASS),
    ("NVIDIA A30", (8, 0), PASS, PASS),
    ("NVIDIA A40", (8, 6), PASS, PASS),
    ("NVIDIA A100-SXM4-80GB", (8, 0), PASS, PASS),
    ("NVIDIA RTX A6000", (8, 6), PASS, DEGRADED),
    ("NVIDIA GeForce RTX 4090", (8, 9), PASS, PASS),
    ("NVIDIA GeForce RTX 5090", (12, 0), PASS, DEGRADED),
    ("NVIDIA RTX 6000 Ada Generation", (8, 9), PASS, DEGRADED),
    ("NVIDIA RTX PRO 6000 Blackwell Workstation Edition", (12, 0), PASS, DEGRADED),
    ("NVIDIA RTX PRO 6000 Blackwell Max-Q Workstation Edition", (12, 0), PASS, DEGRADED),
    ("NVIDIA RTX PRO 6000 Blackwell Server Edition", (12, 0), DEGRADED, DEGRADED),
    ("NVIDIA L4", (8, 9), PASS, PASS),
    ("NVIDIA L20", (8, 9), PASS, DEGRADED),
    ("NVIDIA L40S", (8, 9), PASS, PASS),
    ("NVIDIA H20", (9, 0), PASS, PASS),
    ("NVIDIA H100 PCIe", (9, 0), PASS, PASS),
    ("NVIDIA H100 80GB HBM3", (9, 0), PASS, PASS),
    ("NVIDIA H100 NVL", (9, 0), DEGRADED, DEGRADED),
    ("NVIDIA H200", (9, 0), PASS, PASS),
    ("NVIDIA H200 NVL", (9, 0), PASS, DEGRADED),
    ("NVIDIA GH200 480GB", (9, 0), DEGRADED, DEGRADED),
    ("NVIDIA B200", (10, 0), PASS, PASS),
    ("NVIDIA B300 SXM6 AC", (10, 3), PASS, DEGRADED),
    ("NVIDIA GB200", (10, 0), DEGRADED, DEGRADED),
]
LINKS = [{"link": link, "active": False} for link in range(12)]


@dataclass(frozen=True)
class Situation:
    """Differences from a healthy device at datasheet speed; `worst` is the expected verdict."""

    worst: Verdict
    facts: Mapping[str, Any] = field(default_factory=dict)
    before: Mapping[str, Any] = field(default_factory=dict)
    speed: float = 1.0
    pcie: float = 1.0
    free_mib: float = 14_000
    error: str = ""
    errors: int = 0


SITUATIONS = {
    "healthy": Situation(PASS),
    **{f"PCIe {n}": Situation(PASS, {"pcie_max_gen": n}) for n in (1, 2, 3, 5, 6)},
    "an unknown link": Situation(DEGRADED, {"pcie_max_gen": None}),
    "a newer link than known": Situation(DEGRADED, {"pcie_max_gen": 7}),
    "no bridge": Situation(PASS, before={"nvlinks": LINKS}),
    "a power cap, little slower": Situation(
        PASS, before={"power_limit_set_mw": 300_000, "power_limit_default_mw": 310_000}
    ),
    "a power cap": Situation(
        DEGRADED, before={"power_limit_set_mw": 100_000, "power_limit_default_mw": 300_000}, speed=0.4
    ),
    "a power cap of the chassis": Situation(
        DEGRADED, before={"power_limit_mw": 100_000, "power_limit_default_mw": 300_000}, speed=0.4
    ),
    "a VM without NUMA nodes": Situation(DEGRADED, {"numa_hidden": True}, pcie=0.6),
    "a vGPU": Situation(PASS, {"vgpu": True}, speed=0.2, pcie=0.2),
    "confidential computing": Situation(PASS, {"confidential": True}, pcie=0.1),
    "a program draws": Situation(
        DEGRADED, before={"drawing": [{"pid": 812, "memory_mib": 300}]}, free_mib=13_700
    ),
    "a display's watchdog": Situation(
        Verdict.INCONCLUSIVE, error="cuEventSynchronize: CUDA_ERROR_LAUNCH_TIMEOUT"
    ),
    "ECC off by default": Situation(PASS, {"ecc": False}, free_mib=13_000),
    "ECC switched off": Situation(DEGRADED, {"ecc": False}, {"ecc": False, "ecc_default": True}),
}  # fmt: skip
FAULTS = {
    "a wrong word": Situation(FAIL, errors=1),
    "a leak": Situation(FAIL, free_mib=13_700),
    "a slow link": Situation(FAIL, pcie=0.6),
}


def _healthy(metric: str, facts: Facts) -> float:
    """A value slightly above the warning limit; any value without a limit."""
    judged = thresholds.judge(metric, 1e9, facts)
    return 1.05 * judged.warn_below if judged.warn_below else 100.0


def _raws(level: Level, facts: Facts, situation: Situation) -> Iterator[tuple[Any, Raw]]:
    for test in plan_for(level, facts):
        metrics: list[str] = []
        if test.probe in ("copy", "memory"):
            metrics = list(thresholds.MEMORY_METRICS)
        if test.probe == "burn":
            metrics = [f"gemm_{test.params['dtype']}_tflops"]
        measures = {metric: situation.speed * _healthy(metric, facts) for metric in metrics}
        measures |= dict.fromkeys(thresholds.UNIT_METRICS, 100.0)
        measures |= {"coverage": 1.0, "free_mib": situation.free_mib}
        if test.probe == "pcie":
            peak = thresholds.PCIE_PEAK.get(facts.pcie_max_gen or 4, 200.0)
            measures = dict.fromkeys(("to_device_gb_s", "to_host_gb_s"), situation.pcie * peak * 0.85)
        state = "error" if situation.error and test.probe == "exact" else "done"
        errors = situation.errors if test.probe == "exact" else 0
        yield test, Raw(test.name, state, errors, measures, error=situation.error)


def verdict_of(level: Level, name: str, capability: tuple[int, int], situation: Situation) -> Verdict:
    facts = Facts(
        "GPU-1", name=name, pcie_max_gen=4, pcie_max_width=16, compute_capability=capability, ecc=True,
        driver_version="580.65.06",
    )  # fmt: skip
    facts = replace(facts, **situation.facts)
    findings = hardware_state.before_load(situation.before) + hardware_state.untested_findings(capability)
    memory = hardware_state.memory_state(facts.ecc, (situation.before, None))
    baseline = {"free_mib:ecc": 14_000.0, "free_mib:ecc:display": 14_000.0}
    tests: Sequence[Any] = [
        assess(test, raw, facts, baseline=baseline, memory=memory)
        for test, raw in _raws(level, facts, situation)
    ]
    tests = hardware_state.excuse_lowered_limits(tests, findings)
    return decide([*findings, *of_tests(tests)], tests, simulated=False)[0]


ORDER = (PASS, DEGRADED, Verdict.INCONCLUSIVE, FAIL)


@pytest.mark.parametrize("model", MODELS, ids=lambda model: model[0])
def test_healthy_device_never_fails(model: tuple[str, tuple[int, int], Verdict, Verdict]) -> None:
    name, capability, quick, standard = model
    for level, healthy in ((Level.QUICK, quick), (Level.STANDARD, standard)):
        for title, situation in SITUATIONS.items():
            expected = max(healthy, situation.worst, key=ORDER.index)
            if situation.facts.get("vgpu") and capability != (7, 0):
                expected = PASS
            assert verdict_of(level, name, capability, situation) == expected, f"{level}: {title}"


@pytest.mark.parametrize("model", MODELS, ids=lambda model: model[0])
def test_faulty_device_fails_without_datasheet_values(
    model: tuple[str, tuple[int, int], Verdict, Verdict],
) -> None:
    name, capability, _, _ = model
    for title, situation in FAULTS.items():
        for level in (Level.QUICK, Level.STANDARD):
            assert verdict_of(level, name, capability, situation) == FAIL, title
