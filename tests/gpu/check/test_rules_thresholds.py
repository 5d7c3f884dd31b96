"""Thresholds: every number and comparison, at its limit."""

from __future__ import annotations

import hashlib
import math

import pytest

from provisioning.gpu.check import thresholds
from provisioning.gpu.check.plan import DEADLINE_S, Test
from provisioning.gpu.check.thresholds import BadThreshold, Floor, judge, judge_pcie, judge_peer, peak_of
from provisioning.gpu.check.types import (
    Facts,
    Status,
)
from tests.gpu.check.judging import H200, done, status_of


def test_models_match_by_full_name() -> None:
    assert peak_of("NVIDIA A100-SXM4-40GB MIG 1g.5gb") is peak_of("NVIDIA A100-SXM4-40GB")
    for other in ("NVIDIA H100 NVL", "NVIDIA GB200", "NVIDIA RTX 6000", "", "NVIDIA"):
        assert peak_of(other) is None


@pytest.mark.parametrize("fraction", [0.3, 0.95, 0.6])
def test_lint_accepts_floors_that_can_fail_and_pass(fraction: float) -> None:
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
    # A floor in the wrong unit could never fail.
    monkeypatch.setattr(thresholds, name, Floor(0.00072, 0.8))
    with pytest.raises(BadThreshold):
        thresholds.lint_all()


@pytest.mark.parametrize("generation", [1, 2, 3, 4, 5, 6])
def test_every_pcie_floor_is_linted(generation: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(thresholds.PCIE_FAIL, generation, 0.021)
    with pytest.raises(BadThreshold):
        thresholds.lint_all()


def test_values_change_only_with_their_source() -> None:
    """A new figure needs its source in `thresholds.py`, and a new digest here."""
    figures = repr((thresholds.PEAKS, thresholds.PCIE_PEAK, tuple(DEADLINE_S.values())))
    assert hashlib.sha256(figures.encode()).hexdigest()[:16] == "5cd2b731d0485f64"


def test_value_at_the_floor_passes() -> None:
    assert thresholds.status_of(10.0, 10.0, 10.0) == Status.PASSED
    assert thresholds.status_of(9.99, 10.0, 12.0) == Status.FAILED
    assert thresholds.status_of(10.0, 10.0, 12.0) == Status.WARNED
    assert thresholds.status_of(12.0, 10.0, 12.0) == Status.PASSED


@pytest.mark.parametrize("metric", ["copy_gb_s", "read_gb_s", "write_gb_s"])
@pytest.mark.parametrize(
    ("name", "peak", "fail", "warn"),
    [("NVIDIA H200", 4800, 0.72, 0.80), ("NVIDIA L4", 300, 0.65, 0.72)],
)
def test_memory_is_compared_with_the_datasheet(
    metric: str, name: str, peak: float, fail: float, warn: float
) -> None:
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
def test_products_are_compared_with_the_datasheet(
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
def test_measured_reference_values(name: str, metric: str, value: float, status: Status) -> None:
    assert judge(metric, value, Facts("GPU-1", name=name)).status == status


def test_unsupported_data_type_has_no_floor() -> None:
    found = judge("gemm_bf16_tflops", 30.0, Facts("GPU-1", name="Tesla T4"))
    assert (found.status, found.advisory, found.against) == (Status.MEASURED, False, "none")


def test_mig_instance_has_a_proportional_floor() -> None:
    mig = Facts("MIG-1", name="NVIDIA H200", mig=True, sms=16, memory_slices=1)
    assert judge("copy_gb_s", 1.0, mig).fail_below == pytest.approx(4800 / 8 * 0.72)
    assert judge("gemm_bf16_tflops", 1.0, mig).fail_below == pytest.approx(989 * 16 / 132 * 0.60, abs=0.001)
    a30 = Facts("MIG-1", name="NVIDIA A30", mig=True, sms=14, memory_slices=1)
    assert judge("copy_gb_s", 1.0, a30).fail_below == pytest.approx(933 / 4 * 0.72)
    blind = Facts("MIG-1", name="NVIDIA H200", mig=True)
    assert judge("copy_gb_s", 1.0, blind).status == Status.MEASURED
    assert judge("gemm_bf16_tflops", 1.0, blind).status == Status.MEASURED


def test_baseline_takes_precedence_over_the_datasheet() -> None:
    found = judge("copy_gb_s", 4300 * 0.85 - 1, H200, baseline={"copy_gb_s": 4300.0})
    assert (found.status, found.against) == (Status.FAILED, "baseline")
    assert found.fail_below == pytest.approx(4300 * 0.85)
    assert judge("copy_gb_s", 4300 * 0.92 - 1, H200, baseline={"copy_gb_s": 4300.0}).status == Status.WARNED
    assert judge("copy_gb_s", 4300 * 0.92 + 1, H200, baseline={"copy_gb_s": 4300.0}).status == Status.PASSED
    assert judge("copy_gb_s", 4000, H200, baseline={"read_gb_s": 4300.0}).against == "datasheet"


@pytest.mark.parametrize("value", [4.3, 5500.0, 0.0])
def test_baseline_far_below_the_datasheet_is_refused(value: float) -> None:
    found = judge("copy_gb_s", 1000.0, H200, baseline={"copy_gb_s": value})
    assert (found.status, found.against) == (Status.FAILED, "datasheet")
    assert "Ignored" in found.text
    assert found.text == found.text.strip()


def test_unknown_model_needs_a_baseline() -> None:
    new = Facts("GPU-1", name="NVIDIA X900")
    found = judge("copy_gb_s", 5000.0, new)
    assert (found.status, found.advisory, found.against) == (Status.MEASURED, False, "none")
    assert "NVIDIA X900" in found.text
    assert found.fail_below is None
    assert judge("copy_gb_s", 5000.0, new, baseline={"copy_gb_s": 0.0}).status == Status.MEASURED
    assert judge("copy_gb_s", 5000.0, new, baseline={"copy_gb_s": 5000.0}).status == Status.PASSED
    assert judge("copy_gb_s", 4000.0, new, baseline={"copy_gb_s": 5000.0}).status == Status.FAILED


def test_value_below_the_node_median_fails() -> None:
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
    # A failing value is reported with its own floor.
    assert judge("copy_gb_s", 100.0, H200, node_median=median).against == "datasheet"
    # No median without values.
    assert judge("copy_gb_s", 3700.0, H200, node_median={"copy_gb_s": 0.0}).status == Status.WARNED
    assert judge("copy_gb_s", 0.5, Facts("GPU-1"), node_median={"copy_gb_s": 0.9}).status == Status.FAILED


def test_floors_are_reported_with_three_decimals() -> None:
    told = judge("copy_gb_s", 4000.0, H200, baseline={"copy_gb_s": 4333.3333})
    assert (told.fail_below, told.warn_below) == (3683.333, 3986.667)
    slow = judge("copy_gb_s", 0.1, Facts("GPU-1", name="X"), baseline={"copy_gb_s": 0.5})
    assert (slow.status, slow.against) == (Status.FAILED, "baseline")


def test_own_kernels_have_no_datasheet_floor() -> None:
    found = judge("gemm_bf16_own_tflops", 5.0, H200)
    assert (found.status, found.advisory) == (Status.MEASURED, True)
    assert "own kernel" in found.text
    known = {"gemm_bf16_own_tflops": 100.0}
    assert judge("gemm_bf16_own_tflops", 84.0, H200, baseline=known).status == Status.FAILED
    assert judge("gemm_bf16_own_tflops", 84.0, H200, baseline={"gemm_bf16_tflops": 700.0}).advisory


def test_vgpu_is_only_measured() -> None:
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
def test_unknown_link_is_not_judged(facts: Facts) -> None:
    found = judge_pcie("to_host_gb_s", 1.0, facts)
    assert (found.status, found.advisory) == (Status.MEASURED, False)


def test_mig_instance_shares_its_link() -> None:
    assert judge_pcie(
        "to_host_gb_s", 1.0, Facts("MIG-1", mig=True, pcie_max_gen=5, pcie_max_width=16)
    ).advisory


HOPPER = Facts("GPU-1", compute_capability=(9, 0))


def test_peer_floors_by_link_count() -> None:
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


def test_vm_with_hidden_numa_nodes_has_no_pcie_floor() -> None:
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
def test_link_is_judged_under_load_only(
    facts: Facts, seen: list[tuple[int | None, int | None]], text: str
) -> None:
    assert thresholds.judge_link_state(facts, seen) == text


def test_pcie_floor_with_hidden_numa_nodes_has_three_decimals() -> None:
    hidden = Facts("GPU-1", pcie_max_gen=4, pcie_max_width=1, numa_hidden=True)
    assert judge_pcie("to_host_gb_s", 1.0, hidden).warn_below == 1.312
