"""Whole checks over a simulated device: real processes, bindings and kernels, injected faults."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from provisioning.gpu.check.plan import Test
from provisioning.gpu.check.report import Report, render
from provisioning.gpu.check.types import Action, Progress, Severity, Status, Verdict
from tests.suite.choice import quick_of, sample

Check = Callable[..., Report]
pytestmark = pytest.mark.engine
MORE = pytest.mark.thorough("the rules have quick tests of each kind")
SHORT = {"unwatched"}
"""A plan of a moment may end before NVML has been looked at a second time."""


def statuses(report: Report) -> dict[str, Status]:
    return {test.name: test.status for test in report.tests}


def codes(report: Report) -> set[str]:
    return {f.code for f in report.findings if f.severity != Severity.INFO}


def test_quick_check_of_a_simulated_device_is_inconclusive(check: Check, tmp_path: Path) -> None:
    (tmp_path / "nvrtc").touch()
    seen: list[Progress] = []
    report = check(on_progress=seen.append)
    assert set(statuses(report).values()) == {Status.PASSED}, render(report)
    assert len(report.tests) == 12
    assert (report.verdict, report.exit_code, report.simulated) == (Verdict.INCONCLUSIVE, 3, True)
    assert report.summary.startswith("Simulated")
    assert codes(report) == set()
    assert report.software == {"kernels": report.software["kernels"], "blas": "own kernels"}
    assert report.software["kernels"].startswith("nvrtc ")
    assert report.samples["count"] >= 3
    assert [p.test for p in seen if p.phase == "start"] == [t.name for t in report.tests]
    assert (seen[0].phase, seen[-1].phase) == ("prepare", "end")
    assert report.measures["free_mib:ecc"] == 16
    assert report.measures["copy_gb_s"] == pytest.approx(4300, rel=0.01)


def burn(dtype: str = "bf16") -> Test:
    return Test(f"burn_{dtype}", "burn", 30.0, params={"dtype": dtype, "seconds": 0.1})


@pytest.mark.thorough("every test; `make test` has those of a quick check")
def test_tests_of_the_higher_levels(check: Check, tmp_path: Path) -> None:
    """With cuBLAS."""
    (tmp_path / "cublas").touch()
    report = check(
        Test("exact_bf16", "exact", 20.0, params={"dtype": "bf16"}),
        burn(),
        Test("inversions", "inversions", 20.0, params={"full": False}),
        Test("bandwidth", "memory", 20.0),
        Test("pcie", "pcie", 20.0, params={"seconds": 0.2, "both_ways": True}),
        Test("peers", "peers", 20.0),
        Test("modulo20", "modulo20", 20.0),
        Test("bit_fade", "bit_fade", 20.0, params={"seconds": 0.05}),
        Test("power_steps", "power_steps", 20.0, params={"cycles": 1, "seconds": 0.02}),
        level="standard",
        cuda={"devices": 2, "tflops": 390, "memory_mib": 32},
    )
    got = statuses(report)
    assert set(got.values()) == {Status.PASSED}, render(report)
    assert report.software["blas"].startswith("cublas 13.")
    by_name = {test.name: test for test in report.tests}
    assert by_name["exact_bf16"].detail["by"] == ["own kernel (wgmma)", "own kernel", "cublas"]
    assert by_name["burn_bf16"].judgements[0].against == "datasheet"
    assert any(j.metric.startswith("peer_gb_s:GPU-") for j in by_name["peers"].judgements)
    assert by_name["pcie"].measures["both_ways_gb_s"] > 0
    assert any(name.startswith("peer_both_ways_gb_s:GPU-") for name in by_name["peers"].measures)


FP8 = (Test("exact_fp8", "exact", 20.0, params={"dtype": "fp8"}), burn("fp8"))
BLACKWELL = {"major": 10, "minor": 0, "sms": 148}


def test_blackwell_multiplies_fp8_by_cublaslt(check: Check, tmp_path: Path) -> None:
    """No `mma.sync` uses Blackwell's FP8 circuits."""
    (tmp_path / "cublas").touch()
    report = check(*FP8, level="extended", cuda=BLACKWELL)
    exact, burned = report.tests
    assert (exact.status, exact.errors, exact.detail["by"]) == (Status.PASSED, 0, ["own kernel", "cublas"])
    assert (burned.errors, burned.detail["by"]) == (0, "cublas 13.1")
    assert "gemm_fp8_tflops" in burned.measures


@pytest.mark.parametrize(
    "missing",
    sample(
        [{"lt_status": 15}, {"major": 9, "minor": 0, "lt_flip": 1}, None], 3, "the rows take the same path"
    ),
)
def test_own_kernels_multiply_fp8_without_cublaslt(
    check: Check, tmp_path: Path, missing: dict[str, Any] | None
) -> None:
    if missing:
        (tmp_path / "cublas").touch()
    report = check(FP8[0], cuda=BLACKWELL | (missing or {}))
    (exact,) = report.tests
    assert (exact.status, exact.errors) == (Status.PASSED, 0), render(report)
    assert "cublas" not in exact.detail["by"]


def test_wrong_bit_of_cublaslt_is_found(check: Check, tmp_path: Path) -> None:
    (tmp_path / "cublas").touch()
    report = check(*FP8, level="extended", cuda=BLACKWELL | {"lt_flip": 1})
    assert (report.verdict, report.action) == (Verdict.FAIL, Action.REPLACE), render(report)
    assert all(test.errors for test in report.tests)


INT8 = (Test("exact_int8", "exact", 20.0, params={"dtype": "int8"}), burn("int8"))
FP4 = (Test("exact_fp4", "exact", 20.0, params={"dtype": "fp4"}), burn("fp4"))
CONSUMER_BLACKWELL = {"major": 12, "minor": 0, "sms": 170}


@pytest.mark.parametrize(
    ("tests", "device", "by", "metric"),
    sample(
        [
            (INT8, {}, ["own kernel (wgmma)", "own kernel"], "gemm_int8_own_tops"),
            pytest.param(INT8, CONSUMER_BLACKWELL, ["own kernel"], "gemm_int8_own_tops", marks=MORE),
            (FP4, CONSUMER_BLACKWELL, ["own kernel"], "gemm_fp4_own_tflops"),
        ],
        3,
        "the rows take the same path",
    ),
    ids=["INT8 of Hopper", "INT8", "FP4"],
)
def test_data_types_of_own_kernels_only(
    check: Check, tmp_path: Path, tests: tuple[Test, ...], device: dict[str, Any], by: list[str], metric: str
) -> None:
    (tmp_path / "cublas").touch()
    report = check(*tests, level="extended", cuda=device)
    exact, burned = report.tests
    assert {test.status for test in report.tests} == {Status.PASSED}, render(report)
    assert (exact.errors, exact.detail["by"], exact.detail["canary_found"]) == (0, by, True)
    (judged,) = burned.judgements
    assert (judged.metric, judged.advisory) == (metric, True)
    wrong = check(*tests, level="extended", cuda=device | {"dead_bit_a": 1})
    assert (wrong.verdict, wrong.action) == (Verdict.FAIL, Action.REPLACE), render(wrong)
    assert all(test.errors for test in wrong.tests)


MEMORY = ("residue", "address")
BOTH_WAYS = Test("pcie", "pcie", 20.0, params={"seconds": 0.2, "both_ways": True})
BF16 = Test("exact_bf16", "exact", 20.0, params={"dtype": "bf16"})


@pytest.mark.parametrize(
    ("fault", "tests", "failed"),
    sample(
        [
            ({"stuck_word": 1000, "stuck_bit": 5}, MEMORY, {"residue", "address"}),
            ({"alias_from": 500, "alias_to": 900}, MEMORY, {"address"}),
            ({"no_memset": 1, "dirty_words": 20}, ("residue",), {"residue"}),
            ({"blind": 1}, ("canary",), {"canary"}),
            ({"product_word": 100, "product_flip": 1}, (BF16,), {"exact_bf16"}),
            ({"product_word": 100, "product_flip": 2139095040}, (BF16,), {"exact_bf16"}),
            ({"no_product": 1}, (BF16,), {"exact_bf16"}),
            # The lowest mantissa bit of either side of every tensor core, and of FP64's multipliers.
            ({"dead_bit_a": 1}, (BF16,), {"exact_bf16"}),
            ({"dead_bit_b": 1}, (BF16,), {"exact_bf16"}),
            (
                {"dead_bit_a": 1},
                (Test("exact_fp64", "exact", 20.0, params={"dtype": "fp64"}),),
                {"exact_fp64"},
            ),
            # An error of random products that is the same each time: no comparison with itself could find it.
            ({"random_flip": 1 << 17}, (burn(),), {"burn_bf16"}),
            ({"random_flip": 1 << 17}, (burn("fp32"),), {"burn_fp32"}),
            ({"pcie_flip": 1}, ("pcie",), {"pcie"}),
            # Wrong only while the other direction is busy, too.
            ({"beside_flip": 1}, (BOTH_WAYS,), {"pcie"}),
            ({"beside_flip": 1, "devices": 2}, ("peers",), {"peers"}),
            ({"copy_gb_s": 3000, "driver_copy_gb_s": 3000}, ("copy",), {"copy"}),
            ({"pcie_gb_s": 20}, ("pcie",), {"pcie"}),
            ({"ecc": "count_nonzero"}, MEMORY, {"residue"}),
        ],
        3,
        "the rows take the same path",
    ),
    ids=lambda value: "-".join(map(str, value)) if isinstance(value, dict) else "",
)
def test_each_fault_fails_its_test(
    check: Check, fault: dict[str, Any], tests: tuple[Any, ...], failed: set[str]
) -> None:
    report = check(*tests, cuda=fault)
    assert (report.verdict, report.exit_code) == (Verdict.FAIL, 2), render(report)
    assert {name for name, status in statuses(report).items() if status == Status.FAILED} == failed, render(
        report
    )
    first = next(t for t in report.tests if t.status == Status.FAILED)
    if "stuck_word" in fault:
        assert first.detail["bits_left"] == f"{1 << 5:016x}"
        address = report.tests[1]
        assert address.detail["first_index"] == "1000"
        assert address.detail["wrong_bits"] == f"{1 << 5:016x}"
    if "alias_to" in fault:
        assert first.detail["first_index"] == "900"
    if "product_word" in fault:
        assert first.detail["first_index"] == "100"
    if "random_flip" in fault:
        assert first.detail["mismatches"][0]["in"] == "CPU's product"
        assert 4000 < (first.errors or 0) <= 64 * 64
    if "ecc" in fault:
        assert "CUDA_ERROR_ECC_UNCORRECTABLE" in first.text
        assert statuses(report)["address"] == Status.SKIPPED
        assert report.tests[1].text.startswith("Not run. An earlier test lost the CUDA context")


def test_unrequested_peers_may_be_skipped(check: Check) -> None:
    optional = Test("peers", "peers", 20.0, required=False)
    report = check("residue", optional, cuda={"no_peer": 1, "devices": 2})
    assert statuses(report) == {"residue": Status.PASSED, "peers": Status.SKIPPED}
    assert not [finding for finding in report.findings if finding.code == "test_peers"]
    report = check("residue", optional, cuda={"devices": 2})
    assert statuses(report)["peers"] == Status.PASSED


def test_wrong_product_names_its_multiprocessor(check: Check) -> None:
    """For an own kernel; the simulated device runs it in one block on multiprocessor 0."""
    report = check(BF16, cuda={"product_word": 100, "product_flip": 1})
    (test,) = report.tests
    assert test.status == Status.FAILED
    assert set(test.detail["sms"]) == {"0"}


@pytest.mark.parametrize(
    ("fault", "text"),
    sample(
        [
            ({"out_of_memory": 1}, "Only 0.0% of the free memory"),
            ({"largest_share": 0.2, "memory_mib": 18}, "Only "),
            (
                {"context_error": 2},
                "CUDA could not create a context: cuDevicePrimaryCtxRetain: CUDA_ERROR_OUT_OF_MEMORY",
            ),
            ({"uuid": "ff" * 16}, "CUDA opened ffffffff"),
            ({"major": 7, "minor": 0}, "No packaged kernel supports sm_70"),
            ({"kill": "count_nonzero"}, "ended by signal 9"),
            ({"no_peer": 1, "devices": 2}, "no peer access"),
        ],
        3,
        "the rows take the same path",
    ),
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_untested_device_is_inconclusive(check: Check, fault: dict[str, Any], text: str) -> None:
    report = check("peers" if "no_peer" in fault else "residue", cuda=fault)
    if "largest_share" in fault:
        # Small chunks still reach it.
        assert statuses(report) == {"residue": Status.PASSED}
        return
    assert (report.verdict, report.exit_code) == (Verdict.INCONCLUSIVE, 3)
    assert text in render(report)


COMPILERS = ("nvrtc", "packaged")


@pytest.mark.parametrize("driver", quick_of((12020, 12040, 12080), (12040,), "`make test` has one"))
@pytest.mark.parametrize("compilers", quick_of((True, False), (True,), "`make test` has one"), ids=COMPILERS)
def test_driver_before_r580_is_supported(check: Check, tmp_path: Path, driver: int, compilers: bool) -> None:
    """It refuses CUDA 13's code, and exports the event's time under its older name only."""
    if compilers:
        (tmp_path / "nvrtc").touch()
    report = check("residue", "copy", BF16, cuda={"driver": driver})
    assert set(statuses(report).values()) == {Status.PASSED}, render(report)
    assert report.measures["copy_gb_s"] == pytest.approx(4300, rel=0.01)
    assert report.software["kernels"].startswith("nvrtc 12." if compilers else "packaged")


def test_driver_that_loads_no_kernel_is_a_finding(check: Check) -> None:
    report = check("residue", cuda={"no_image": 1, "driver": 12040})
    assert (report.verdict, "cannot" in codes(report)) == (Verdict.INCONCLUSIVE, True)
    assert "The driver (CUDA 12.4) could not load any of the kernels" in render(report)


@pytest.mark.parametrize(
    "symbol",
    sample(
        ["cuEventCreate", "cuMemcpyDtoDAsync", "cuDevicePrimaryCtxRetain"], 3, "the rows take the same path"
    ),
)
def test_missing_driver_function_is_a_finding_and_no_crash(check: Check, symbol: str) -> None:
    report = check("copy", "canary", cuda={"no_symbol": symbol})
    assert report.verdict == Verdict.INCONCLUSIVE
    assert f"{symbol}: not supported by this driver" in render(report)
    assert not codes(report) & {"incomplete", "internal", "check_hung"}


def test_unexpected_error_becomes_a_finding(check: Check) -> None:
    bad = Test("exact_odd", "exact", 20.0, params={"dtype": "odd"})
    report = check(bad, "canary")
    assert statuses(report) == {"exact_odd": Status.SKIPPED, "canary": Status.PASSED}
    assert "Unexpected error: KeyError: 'odd'" in report.tests[0].text
    assert report.verdict == Verdict.INCONCLUSIVE


@pytest.mark.parametrize(
    ("fault", "text"),
    [
        ({"init_error": 802}, "systemctl start nvidia-fabricmanager"),
        ({"init_error": 803}, "updated but not reloaded"),
        ({"context_error": 46}, "in an exclusive compute mode"),
    ],
    ids=["fabric", "mismatch", "unavailable"],
)
def test_machine_setup_errors_are_inconclusive(check: Check, fault: dict[str, Any], text: str) -> None:
    report = check("canary", cuda=fault)
    assert (report.verdict, report.action) == (Verdict.INCONCLUSIVE, Action.INSPECT), render(report)
    assert text in render(report)


def test_missing_cuda_device_is_reported(check: Check) -> None:
    report = check("residue", cuda={"no_device": 1})
    assert report.exit_code == 4
    assert report.unavailable is not None
    assert report.unavailable.library == "device"


@pytest.mark.parametrize(
    ("script", "verdict", "code", "action"),
    sample(
        [
            ({"xids": [79], "after_s": 0.6}, Verdict.FAIL, "xid_79", Action.REBOOT),
            pytest.param(
                {"xids": [94], "after_s": 0.6}, Verdict.INCONCLUSIVE, "xid_94", Action.RETRY, marks=MORE
            ),
            ({"lost": 1, "after_s": 0.8}, Verdict.FAIL, "lost", Action.REBOOT),
            pytest.param(
                {"ecc_uncorrected": 1}, Verdict.FAIL, "ecc_uncorrected", Action.DRAIN_AND_RESET, marks=MORE
            ),
            pytest.param({"throttle": 64}, Verdict.FAIL, "thermal_throttling", Action.INSPECT, marks=MORE),
            ({"link_errors": 2}, Verdict.INCONCLUSIVE, "nvlink_errors", Action.INSPECT),
            pytest.param({"pcie_width": 8}, Verdict.INCONCLUSIVE, "test_pcie", Action.INSPECT, marks=MORE),
        ],
        3,
        "the rows take the same path",
    ),
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_nvml_findings_during_load(
    check: Check, script: dict[str, Any], verdict: Verdict, code: str, action: Action
) -> None:
    report = check(Test("pcie", "pcie", 20.0, params={"seconds": 0.8}), nvml=script)
    assert report.verdict == verdict, render(report)
    assert code in codes(report)
    assert report.action == action


@pytest.mark.parametrize(
    ("script", "verdict", "code"),
    [
        ({"remapped": [0, 1, 1, 0]}, Verdict.FAIL, "remap_pending"),
        ({"recovery": 2}, Verdict.FAIL, "recovery_action"),
        ({"sram": 1}, Verdict.FAIL, "sram_threshold"),
        ({"strangers": [4711]}, Verdict.INCONCLUSIVE, "busy"),
        ({"no_events": 1}, Verdict.INCONCLUSIVE, "xids_unknown"),
        ({"compute_mode": 2}, Verdict.INCONCLUSIVE, "compute_mode"),
        ({"fabric": 1}, Verdict.INCONCLUSIVE, "fabric"),
        ({"fabric": 2}, Verdict.INCONCLUSIVE, "fabric"),
        ({"ecc_standing": 2}, Verdict.FAIL, "ecc_standing"),
        ({"links_down": 1, "siblings": 1}, Verdict.FAIL, "nvlink_missing"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_nvml_findings_before_the_load_skip_the_tests(
    check: Check, script: dict[str, Any], verdict: Verdict, code: str
) -> None:
    report = check("address", nvml=script)
    assert (report.verdict, codes(report)) == (verdict, {code})
    assert report.tests == ()
    assert report.health_before is not None


def test_unknown_uuid_is_reported(check: Check) -> None:
    report = check("address", uuid="GPU-deadbeef-0000-0000-0000-000000000000")
    assert report.exit_code == 4
    assert "nvidia-smi -L" in render(report)


def test_memory_leak_relative_to_the_baseline(check: Check) -> None:
    report = check("residue", baseline={"free_mib:ecc": 4000.0})
    assert report.verdict == Verdict.FAIL
    assert "missing although no process uses the device" in report.summary


def test_value_below_its_floor_is_measured_again_alone(check: Check, tmp_path: Path) -> None:
    """Slow beside other checks and fast alone."""
    script = tmp_path / "fake-gpu.txt"

    def others_end(progress: Progress) -> None:
        if progress.phase == "result" and progress.test == "pcie":
            script.write_text(script.read_text().replace("pcie_gb_s 5\n", ""))

    plan = ("address", Test("pcie", "pcie", 20.0, params={"seconds": 0.1}))
    report = check(*plan, cuda={"pcie_gb_s": 5}, turns=tmp_path, on_progress=others_end)
    assert statuses(report) == {"address": Status.PASSED, "pcie": Status.PASSED}, render(report)
    assert "second measurement, alone. First measurement: to_device_gb_s 5" in report.tests[1].text
    assert codes(report) - SHORT == set()
    assert set(report.measures) == {"to_device_gb_s", "to_host_gb_s", "nvlinks_up", "retired_memory"}


def test_value_below_its_floor_twice_fails(check: Check, tmp_path: Path) -> None:
    plan = ("address", Test("pcie", "pcie", 20.0, params={"seconds": 0.1}))
    report = check(*plan, cuda={"pcie_gb_s": 5}, turns=tmp_path)
    assert statuses(report) == {"address": Status.PASSED, "pcie": Status.FAILED}, render(report)
    assert "confirmed by a second measurement, alone" in report.tests[1].text
    assert (report.verdict, codes(report) - SHORT) == (Verdict.FAIL, {"test_pcie"})


def test_wrong_word_is_not_retried(check: Check, tmp_path: Path) -> None:
    seen: list[Progress] = []
    cuda = {"pcie_flip": 1, "pcie_gb_s": 5}
    report = check("pcie", cuda=cuda, turns=tmp_path, on_progress=seen.append)
    assert statuses(report) == {"pcie": Status.FAILED}
    assert [each.phase for each in seen].count("start") == 1


@pytest.mark.parametrize(
    ("script", "code", "text"),
    [
        ({"links_down": 3}, "nvlink_missing", "15 of 18 NVLinks to the switches are up"),
        (
            {"app_sm_mhz": 1200},
            "clocks_lowered",
            "Application clocks are below the default: SM 1200 of 1980 MHz",
        ),
        ({"power_mw": 400_000}, "power_lowered", "The power limit is below the default: 400 of 700 W"),
    ],
)
def test_findings_before_the_load_without_failure(
    check: Check, script: dict[str, Any], code: str, text: str
) -> None:
    report = check("address", nvml=script)
    assert code in {f.code for f in report.findings} and text in render(report)
    assert codes(report) - SHORT <= {code}
    assert statuses(report) == {"address": Status.PASSED}


def test_errors_of_new_links_count(check: Check) -> None:
    """Read by field, one value per link; symbol errors are excluded."""
    report = check("canary", nvml={"link_fields": {"208": 2, "215": 1, "221": 900}})
    assert report.health_before is not None
    assert [link["errors"] for link in report.health_before["nvlinks"]] == [3] * 18
