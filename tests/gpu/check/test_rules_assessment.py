"""The status of a test from its values, errors and end."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from provisioning.gpu.check import thresholds
from provisioning.gpu.check.assess import assess, raw_of
from provisioning.gpu.check.hardware_state import MemoryState
from provisioning.gpu.check.plan import START_S, Test
from provisioning.gpu.check.types import (
    EXIT_UNAVAILABLE,
    EXIT_USAGE,
    Facts,
    Progress,
    Raw,
    Status,
    TestResult,
)
from tests.gpu.check.judging import COPY, H200, done, status_of


def test_int8_products_are_judged_against_a_baseline_only() -> None:
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
def test_slow_unit_warns_and_wrong_words_fail(probe: str, metric: str, unit: str) -> None:
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
    assert status_of(test, Raw("x", "done", 1, {metric: 100.0})) == (Status.FAILED, "1 wrong word")
    assert status_of(test, Raw("x", "done", None, {metric: 1.0})) == (
        Status.SKIPPED,
        "The test compared no data",
    )
    assert status_of(test, done()) == (Status.SKIPPED, f"The test did not measure {metric}")


def test_unreached_test_is_skipped() -> None:
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
def test_status_by_end_of_the_test(raw: Raw, status: Status) -> None:
    assert assess(COPY, raw, H200).status == status


@pytest.mark.parametrize("probe", ["canary", "exact", "power_steps"])
def test_test_without_comparison_is_skipped(probe: str) -> None:
    assert status_of(Test("x", probe, 1.0), Raw("x", "done"))[0] == Status.SKIPPED
    assert status_of(Test("x", probe, 1.0), Raw("x", "done", errors=0))[0] == Status.PASSED


def test_missed_canary_fails_and_is_named() -> None:
    raw = Raw("x", "done", errors=1, detail={"missed": ["check_mix"]})
    status, text = status_of(Test("canary", "canary", 1.0), raw)
    assert status == Status.FAILED
    assert "check_mix" in text


@pytest.mark.parametrize("probe", ["residue", "address", "inversions", "modulo20", "bit_fade"])
def test_low_memory_coverage_is_skipped(probe: str) -> None:
    test = Test(probe, probe, 1.0)
    assert status_of(test, done(coverage=0.98))[0] == Status.PASSED
    assert status_of(test, done(coverage=0.979))[0] == Status.SKIPPED
    assert status_of(test, done())[0] == Status.SKIPPED


def test_missing_memory_is_a_leak() -> None:
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
def test_memory_used_by_a_display_is_a_warning(holders: str, text: str) -> None:
    test = Test("residue", "residue", 1.0)
    memory = MemoryState("free_mib:ecc:display", True, holders)
    known = {"baseline": {"free_mib:ecc:display": 140_000.0}, "memory": memory}
    assert status_of(test, done(coverage=1.0, free_mib=139_936.0), **known)[0] == Status.PASSED
    assert status_of(test, done(coverage=1.0, free_mib=139_700.0), **known) == (
        Status.WARNED,
        f"300 MiB less free memory than in the last check. {text}",
    )


def test_all_three_bandwidths_are_required() -> None:
    test = Test("bandwidth", "memory", 1.0)
    assert status_of(test, done(copy_gb_s=4300, read_gb_s=4300, write_gb_s=4300))[0] == Status.PASSED
    assert status_of(test, done(copy_gb_s=4300, read_gb_s=4300))[0] == Status.SKIPPED
    assert status_of(test, done(copy_gb_s=4300, read_gb_s=4300, write_gb_s=3000))[0] == Status.FAILED


def test_burn_without_speed_is_skipped() -> None:
    test = Test("burn_bf16", "burn", 1.0)
    assert status_of(test, done())[0] == Status.SKIPPED
    assert status_of(test, done(gemm_bf16_tflops=780.0))[0] == Status.PASSED
    assert status_of(test, done(gemm_bf16_tflops=500.0))[0] == Status.FAILED
    assert status_of(test, done(gemm_bf16_own_tflops=100.0))[0] == Status.PASSED


def test_values_without_a_floor_are_not_judged() -> None:
    raw = done(to_device_gb_s=54.0, to_host_gb_s=54.0, buffer_mib=256.0)
    judged = assess(Test("pcie", "pcie", 1.0), raw, H200).judgements
    assert [j.metric for j in judged] == ["to_device_gb_s", "to_host_gb_s"]
    assert (
        assess(Test("copy", "copy", 1.0), done(copy_gb_s=4300.0, to_host_gb_s=1.0), H200).judgements[1:] == ()
    )
    assert status_of(COPY, done(copy_gb_s=4300.0))[1] == "copy_gb_s 4300 GB/s"
    assert status_of(Test("canary", "canary", 1.0), done())[1] == "No error"


def test_lower_pcie_link_under_load_degrades() -> None:
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


def test_unjudged_value_is_a_warning() -> None:
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


def test_peers_are_judged_by_link_count() -> None:
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
def test_invalid_result_is_none(message: dict[str, Any]) -> None:
    assert raw_of(message) is None


def test_large_values_are_accepted() -> None:
    assert raw_of({"test": "x", "state": "done", "measures": {"a": 9.9e14}}) is not None


def test_valid_result_is_parsed() -> None:
    raw = raw_of({"test": "x", "state": "done", "errors": 0, "measures": {"a": 0.0}, "device_fault": True})
    assert raw is not None
    assert (raw.test, raw.errors, raw.measures, raw.device_fault) == ("x", 0, {"a": 0.0}, True)


def test_defaults_of_messages_are_zero() -> None:
    assert Progress("start") == Progress("start", "", 0, 0, 0, "")
    assert Raw("x", "done").duration_ms == 0
    assert TestResult("x", Status.PASSED, True, "").duration_ms == 0
    assert (EXIT_UNAVAILABLE, EXIT_USAGE) == (4, 64)
    assert START_S == 60.0
