"""Thresholds, health, plan, assessment and verdict: every number and every comparison, at its edge."""

from __future__ import annotations

import hashlib
import math
from dataclasses import replace
from typing import Any

import pytest

from provisioning.gpu.check import health, thresholds
from provisioning.gpu.check.assess import assess, raw_of
from provisioning.gpu.check.plan import DEADLINE_S, SINCE, START_S, Test, dtypes, plan_for
from provisioning.gpu.check.probes.compute import DTYPES, supported
from provisioning.gpu.check.standing import MemoryState
from provisioning.gpu.check.thresholds import BadThreshold, Floor, judge, judge_pcie, judge_peer, peak_of
from provisioning.gpu.check.types import (
    EXIT_UNAVAILABLE,
    EXIT_USAGE,
    Action,
    Facts,
    Finding,
    Judgement,
    Level,
    Progress,
    Raw,
    Severity,
    Status,
    TestResult,
    Verdict,
)
from provisioning.gpu.check.verdict import decide, of_tests

H200 = Facts("GPU-1", name="NVIDIA H200", pcie_max_gen=5, pcie_max_width=16, compute_capability=(9, 0))


# --- thresholds ---


def test_a_model_is_known_by_its_whole_name() -> None:
    assert peak_of("NVIDIA A100-SXM4-40GB MIG 1g.5gb") is peak_of("NVIDIA A100-SXM4-40GB")
    for other in ("NVIDIA H100 NVL", "NVIDIA GB200", "NVIDIA RTX 6000", "", "NVIDIA"):
        assert peak_of(other) is None


@pytest.mark.parametrize("fraction", [0.3, 0.95, 0.6])
def test_lint_lets_floors_through_that_can_fail_and_pass(fraction: float) -> None:
    assert thresholds.lint(fraction, "x") == fraction


@pytest.mark.parametrize("fraction", [0.299, 0.951, 0.0005, -1.0, math.nan])
def test_lint_refuses_impossible_floors(fraction: float) -> None:
    with pytest.raises(BadThreshold):
        thresholds.lint(fraction, "x")


def test_lint_refuses_a_warning_after_the_failure() -> None:
    thresholds.lint_floor(Floor(0.5, 0.5), "x")
    for bad in (Floor(0.5, 0.49), Floor(0.2, 0.5), Floor(0.5, 0.96)):
        with pytest.raises(BadThreshold):
            thresholds.lint_floor(bad, "x")


@pytest.mark.parametrize(
    "name",
    [
        "MEMORY_HBM",
        "MEMORY_GDDR",
        "GEMM",
        "GEMM_BOUNDED",
        "GEMM_LOW_POWER",
        "GEMM_PLAIN",
        "BASELINE",
        "NODE_MEDIAN",
        "PEER",
    ],
)
def test_every_floor_is_linted(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    thresholds.lint_all()
    # A floor in the wrong unit: a check that could not fail.
    monkeypatch.setattr(thresholds, name, Floor(0.00072, 0.8))
    with pytest.raises(BadThreshold):
        thresholds.lint_all()


@pytest.mark.parametrize("generation", [1, 2, 3, 4, 5, 6])
def test_every_pcie_floor_is_linted(generation: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(thresholds.PCIE_FAIL, generation, 0.021)
    with pytest.raises(BadThreshold):
        thresholds.lint_all()


def test_figures_change_only_with_their_source() -> None:
    """A new figure needs its source in `thresholds.py`, and a new digest here."""
    figures = repr((thresholds.PEAKS, thresholds.PCIE_PEAK, tuple(DEADLINE_S.values())))
    assert hashlib.sha256(figures.encode()).hexdigest()[:16] == "5cd2b731d0485f64"


def test_exactly_at_a_floor_is_good() -> None:
    assert thresholds.status_of(10.0, 10.0, 10.0) == Status.PASSED
    assert thresholds.status_of(9.99, 10.0, 12.0) == Status.FAILED
    assert thresholds.status_of(10.0, 10.0, 12.0) == Status.WARNED
    assert thresholds.status_of(12.0, 10.0, 12.0) == Status.PASSED


@pytest.mark.parametrize("metric", ["copy_gb_s", "read_gb_s", "write_gb_s"])
@pytest.mark.parametrize(
    ("name", "peak", "fail", "warn"),
    [("NVIDIA H200", 4800, 0.72, 0.80), ("NVIDIA L4", 300, 0.65, 0.72)],
)
def test_memory_against_the_datasheet(metric: str, name: str, peak: float, fail: float, warn: float) -> None:
    facts = Facts("GPU-1", name=name)
    low = judge(metric, peak * fail - 0.1, facts)
    assert (low.status, low.against, low.unit) == (Status.FAILED, "datasheet", "GB/s")
    assert low.fail_below == pytest.approx(peak * fail)
    assert low.warn_below == pytest.approx(peak * warn)
    assert judge(metric, peak * warn - 0.1, facts).status == Status.WARNED
    assert judge(metric, peak * warn + 0.1, facts).status == Status.PASSED


@pytest.mark.parametrize(
    ("name", "metric", "peak", "fail", "warn"),
    [
        ("NVIDIA H200", "gemm_bf16_tflops", 989, 0.60, 0.65),
        ("NVIDIA H200", "gemm_fp8_tflops", 1979, 0.60, 0.65),
        ("NVIDIA H200", "gemm_bf16_burst_tflops", 989, 0.60, 0.70),
        ("NVIDIA H200", "gemm_fp32_tflops", 67, 0.50, 0.60),
        ("NVIDIA H200", "gemm_fp32_burst_tflops", 67, 0.50, 0.60),
        ("NVIDIA H200", "gemm_fp64_tflops", 67, 0.50, 0.60),
        ("Tesla T4", "gemm_fp16_tflops", 65, 0.30, 0.34),
        ("NVIDIA L4", "gemm_bf16_tflops", 121, 0.30, 0.34),
        ("NVIDIA L40", "gemm_fp8_tflops", 362, 0.40, 0.50),
        ("NVIDIA H100 PCIe", "gemm_bf16_tflops", 756, 0.40, 0.50),
        ("NVIDIA H100 PCIe", "gemm_bf16_burst_tflops", 756, 0.40, 0.50),
    ],
)
def test_products_against_the_datasheet(
    name: str, metric: str, peak: float, fail: float, warn: float
) -> None:
    facts = Facts("GPU-1", name=name)
    low = judge(metric, peak * fail - 0.01, facts)
    assert (low.status, low.unit) == (Status.FAILED, "TFLOP/s")
    assert judge(metric, peak * fail + 0.01, facts).status == Status.WARNED
    assert judge(metric, peak * warn - 0.01, facts).status == Status.WARNED
    assert judge(metric, peak * warn + 0.01, facts).status == Status.PASSED


@pytest.mark.parametrize(
    ("name", "metric", "value", "status"),
    [
        pytest.param("NVIDIA H100 80GB HBM3", "gemm_bf16_tflops", 699.0, Status.PASSED, id="a good H100"),
        pytest.param("Tesla T4", "gemm_fp16_tflops", 24.0, Status.PASSED, id="a good T4"),
        # Another tool had 2333 MB/s as the floor of an H200.
        pytest.param("NVIDIA H200", "copy_gb_s", 2.4, Status.FAILED, id="a thousandth of an H200"),
    ],
)
def test_figures_that_were_measured(name: str, metric: str, value: float, status: Status) -> None:
    assert judge(metric, value, Facts("GPU-1", name=name)).status == status


def test_a_type_the_model_lacks_has_no_floor() -> None:
    found = judge("gemm_bf16_tflops", 30.0, Facts("GPU-1", name="Tesla T4"))
    assert (found.status, found.advisory, found.against) == (Status.MEASURED, False, "none")


def test_an_instance_has_its_share_of_the_floor() -> None:
    mig = Facts("MIG-1", name="NVIDIA H200", mig=True, sms=16, memory_slices=1)
    assert judge("copy_gb_s", 1.0, mig).fail_below == pytest.approx(4800 / 8 * 0.72)
    assert judge("gemm_bf16_tflops", 1.0, mig).fail_below == pytest.approx(989 * 16 / 132 * 0.60, abs=0.001)
    a30 = Facts("MIG-1", name="NVIDIA A30", mig=True, sms=14, memory_slices=1)
    assert judge("copy_gb_s", 1.0, a30).fail_below == pytest.approx(933 / 4 * 0.72)
    blind = Facts("MIG-1", name="NVIDIA H200", mig=True)
    assert judge("copy_gb_s", 1.0, blind).status == Status.MEASURED
    assert judge("gemm_bf16_tflops", 1.0, blind).status == Status.MEASURED


def test_a_baseline_comes_before_the_datasheet() -> None:
    found = judge("copy_gb_s", 4300 * 0.85 - 1, H200, baseline={"copy_gb_s": 4300.0})
    assert (found.status, found.against) == (Status.FAILED, "baseline")
    assert found.fail_below == pytest.approx(4300 * 0.85)
    assert judge("copy_gb_s", 4300 * 0.92 - 1, H200, baseline={"copy_gb_s": 4300.0}).status == Status.WARNED
    assert judge("copy_gb_s", 4300 * 0.92 + 1, H200, baseline={"copy_gb_s": 4300.0}).status == Status.PASSED
    assert judge("copy_gb_s", 4000, H200, baseline={"read_gb_s": 4300.0}).against == "datasheet"


@pytest.mark.parametrize("value", [4.3, 5500.0, 0.0])
def test_a_baseline_of_a_sick_device_is_refused(value: float) -> None:
    found = judge("copy_gb_s", 1000.0, H200, baseline={"copy_gb_s": value})
    assert (found.status, found.against) == (Status.FAILED, "datasheet")
    assert "Ignored" in found.text
    assert found.text == found.text.strip()


def test_an_unknown_model_needs_a_baseline() -> None:
    new = Facts("GPU-1", name="NVIDIA X900")
    found = judge("copy_gb_s", 5000.0, new)
    assert (found.status, found.advisory, found.against) == (Status.MEASURED, False, "none")
    assert "NVIDIA X900" in found.text
    assert found.fail_below is None
    assert judge("copy_gb_s", 5000.0, new, baseline={"copy_gb_s": 0.0}).status == Status.MEASURED
    assert judge("copy_gb_s", 5000.0, new, baseline={"copy_gb_s": 5000.0}).status == Status.PASSED
    assert judge("copy_gb_s", 4000.0, new, baseline={"copy_gb_s": 5000.0}).status == Status.FAILED


def test_below_the_nodes_median_fails() -> None:
    median = {"copy_gb_s": 4500.0}
    slow = judge("copy_gb_s", 4500 * 0.85 - 1, Facts("GPU-1", name="NVIDIA X900"), node_median=median)
    assert (slow.status, slow.against) == (Status.FAILED, "node_median")
    assert slow.fail_below == slow.warn_below == pytest.approx(4500 * 0.85)
    assert (
        judge("copy_gb_s", 4500 * 0.85, Facts("GPU-1", name="NVIDIA X900"), node_median=median).status
        == Status.PASSED
    )
    # Good enough for the datasheet (3456), warned (3840), but slower than its neighbours.
    among = judge("copy_gb_s", 3700.0, H200, node_median=median)
    assert (among.status, among.against) == (Status.FAILED, "node_median")
    assert judge("copy_gb_s", 4000.0, H200, node_median=median).against == "datasheet"
    assert judge("copy_gb_s", 4500 * 0.85, H200, node_median=median).against == "datasheet"
    # One that fails already is told against its own floor.
    assert judge("copy_gb_s", 100.0, H200, node_median=median).against == "datasheet"
    # No median of nothing.
    assert judge("copy_gb_s", 3700.0, H200, node_median={"copy_gb_s": 0.0}).status == Status.WARNED
    assert judge("copy_gb_s", 0.5, Facts("GPU-1"), node_median={"copy_gb_s": 0.9}).status == Status.FAILED


def test_floors_are_told_to_the_third_decimal() -> None:
    told = judge("copy_gb_s", 4000.0, H200, baseline={"copy_gb_s": 4333.3333})
    assert (told.fail_below, told.warn_below) == (3683.333, 3986.667)
    slow = judge("copy_gb_s", 0.1, Facts("GPU-1", name="X"), baseline={"copy_gb_s": 0.5})
    assert (slow.status, slow.against) == (Status.FAILED, "baseline")


def test_own_kernels_have_no_datasheet() -> None:
    found = judge("gemm_bf16_own_tflops", 5.0, H200)
    assert (found.status, found.advisory) == (Status.MEASURED, True)
    assert "own kernel" in found.text
    known = {"gemm_bf16_own_tflops": 100.0}
    assert judge("gemm_bf16_own_tflops", 84.0, H200, baseline=known).status == Status.FAILED
    assert judge("gemm_bf16_own_tflops", 84.0, H200, baseline={"gemm_bf16_tflops": 700.0}).advisory


def test_a_vgpu_is_only_measured() -> None:
    vgpu = Facts("GPU-1", name="NVIDIA H200", vgpu=True, pcie_max_gen=5, pcie_max_width=16)
    assert (judge("copy_gb_s", 1.0, vgpu).status, judge("copy_gb_s", 1.0, vgpu).advisory) == (
        Status.MEASURED,
        True,
    )
    assert judge_pcie("to_host_gb_s", 1.0, vgpu).advisory


@pytest.mark.parametrize(
    ("generation", "width", "fail"),
    [
        (1, 16, 2.4),
        (2, 16, 4.8),
        (3, 16, 10),
        (4, 16, 21),
        (5, 16, 48),
        (6, 16, 73),
        (5, 8, 24),
        (4, 1, 1.3125),
    ],
)
def test_pcie_by_generation_and_width(generation: int, width: int, fail: float) -> None:
    facts = Facts("GPU-1", pcie_max_gen=generation, pcie_max_width=width)
    low = judge_pcie("to_host_gb_s", fail - 0.001, facts)
    assert (low.status, low.against, low.unit) == (Status.FAILED, "link", "GB/s")
    assert low.fail_below == low.warn_below == pytest.approx(fail, abs=0.001)
    assert judge_pcie("to_host_gb_s", fail, facts).status == Status.PASSED


@pytest.mark.parametrize(
    "facts",
    [
        Facts("GPU-1", pcie_max_width=16),
        Facts("GPU-1", pcie_max_gen=5),
        Facts("GPU-1", pcie_max_gen=5, pcie_max_width=0),
        Facts("GPU-1", pcie_max_gen=7, pcie_max_width=16),
    ],
)
def test_an_unknown_link_is_not_judged(facts: Facts) -> None:
    found = judge_pcie("to_host_gb_s", 1.0, facts)
    assert (found.status, found.advisory) == (Status.MEASURED, False)


def test_an_instance_shares_its_link() -> None:
    assert judge_pcie(
        "to_host_gb_s", 1.0, Facts("MIG-1", mig=True, pcie_max_gen=5, pcie_max_width=16)
    ).advisory


HOPPER = Facts("GPU-1", compute_capability=(9, 0))


def test_peers_by_their_links() -> None:
    assert judge_peer("peer", 18 * 25 * 0.75 - 0.1, 18, HOPPER).status == Status.FAILED
    assert judge_peer("peer", 18 * 25 * 0.75, 18, HOPPER).status == Status.WARNED
    assert judge_peer("peer", 18 * 25 * 0.80 - 0.1, 18, HOPPER).status == Status.WARNED
    good = judge_peer("peer", 18 * 25 * 0.80, 18, HOPPER)
    assert (good.status, good.against) == (Status.PASSED, "link")
    assert judge_peer(
        "peer", 18 * 25 * 0.80, 18, Facts("GPU-1", compute_capability=(10, 0))
    ).fail_below == pytest.approx(18 * 50 * 0.75)
    assert judge_peer("peer", 18.0, 1, Facts("GPU-1")).fail_below == pytest.approx(25 * 0.75)
    assert judge_peer("peer", 1.0, 0, HOPPER).advisory
    hidden = Facts("GPU-1", confidential=True, compute_capability=(9, 0))
    assert judge_peer("peer", 1.0, 18, hidden).advisory


def test_encrypted_transfers_are_only_measured() -> None:
    facts = Facts("GPU-1", pcie_max_gen=5, pcie_max_width=16, confidential=True)
    found = judge_pcie("to_host_gb_s", 4.0, facts)
    assert (found.status, found.advisory) == (Status.MEASURED, True)
    assert found.text == "Not judged: confidential computing encrypts the link."


def test_a_vm_that_hides_its_numa_nodes_has_no_pcie_floor() -> None:
    facts = Facts("GPU-1", pcie_max_gen=5, pcie_max_width=16, numa_hidden=True)
    low = judge_pcie("to_host_gb_s", 40.0, facts)
    assert (low.status, low.fail_below, low.warn_below) == (Status.WARNED, None, 48.0)
    pcie = Test("pcie", "pcie", 1.0)
    status, text = status_of(pcie, done(to_device_gb_s=50, to_host_gb_s=40), facts)
    assert status == Status.WARNED
    assert text == (
        "to_host_gb_s 40 GB/s is below the link limit of 48. "
        "This virtual machine hides its NUMA nodes, so the memory may be far from the GPU."
    )
    assert judge_pcie("to_host_gb_s", 48.0, facts).status == Status.PASSED


@pytest.mark.parametrize(
    ("facts", "seen", "text"),
    [
        pytest.param(H200, [], "", id="not seen"),
        pytest.param(H200, [(1, 16), (5, 16)], "", id="whole under load"),
        pytest.param(H200, [(4, 16), (3, 16)], "generation 4 of 5", id="an older generation"),
        pytest.param(H200, [(5, 8)], "width 8 of 16", id="half of its width"),
        pytest.param(H200, [(4, 8)], "generation 4 of 5 and width 8 of 16", id="both"),
        pytest.param(H200, [(None, None)], "", id="not told"),
        pytest.param(Facts("GPU-1"), [(1, 1)], "", id="an unknown device"),
    ],
)
def test_the_link_is_judged_under_load_alone(
    facts: Facts, seen: list[tuple[int | None, int | None]], text: str
) -> None:
    assert thresholds.judge_link_state(facts, seen) == text


# --- health ---

CLEAN: dict[str, Any] = {
    "ecc_uncorrected": 0, "ecc_uncorrected_aggregate": 3, "ecc_corrected": 10, "remapped_uncorrected": 1,
    "remap_failure": False, "remap_pending": False, "retired_pending": None, "sram_threshold_exceeded": False,
    "recovery_action": "none", "pcie_replays": 5, "nvlinks": [{"link": 0, "active": True, "errors": 4}],
}  # fmt: skip


def found(findings: list[Finding]) -> list[tuple[str, Severity, Action]]:
    return [(f.code, f.severity, f.action) for f in findings]


def test_a_clean_device_has_no_finding() -> None:
    assert health.state(CLEAN) == []
    assert health.changes(CLEAN, CLEAN) == []
    assert health.state({}) == []
    assert health.changes({}, {}) == []


@pytest.mark.parametrize(
    ("name", "value", "code", "action"),
    [
        ("remap_failure", True, "remap_failure", Action.REPLACE),
        ("remap_pending", True, "remap_pending", Action.DRAIN_AND_RESET),
        ("retired_pending", True, "retired_pending", Action.DRAIN_AND_RESET),
        ("sram_threshold_exceeded", True, "sram_threshold", Action.REPLACE),
        ("recovery_action", "gpu_reset", "recovery_action", Action.RESET),
        ("recovery_action", "bus_reset", "recovery_action", Action.RESET),
        ("recovery_action", "drain_p2p", "recovery_action", Action.DRAIN_AND_RESET),
        ("recovery_action", "drain_and_reset", "recovery_action", Action.DRAIN_AND_RESET),
        ("recovery_action", "node_reboot", "recovery_action", Action.REBOOT),
        ("recovery_action", "system_reboot", "recovery_action", Action.REBOOT),
        ("recovery_action", "action_99", "recovery_action", Action.INSPECT),
    ],
)
def test_a_state_that_fails(name: str, value: Any, code: str, action: Action) -> None:
    assert found(health.state({**CLEAN, name: value})) == [(code, Severity.FAIL, action)]


@pytest.mark.parametrize(
    ("name", "by", "severity", "action"),
    [
        ("ecc_uncorrected", 1, Severity.FAIL, Action.DRAIN_AND_RESET),
        ("ecc_uncorrected_aggregate", 1, Severity.FAIL, Action.DRAIN_AND_RESET),
        ("remapped_uncorrected", 1, Severity.FAIL, Action.DRAIN_AND_RESET),
        ("ecc_corrected", 65, Severity.DEGRADED, Action.INSPECT),
        ("pcie_replays", 9, Severity.DEGRADED, Action.INSPECT),
    ],
)
def test_a_counter_that_grows(name: str, by: int, severity: Severity, action: Action) -> None:
    after = {**CLEAN, name: CLEAN[name] + by}
    assert [(f.severity, f.action) for f in health.changes(CLEAN, after)] == [(severity, action)]
    assert str(by) in health.changes(CLEAN, after)[0].text
    # What is not offered is not growth, and a counter that began anew counts from nothing.
    assert health.changes({**CLEAN, name: None}, after) == []
    assert health.changes(after, {**CLEAN, name: None}) == []
    assert health.changes({**CLEAN, name: 1000}, {**CLEAN, name: by})[0].severity == severity


@pytest.mark.parametrize(("name", "by"), [("ecc_corrected", 64), ("pcie_replays", 8)])
def test_a_little_growth_is_nothing(name: str, by: int) -> None:
    assert health.changes(CLEAN, {**CLEAN, name: CLEAN[name] + by}) == []


def test_links() -> None:
    def links(active: bool, errors: int | None, number: int = 0) -> dict[str, Any]:
        return {**CLEAN, "nvlinks": [{"link": number, "active": active, "errors": errors}]}

    assert found(health.changes(CLEAN, links(False, 4))) == [("nvlink_down", Severity.FAIL, Action.RESET)]
    assert found(health.changes(CLEAN, links(True, 5))) == [
        ("nvlink_errors", Severity.DEGRADED, Action.INSPECT)
    ]
    assert health.changes(links(False, 4), links(False, 4)) == []
    assert health.changes(links(False, 4), links(True, 4)) == []
    assert health.changes(CLEAN, links(False, 9, number=1)) == []
    assert health.changes(CLEAN, {**CLEAN, "nvlinks": None}) == []


@pytest.mark.parametrize(
    ("xid", "severity", "action"),
    [
        pytest.param(79, Severity.FAIL, Action.REBOOT, id="of the device"),
        pytest.param(94, Severity.INCONCLUSIVE, Action.RETRY, id="contained"),
        pytest.param(31, Severity.INFO, Action.NONE, id="of an application"),
        pytest.param(5, Severity.DEGRADED, Action.INSPECT, id="unknown"),
    ],
)
def test_each_kind_of_xid_is_one_finding(xid: int, severity: Severity, action: Action) -> None:
    assert found(health.xids([xid, xid])) == [(f"xid_{xid}", severity, action)]


CATALOG = {
    **dict.fromkeys((46, 62, 74, 109, 110, 119, 120, 143, 155, 156, 158), (Severity.FAIL, Action.RESET)),
    **dict.fromkeys((48, 95, 140, 171, 172), (Severity.FAIL, Action.DRAIN_AND_RESET)),
    **dict.fromkeys((54, 61, 123), (Severity.FAIL, Action.INSPECT)),
    **dict.fromkeys((79, 136), (Severity.FAIL, Action.REBOOT)),
    64: (Severity.FAIL, Action.REPLACE),
    94: (Severity.INCONCLUSIVE, Action.RETRY),
    **dict.fromkeys((13, 31, 43, 45, 68), (Severity.INFO, Action.NONE)),
}


@pytest.mark.parametrize("xid", range(1, 180))
def test_every_xid_by_the_catalog(xid: int) -> None:
    severity, action = CATALOG.get(xid, (Severity.DEGRADED, Action.INSPECT))
    assert found(health.xids([xid])) == [(f"xid_{xid}", severity, action)]
    named = xid in CATALOG or xid == 121 or 144 <= xid <= 150
    assert ("unknown to this check" in health.xids([xid])[0].text) is not named


def samples(bits: int, of: int = 10, total: int = 100) -> list[dict[str, Any]]:
    return [{"throttle": bits if i < of else 1} for i in range(total)] + [{"throttle": None}] * total


@pytest.mark.parametrize(
    ("bit", "code"), [(0x20, "thermal_throttling"), (0x40, "thermal_throttling"), (0x80, "power_brake")]
)
def test_throttling_fails_above_a_tenth(bit: int, code: str) -> None:
    assert found(health.throttling(samples(bit, of=10))) == [(code, Severity.INFO, Action.NONE)]
    assert found(health.throttling(samples(bit, of=11))) == [(code, Severity.FAIL, Action.INSPECT)]
    assert found(health.throttling(samples(bit, of=101, total=1000)))[0][1] == Severity.FAIL
    assert health.throttling(samples(bit, of=0)) == []


def test_throttling_that_is_no_fault() -> None:
    assert found(health.throttling(samples(0x04, of=100))) == [("power_cap", Severity.INFO, Action.NONE)]
    for other in (0x01, 0x02, 0x08, 0x10, 0x100):
        assert health.throttling(samples(other, of=100)) == []
    assert health.throttling([]) == []
    assert health.throttling([{}]) == []


def test_strangers() -> None:
    assert health.foreign_processes(None) == []
    assert health.foreign_processes([]) == []
    assert found(health.foreign_processes([{"pid": 7}])) == [("busy", Severity.INCONCLUSIVE, Action.RETRY)]
    assert health.foreign_processes([{"pid": 7}], own=7) == []
    # In a container the check's own process has another number.
    assert health.foreign_processes([{"pid": 123}], own=7) == []
    (one,) = health.foreign_processes([{"pid": 7}, {"pid": 9}], own=7)
    assert one.text.endswith(": 9.")
    (many,) = health.foreign_processes([{"pid": n} for n in range(20)])
    assert many.text.endswith(": 0, 1, 2, 3, 4, 5, 6, 7.")


# --- plan ---


@pytest.mark.parametrize(
    ("capability", "names"),
    [
        ((7, 0), ["fp32", "fp64"]),
        ((7, 5), ["fp32", "fp64", "fp16", "int8"]),
        ((8, 0), ["fp32", "fp64", "fp16", "bf16", "tf32", "int8"]),
        ((8, 6), ["fp32", "fp64", "fp16", "bf16", "tf32", "int8"]),
        ((8, 9), ["fp32", "fp64", "fp16", "bf16", "tf32", "fp8", "int8"]),
        ((9, 0), ["fp32", "fp64", "fp16", "bf16", "tf32", "fp8", "int8"]),
        ((10, 3), ["fp32", "fp64", "fp16", "bf16", "tf32", "fp8", "int8"]),
        ((12, 0), ["fp32", "fp64", "fp16", "bf16", "tf32", "fp8", "int8", "fp4"]),
        ((12, 1), ["fp32", "fp64", "fp16", "bf16", "tf32", "fp8", "int8", "fp4"]),
        ((6, 1), []),
    ],
)
def test_types_by_capability(capability: tuple[int, int], names: list[str]) -> None:
    assert list(dtypes(capability)) == names
    assert list(supported(capability)) == names
    assert list(dtypes(None)) == list(DTYPES)
    assert dict(SINCE) == {dtype.name: dtype.since for dtype in DTYPES.values()}


def steps(
    level: Level, facts: Facts = H200, peers: tuple[str, ...] = ()
) -> list[tuple[str, str, float, dict[str, Any]]]:
    plan = plan_for(level, facts, peers)
    assert all(test.required for test in plan)
    return [(t.name, t.probe, t.deadline_s, dict(t.params)) for t in plan]


TYPES = ("fp32", "fp64", "fp16", "bf16", "tf32", "fp8", "int8")
FIRST: list[Any] = [
    ("canary", "canary", 15.0, {}),
    ("residue", "residue", 30.0, {}),
    ("address", "address", 30.0, {}),
    *((f"exact_{t}", "exact", 15.0, {"dtype": t}) for t in TYPES),
]


def burn(name: str) -> Any:
    return (f"burn_{name}", "burn", 45.0, {"dtype": name, "seconds": 10.0})


def units(turns: int) -> list[Any]:
    return [
        ("functions", "functions", 60.0, {"turns": 8 if turns > 32 else 1}),
        ("atomics", "atomics", 60.0, {}),
        ("shared_memory", "shared_memory", 60.0, {"turns": turns}),
        ("caches", "caches", 60.0, {"turns": turns}),
    ]


def test_the_quick_level() -> None:
    assert steps(Level.QUICK) == [*FIRST, ("copy", "copy", 15.0, {}), ("pcie", "pcie", 15.0, {})]
    assert steps(Level.QUICK, peers=("GPU-2",)) == steps(Level.QUICK)


def test_the_standard_level() -> None:
    standard = [
        *FIRST,
        ("inversions", "inversions", 120.0, {"full": False}),
        ("bandwidth", "memory", 30.0, {}),
        ("pcie", "pcie", 30.0, {"seconds": 1.0, "both_ways": True}),
        burn("bf16"),
        burn("fp32"),
        *units(32),
    ]
    assert steps(Level.STANDARD) == standard
    assert steps(Level.STANDARD, peers=("GPU-2",)) == [
        *standard,
        ("peers", "peers", 60.0, {}),
        ("all_reduce", "all_reduce", 90.0, {}),
    ]
    mig = Facts("MIG-1", mig=True, compute_capability=(9, 0))
    assert steps(Level.STANDARD, mig, ("GPU-2",)) == standard
    old = [name for name, *_ in steps(Level.STANDARD, Facts("GPU-1", compute_capability=(7, 5)))]
    assert old[-6:-4] == ["burn_fp16", "burn_fp32"]


def test_the_extended_level() -> None:
    assert steps(Level.EXTENDED, peers=("GPU-2",)) == [
        *FIRST,
        ("inversions", "inversions", 240.0, {"full": True}),
        ("bandwidth", "memory", 30.0, {}),
        ("pcie", "pcie", 30.0, {"seconds": 1.0, "both_ways": True}),
        *map(burn, TYPES),
        *units(512),
        ("peers", "peers", 60.0, {}),
        ("modulo20", "modulo20", 180.0, {}),
        ("bit_fade", "bit_fade", 240.0, {"seconds": 60.0}),
        ("steady", "burn", 240.0, {"dtype": "bf16", "seconds": 120.0}),
        ("power_steps", "power_steps", 90.0, {"cycles": 10, "seconds": 1.0}),
        ("joint_burn", "joint_burn", 105.0, {"dtype": "bf16", "seconds": 30.0}),
        ("all_reduce", "all_reduce", 90.0, {}),
    ]


def test_deadlines() -> None:
    for level in Level:
        for test in plan_for(level, H200, ("GPU-2",)):
            assert test.deadline_s < DEADLINE_S[level]


# --- values that are not given ---


def test_what_no_message_gives_is_zero() -> None:
    assert Progress("start") == Progress("start", "", 0, 0, 0, "")
    assert Raw("x", "done").duration_ms == 0
    assert TestResult("x", Status.PASSED, True, "").duration_ms == 0
    assert (EXIT_UNAVAILABLE, EXIT_USAGE) == (4, 64)
    assert START_S == 60.0


def test_the_floor_of_a_link_with_hidden_nodes_has_three_decimals() -> None:
    hidden = Facts("GPU-1", pcie_max_gen=4, pcie_max_width=1, numa_hidden=True)
    assert judge_pcie("to_host_gb_s", 1.0, hidden).warn_below == 1.312


# --- assessment ---


def test_integer_products_are_judged_as_those_of_an_own_kernel() -> None:
    metric = "gemm_int8_own_tops"
    burn = Test("burn_int8", "burn", 45.0)
    found = assess(burn, done(**{metric: 400.0}), H200)
    (judged,) = found.judgements
    assert (found.status, judged.unit, judged.advisory) == (Status.PASSED, "TOP/s", True)
    assert status_of(burn, done(**{metric: 400.0}), baseline={metric: 500.0})[0] == Status.FAILED
    assert status_of(burn, done(**{metric: 430.0}), baseline={metric: 500.0})[0] == Status.WARNED
    assert status_of(burn, done(cpu_worst=0.1)) == (Status.SKIPPED, "The test did not measure TFLOP/s")


UNITS = [
    ("functions", "functions_gop_s", "Gop/s"),
    ("atomics", "atomics_gop_s", "Gop/s"),
    ("shared_memory", "shared_gb_s", "GB/s"),
    ("caches", "l2_gb_s", "GB/s"),
]


@pytest.mark.parametrize(("probe", "metric", "unit"), UNITS)
def test_a_slow_unit_is_a_warning_and_a_wrong_word_of_it_fails(probe: str, metric: str, unit: str) -> None:
    test = Test(probe, probe, 60.0)
    found = assess(test, done(**{metric: 100.0}), H200)
    (judged,) = found.judgements
    assert (found.status, judged.unit, judged.advisory) == (Status.PASSED, unit, True)
    assert judged.text == "Not judged: no other passed checks to compare with."
    assert not thresholds.lacks_datasheet(metric, "NVIDIA GH200 480GB")
    for value, status in ((92.0, Status.PASSED), (91.9, Status.WARNED), (1.0, Status.WARNED)):
        assert status_of(test, done(**{metric: value}), baseline={metric: 100.0})[0] == status
    low = assess(test, done(**{metric: 84.9}), H200, node_median={metric: 100.0})
    assert (low.status, low.judgements[0].status) == (Status.WARNED, Status.FAILED)
    assert low.text == f"{metric} 84.9 {unit} is below the node median limit of 85"
    assert status_of(test, Raw("x", "done", 2, {metric: 100.0})) == (Status.FAILED, "2 wrong words")
    assert status_of(test, Raw("x", "done", None, {metric: 1.0})) == (
        Status.SKIPPED,
        "The test compared no data",
    )
    assert status_of(test, done()) == (Status.SKIPPED, f"The test did not measure {metric}")


COPY = Test("copy", "copy", 15.0)


def done(**measures: float) -> Raw:
    return Raw("x", "done", errors=0, measures=measures)


def status_of(test: Test, raw: Raw | None, facts: Facts = H200, **more: Any) -> tuple[Status, str]:
    result = assess(test, raw, facts, **more)
    return result.status, result.text


def test_a_test_that_was_not_reached_is_skipped() -> None:
    assert status_of(COPY, None) == (Status.SKIPPED, "Not reached")


@pytest.mark.parametrize(
    ("raw", "status"),
    [
        (Raw("x", "skipped", reason="no room"), Status.SKIPPED),
        (Raw("x", "hung", reason="The test did not end within 15 s"), Status.HUNG),
        (Raw("x", "error", error="CUDA_ERROR_OUT_OF_MEMORY"), Status.SKIPPED),
        (Raw("x", "error", error="CUDA_ERROR_ECC", device_fault=True), Status.FAILED),
        (Raw("x", "dreaming"), Status.SKIPPED),
        (Raw("x", "done", errors=None, measures={"copy_gb_s": 4300.0}), Status.SKIPPED),
        (Raw("x", "done", errors=1, measures={"copy_gb_s": 4300.0}), Status.FAILED),
        (Raw("x", "done", errors=0), Status.SKIPPED),
        (Raw("x", "done", errors=0, measures={"copy_gb_s": 4300.0}), Status.PASSED),
        (Raw("x", "done", errors=0, measures={"copy_gb_s": 3600.0}), Status.WARNED),
        (Raw("x", "done", errors=0, measures={"copy_gb_s": 3000.0}), Status.FAILED),
    ],
)
def test_how_a_test_ended(raw: Raw, status: Status) -> None:
    assert assess(COPY, raw, H200).status == status


@pytest.mark.parametrize("probe", ["canary", "exact", "power_steps"])
def test_a_test_without_a_comparison_is_no_pass(probe: str) -> None:
    assert status_of(Test("x", probe, 1.0), Raw("x", "done"))[0] == Status.SKIPPED
    assert status_of(Test("x", probe, 1.0), Raw("x", "done", errors=0))[0] == Status.PASSED


def test_a_missed_canary_is_named() -> None:
    raw = Raw("x", "done", errors=1, detail={"missed": ["check_mix"]})
    status, text = status_of(Test("canary", "canary", 1.0), raw)
    assert status == Status.FAILED
    assert "check_mix" in text


@pytest.mark.parametrize("probe", ["residue", "address", "inversions", "modulo20", "bit_fade"])
def test_untested_memory_is_no_pass(probe: str) -> None:
    test = Test(probe, probe, 1.0)
    assert status_of(test, done(coverage=0.98))[0] == Status.PASSED
    assert status_of(test, done(coverage=0.979))[0] == Status.SKIPPED
    assert status_of(test, done())[0] == Status.SKIPPED


def test_memory_that_is_missing_is_a_leak() -> None:
    test = Test("residue", "residue", 1.0)
    known = {"baseline": {"free_mib:ecc": 140_000.0}, "memory": MemoryState("free_mib:ecc")}
    assert status_of(test, done(coverage=1.0, free_mib=139_936.0), **known)[0] == Status.PASSED
    status, text = status_of(test, done(coverage=1.0, free_mib=139_935.0), **known)
    assert (status, "65 MiB" in text) == (Status.FAILED, True)
    assert status_of(test, done(coverage=1.0, free_mib=150_000.0), **known)[0] == Status.PASSED
    assert status_of(test, done(coverage=1.0), **known)[0] == Status.FAILED
    address = Test("address", "address", 1.0)
    assert status_of(address, done(coverage=1.0, free_mib=1.0), **known)[0] == Status.PASSED
    # Another ECC mode or a display uses another amount.
    for state in (MemoryState("free_mib:no_ecc"), MemoryState("free_mib:ecc:display", True), None):
        assert status_of(test, done(coverage=1.0), **known | {"memory": state})[0] == Status.PASSED


@pytest.mark.parametrize(
    ("holders", "text"),
    [
        ("process 812 (300 MiB)", "Graphics programs: process 812 (300 MiB)"),
        ("", "A display is active"),
    ],
)
def test_memory_that_a_display_holds_is_a_warning(holders: str, text: str) -> None:
    test = Test("residue", "residue", 1.0)
    memory = MemoryState("free_mib:ecc:display", True, holders)
    known = {"baseline": {"free_mib:ecc:display": 140_000.0}, "memory": memory}
    assert status_of(test, done(coverage=1.0, free_mib=139_936.0), **known)[0] == Status.PASSED
    assert status_of(test, done(coverage=1.0, free_mib=139_700.0), **known) == (
        Status.WARNED,
        f"300 MiB less free memory than in the last check. {text}",
    )


def test_bandwidths_must_be_there_all_three() -> None:
    test = Test("bandwidth", "memory", 1.0)
    assert status_of(test, done(copy_gb_s=4300, read_gb_s=4300, write_gb_s=4300))[0] == Status.PASSED
    assert status_of(test, done(copy_gb_s=4300, read_gb_s=4300))[0] == Status.SKIPPED
    assert status_of(test, done(copy_gb_s=4300, read_gb_s=4300, write_gb_s=3000))[0] == Status.FAILED


def test_a_burn_needs_a_speed() -> None:
    test = Test("burn_bf16", "burn", 1.0)
    assert status_of(test, done())[0] == Status.SKIPPED
    assert status_of(test, done(gemm_bf16_tflops=780.0))[0] == Status.PASSED
    assert status_of(test, done(gemm_bf16_tflops=500.0))[0] == Status.FAILED
    assert status_of(test, done(gemm_bf16_own_tflops=100.0))[0] == Status.PASSED


def test_figures_without_a_floor_are_not_judged() -> None:
    raw = done(to_device_gb_s=54.0, to_host_gb_s=54.0, buffer_mib=256.0)
    judged = assess(Test("pcie", "pcie", 1.0), raw, H200).judgements
    assert [j.metric for j in judged] == ["to_device_gb_s", "to_host_gb_s"]
    assert (
        assess(Test("copy", "copy", 1.0), done(copy_gb_s=4300.0, to_host_gb_s=1.0), H200).judgements[1:] == ()
    )
    assert status_of(COPY, done(copy_gb_s=4300.0))[1] == "copy_gb_s 4300 GB/s"
    assert status_of(Test("canary", "canary", 1.0), done())[1] == "No error"


def test_the_link_under_load_degrades() -> None:
    test = Test("pcie", "pcie", 1.0)
    good = done(to_device_gb_s=54.0, to_host_gb_s=54.0)
    assert status_of(test, good)[0] == Status.PASSED
    assert status_of(test, good, link_state="width 8 of 16")[0] == Status.WARNED
    assert (
        status_of(test, done(to_device_gb_s=54.0, to_host_gb_s=20.0), link_state="width 8 of 16")[0]
        == Status.FAILED
    )
    assert status_of(test, done(to_device_gb_s=54.0))[0] == Status.SKIPPED
    assert status_of(COPY, done(copy_gb_s=4300.0), link_state="width 8 of 16")[0] == Status.PASSED


def test_an_unjudged_figure_is_a_warning() -> None:
    new = Facts("GPU-1", name="NVIDIA X900")
    result = assess(COPY, done(copy_gb_s=4300.0), new)
    assert (result.status, result.unjudged) == (Status.WARNED, True)
    assert status_of(COPY, replace(done(copy_gb_s=4300.0), errors=1), new)[0] == Status.FAILED
    assert not assess(COPY, done(copy_gb_s=3700.0), H200).unjudged
    memory = Test("bandwidth", "memory", 1.0)
    figures = done(copy_gb_s=4300.0, read_gb_s=4300.0, write_gb_s=4300.0)
    slow = assess(memory, figures, new, baseline={"read_gb_s": 9000.0})
    assert (slow.status, slow.unjudged) == (Status.FAILED, False)
    slower = assess(memory, figures, new, baseline={"read_gb_s": 4800.0})
    assert (slower.status, slower.unjudged) == (Status.WARNED, False)
    assert (
        status_of(COPY, done(copy_gb_s=4300.0), Facts("GPU-1", name="NVIDIA H200", vgpu=True))[0]
        == Status.PASSED
    )


def test_peers_are_judged_by_their_links() -> None:
    test = Test("peers", "peers", 1.0)
    linked = Facts("GPU-1", links={"GPU-2": 18}, compute_capability=(9, 0))
    assert status_of(test, Raw("x", "done", 0, {"peer_gb_s:GPU-2": 300.0}), linked)[0] == Status.FAILED
    assert status_of(test, Raw("x", "done", 0, {"peer_gb_s:GPU-2": 400.0}), linked)[0] == Status.PASSED
    assert status_of(test, Raw("x", "done", 0, {"peer_gb_s:GPU-3": 4.0}), linked)[0] == Status.PASSED


@pytest.mark.parametrize(
    "message",
    [
        {"test": "x"},
        {"state": "done"},
        {"test": "x", "state": "done", "errors": -1},
        {"test": "x", "state": "done", "errors": True},
        {"test": "x", "state": "done", "errors": "0"},
        {"test": "x", "state": "done", "measures": {"copy_gb_s": float("nan")}},
        {"test": "x", "state": "done", "measures": {"copy_gb_s": float("inf")}},
        {"test": "x", "state": "done", "measures": {"copy_gb_s": -1.0}},
        {"test": "x", "state": "done", "measures": {"copy_gb_s": 1e15}},
        {"test": "x", "state": "done", "measures": {"copy_gb_s": "fast"}},
        {"test": "x", "state": "done", "measures": [1]},
        {"test": "x", "state": "done", "detail": [1]},
    ],
)
def test_a_result_that_makes_no_sense_is_none(message: dict[str, Any]) -> None:
    assert raw_of(message) is None


def test_a_large_figure_is_taken() -> None:
    assert raw_of({"test": "x", "state": "done", "measures": {"a": 9.9e14}}) is not None


def test_a_result_that_makes_sense() -> None:
    raw = raw_of({"test": "x", "state": "done", "errors": 0, "measures": {"a": 0.0}, "device_fault": True})
    assert raw is not None
    assert (raw.test, raw.errors, raw.measures, raw.device_fault) == ("x", 0, {"a": 0.0}, True)


# --- verdict ---


def result(status: Status, *, required: bool = True, errors: int | None = None) -> TestResult:
    return TestResult("x", status, required, "text", errors=errors)


@pytest.mark.parametrize(
    ("test", "severity", "action"),
    [
        (result(Status.FAILED, errors=3), Severity.FAIL, Action.REPLACE),
        (result(Status.FAILED, errors=0), Severity.FAIL, Action.INSPECT),
        (result(Status.FAILED, required=False), Severity.FAIL, Action.INSPECT),
        (result(Status.HUNG), Severity.HUNG, Action.REBOOT),
        (result(Status.WARNED), Severity.DEGRADED, Action.INSPECT),
        (result(Status.SKIPPED), Severity.INCONCLUSIVE, Action.RETRY),
        (result(Status.MEASURED), Severity.INCONCLUSIVE, Action.RETRY),
    ],
)
def test_what_a_test_says_about_its_device(test: TestResult, severity: Severity, action: Action) -> None:
    assert found(of_tests([test])) == [("test_x", severity, action)]


def test_tests_that_say_nothing() -> None:
    assert (
        of_tests(
            [
                result(Status.PASSED),
                result(Status.SKIPPED, required=False),
                result(Status.MEASURED, required=False),
            ]
        )
        == []
    )


ORDER = [Severity.INFO, Severity.DEGRADED, Severity.INCONCLUSIVE, Severity.FAIL, Severity.HUNG]
VERDICTS = [Verdict.PASS, Verdict.DEGRADED, Verdict.INCONCLUSIVE, Verdict.FAIL, Verdict.HUNG]
ONE = [result(Status.PASSED)]


def finding(severity: Severity, action: Action = Action.NONE) -> Finding:
    return Finding("x", severity, "text", action)


def test_the_worst_finding_decides() -> None:
    for i, one in enumerate(ORDER):
        for j, other in enumerate(ORDER):
            verdict, _ = decide([finding(one), finding(other)], ONE, simulated=False)
            assert verdict == VERDICTS[max(i, j)]


def test_nothing_tested_is_no_pass() -> None:
    assert decide([], ONE, simulated=False) == (Verdict.PASS, Action.NONE)
    assert decide([], [], simulated=False)[0] == Verdict.INCONCLUSIVE
    assert decide([finding(Severity.DEGRADED)], [], simulated=False)[0] == Verdict.INCONCLUSIVE


@pytest.mark.parametrize("severity", ORDER)
def test_a_simulated_run_never_passes(severity: Severity) -> None:
    verdict, _ = decide([finding(severity)], ONE, simulated=True)
    assert verdict == {Severity.FAIL: Verdict.FAIL, Severity.HUNG: Verdict.HUNG}.get(
        severity, Verdict.INCONCLUSIVE
    )


def test_the_strongest_action_is_asked_for() -> None:
    weak, strong = finding(Severity.FAIL, Action.RETRY), finding(Severity.DEGRADED, Action.REPLACE)
    assert decide([weak, strong], ONE, simulated=False) == (Verdict.FAIL, Action.REPLACE)
    assert decide([weak, finding(Severity.INFO, Action.REPLACE)], ONE, simulated=False)[1] == Action.RETRY
    assert list(Action) == ["none", "retry", "inspect", "reset", "drain_and_reset", "reboot", "replace"]


def test_a_judgement_that_is_told() -> None:
    text = assess(COPY, done(copy_gb_s=3000.0), H200).text
    assert text == "copy_gb_s 3000 GB/s is below the datasheet limit of 3456"
    warned = assess(COPY, done(copy_gb_s=3500.0), H200).text
    assert warned == "copy_gb_s 3500 GB/s is below the datasheet limit of 3840"
    judged = assess(COPY, done(copy_gb_s=3000.0), H200).judgements
    assert all(isinstance(one, Judgement) for one in judged)
