"""Sums over several GPUs in real processes over fake driver and NCCL: correct, wrong, slow, hanging."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from provisioning.gpu.check.plan import Test
from provisioning.gpu.check.report import Report, render
from provisioning.gpu.check.types import Action, Severity, Status, TestResult, Verdict
from tests.gpu.driver.machine import GPU, Machine, line_of, uuid_of
from tests.ports import free_port
from tests.suite.choice import quick_of, sample

pytestmark = pytest.mark.engine
Make = Callable[..., Machine]
Check = Callable[..., Report]

PEERS = (uuid_of(2), uuid_of(3))
SUM = Test("all_reduce", "all_reduce", 60.0)
# Long enough for NVML to be read meanwhile.
PCIE = Test("pcie", "pcie", 20.0, params={"seconds": 0.5})
RESIDUE, AFTER = Test("residue", "residue", 20.0), Test("residue_after", "residue", 20.0)
MACHINES = {("H100", 580): 360.0, ("A100", 550): 240.0}
METRIC = "all_reduce_bus_gb_s:3:2.32.3"


def three(kind: str) -> tuple[str, ...]:
    return tuple(f"gpu {kind} {uuid}" for uuid in (GPU, *PEERS))


@pytest.fixture(params=sorted(MACHINES), ids=lambda each: f"{each[0]}-R{each[1]}")
def linked_gpus(request: pytest.FixtureRequest, with_kernels: Make) -> Machine:
    """Three GPUs with peer access."""
    kind, release = request.param
    return with_kernels(release, *three(kind))


@pytest.fixture
def h100(with_kernels: Make) -> Machine:
    return with_kernels(580, *three("H100"))


def result_of(report: Report, name: str = "all_reduce") -> TestResult:
    return next(test for test in report.tests if test.name == name)


def codes(report: Report) -> set[str]:
    return {finding.code for finding in report.findings if finding.severity != Severity.INFO} - {"unwatched"}


def leaks_on(made: Machine) -> str:
    """Resources not released before a context ended, as the fake driver reports."""
    told = made.folder / "left"
    return told.read_text() if told.exists() else ""


def open_contexts(made: Machine) -> set[str]:
    """Open contexts, except that of the device under test, which ends with its process."""
    return {path.name.partition(".")[0] for path in (made.folder / "contexts").iterdir()} - {GPU}


def test_correct_sums_pass_with_a_speed(
    linked_gpus: Machine, check: Check, request: pytest.FixtureRequest
) -> None:
    report = check(
        GPU, "standard", plan=[RESIDUE, PCIE, Test("peers", "peers", 60.0), SUM, AFTER], peers=PEERS
    )
    assert (report.verdict, codes(report)) == (Verdict.PASS, set()), render(report)
    found = result_of(report)
    assert (found.status, found.errors, found.required) == (Status.PASSED, 0, True)
    rate = MACHINES[request.node.callspec.params["linked_gpus"]]
    assert report.measures[METRIC] == pytest.approx(rate, rel=0.01)
    assert (found.measures["ranks"], found.measures["buffer_mib"]) == (3, 0.5)
    assert found.detail["wrong_words_by_rank"] == {GPU: 0, PEERS[0]: 0, PEERS[1]: 0}
    (judged,) = found.judgements
    assert (judged.status, judged.against, judged.advisory) == (Status.MEASURED, "none", True)
    # Nothing is kept on the peers or on the device.
    assert (leaks_on(linked_gpus), open_contexts(linked_gpus)) == ("", set())
    assert (
        result_of(report, "residue").measures["free_mib"]
        == result_of(report, "residue_after").measures["free_mib"]
    )


@pytest.mark.parametrize("rank", sample([0, 2], 2, "the rows take the same path"), ids=["here", "on a peer"])
@pytest.mark.parametrize("flip", quick_of([1, 1 << 31], [1], "the lowest bit is the hardest to see"), ids=hex)
def test_wrong_bit_on_one_rank_fails_its_device(h100: Machine, check: Check, rank: int, flip: int) -> None:
    h100.fault("sum", 70001, flip, gpu=rank)
    report = check(GPU, "standard", plan=[PCIE, SUM], peers=PEERS)
    name = (GPU, *PEERS)[rank]
    assert (report.verdict, report.action, codes(report)) == (
        Verdict.FAIL, Action.INSPECT, {"test_all_reduce"},
    ), render(report)  # fmt: skip
    found = result_of(report)
    # Once in whole words, once in FP32.
    assert found.text == f"2 wrong words, on {name} (2)"
    assert [mismatch["in"] for mismatch in found.detail["mismatches"]] == [
        f"uint64 on {name}",
        f"fp32 on {name}",
    ]
    assert {mismatch["index"] for mismatch in found.detail["mismatches"]} == {"35000"}


@pytest.mark.thorough("two checks; baselines have quick tests")
def test_slow_sum_degrades_relative_to_the_baseline(h100: Machine, check: Check) -> None:
    h100.fault("slow_sum", 800, gpu=1)
    known = {METRIC: 360.0}
    report = check(GPU, "standard", plan=[PCIE, SUM], peers=PEERS, baseline=known)
    assert (report.verdict, report.action, codes(report)) == (
        Verdict.DEGRADED, Action.INSPECT, {"test_all_reduce"},
    ), render(report)  # fmt: skip
    assert result_of(report).text.startswith(f"{METRIC} 288 GB/s is below the baseline limit of 306; any of")
    # Another number of devices or another library has another baseline.
    for other in ("all_reduce_bus_gb_s:8:2.32.3", "all_reduce_bus_gb_s:3:2.18.5"):
        assert (
            check(GPU, "standard", plan=[PCIE, SUM], peers=PEERS, baseline={other: 360.0}).verdict
            == Verdict.PASS
        )


def test_missing_library_is_reported_without_other_effect(h100: Machine, check: Check) -> None:
    (h100.folder / "libnccl.so.2").unlink()
    report = check(GPU, "standard", plan=[RESIDUE, PCIE, SUM], peers=PEERS)
    assert (report.verdict, codes(report)) == (Verdict.PASS, set()), render(report)
    assert (result_of(report).status, result_of(report).required) == (Status.SKIPPED, False)
    assert render(report).count("berth[gpu-nccl]") == 1
    assert result_of(report, "residue").status == Status.PASSED
    assert not (h100.folder / "left").exists()


def test_devices_without_peer_access_are_skipped(h100: Machine, check: Check) -> None:
    h100.fault("no_peer", 2)
    report = check(GPU, "standard", plan=[RESIDUE, PCIE, SUM], peers=PEERS)
    assert (report.verdict, codes(report)) == (Verdict.PASS, set()), render(report)
    assert result_of(report).text == f"Not run. {GPU} has no peer access to {PEERS[1]}."


@pytest.mark.thorough("waits for a time limit twice")
@pytest.mark.parametrize("rank", [0, 1], ids=["here", "on a peer"])
def test_hanging_collective_fails_no_device(h100: Machine, check: Check, rank: int) -> None:
    """Its processes are killed although they ignore signals."""
    h100.fault("sum_hangs", gpu=rank)
    test = Test("all_reduce", "all_reduce", 3.0)
    report = check(GPU, "standard", plan=[RESIDUE, test], peers=PEERS)
    assert (report.verdict, report.action, codes(report)) == (
        Verdict.INCONCLUSIVE, Action.RETRY, {"test_all_reduce"},
    ), render(report)  # fmt: skip
    assert result_of(report).status == Status.HUNG
    assert result_of(report).text == (
        f"The test did not end within 3 s, with {PEERS[0]}, {PEERS[1]}; any of the devices may be the cause"
    )
    assert not report.abandoned
    h100.mend()
    assert check(GPU, "standard", plan=[PCIE, SUM], peers=PEERS).verdict == Verdict.PASS


LEFT = pytest.mark.thorough("more errors; `make test` has two")


@pytest.mark.parametrize(
    ("fault", "says"),
    sample(
        [
            pytest.param(
                ("nccl_fails", "ncclCommInitRank", 0),
                "ncclCommInitAll: 2 (unhandled system error",
                marks=LEFT,
            ),
            pytest.param(
                ("nccl_fails", "ncclAllReduce", 1), "ncclAllReduce: 2 (unhandled system error", marks=LEFT
            ),
            (("nccl_fails", "ncclAllReduce", 4), "ncclAllReduce: 2 (unhandled system error"),
            (("no_memory",), f"{PEERS[0]}: cuMemAlloc: CUDA_ERROR_OUT_OF_MEMORY"),
            pytest.param(
                ("no_context", 214),
                f"{PEERS[0]}: cuDevicePrimaryCtxRetain: CUDA_ERROR_ECC_UNCORRECTABLE",
                marks=LEFT,
            ),
        ],
        2,
        "the rows take the same path",
    ),
    ids=["at the start", "at the first sum", "half-way", "no memory", "no context"],
)
def test_failed_test_releases_all_memory(
    linked_gpus: Machine, check: Check, fault: tuple[Any, ...], says: str
) -> None:
    """The fault is a peer's, so the device under test does not fail."""
    linked_gpus.fault(*fault, gpu=1)
    report = check(GPU, "standard", plan=[RESIDUE, PCIE, SUM, AFTER], peers=PEERS)
    assert (report.verdict, report.action, codes(report)) == (
        Verdict.INCONCLUSIVE, Action.RETRY, {"test_all_reduce"},
    ), render(report)  # fmt: skip
    assert result_of(report).text.startswith(f"The test did not complete. {says}"), result_of(report).text
    assert (leaks_on(linked_gpus), open_contexts(linked_gpus)) == ("", set())
    assert (
        result_of(report, "residue").measures["free_mib"]
        == result_of(report, "residue_after").measures["free_mib"]
    )


@pytest.mark.parametrize("rank", sample([0, 1], 2, "the rows take the same path"), ids=["here", "on a peer"])
def test_memory_error_is_attributed_to_its_device(h100: Machine, check: Check, rank: int) -> None:
    h100.fault("ecc", "check_sum", gpu=rank)
    report = check(GPU, "standard", plan=[PCIE, SUM], peers=PEERS)
    if rank == 0:
        assert (report.verdict, report.action) == (Verdict.FAIL, Action.DRAIN_AND_RESET), render(report)
        assert result_of(report).text.startswith("The device reported an error: ")
        return
    assert (report.verdict, codes(report)) == (Verdict.INCONCLUSIVE, {"test_all_reduce"}), render(report)
    assert "ECC_UNCORRECTABLE" in result_of(report).text
    assert result_of(report).text.startswith(f"The test did not complete. {PEERS[0]}: ")


@pytest.mark.parametrize("named", [False, True], ids=["by its id", "by NCCL_COMM_ID"])
def test_ranks_of_two_processes_connect(h100: Machine, monkeypatch: pytest.MonkeyPatch, named: bool) -> None:
    """At the address in the unique id, or at a configured one."""
    if named:
        monkeypatch.setenv("NCCL_COMM_ID", f"127.0.0.1:{free_port()}")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", GPU)
    first = h100.start("tests.gpu.driver.rank", "0", "2")
    unique_id = [] if named else [line_of(first)["id"]]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", PEERS[0])
    second = h100.start("tests.gpu.driver.rank", "1", "2", *unique_id)
    # With a configured address, each rank creates the id itself and prints it first.
    told = (first, first, second, second) if named else (first, second)
    results = [each for each in map(line_of, told) if "uuid" in each]
    assert {f"GPU-{result['uuid']}" for result in results} == {GPU, PEERS[0]}
    assert {(result["first"], result["last"]) for result in results} == {
        (3 * 1000003**2, 3 * 1000003**2 + 2 * 4999)
    }


def test_nccl_settings_are_set_by_the_check(
    h100: Machine, check: Check, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Outer variables are not passed on, and NCCL's output is kept out of the report."""
    monkeypatch.setenv("NCCL_COMM_ID", "127.0.0.1:1")
    monkeypatch.setenv("NCCL_DEBUG_FILE", str(h100.folder / "said"))
    monkeypatch.setenv("NCCL_DEBUG", "TRACE")
    assert check(GPU, "standard", plan=[PCIE, SUM], peers=PEERS).verdict == Verdict.PASS
    h100.fault("nccl_fails", "ncclAllReduce", 0)
    assert "cannot go on" in result_of(check(GPU, "standard", plan=[PCIE, SUM], peers=PEERS)).text
    assert not (h100.folder / "said").exists()
