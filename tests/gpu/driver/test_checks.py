"""Check and scrub as real processes, on every supported driver and kind of GPU."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from itertools import product
from typing import Any

import pytest

from provisioning.gpu.check.plan import Test
from provisioning.gpu.check.report import Report, render
from provisioning.gpu.check.session import Timing
from provisioning.gpu.check.types import Action, Severity, Status, Verdict
from provisioning.gpu.scrub import ScrubVerdict as Scrub
from provisioning.gpu.scrub_run import run_scrub
from tests.gpu.driver.machine import GPU, HALF, KINDS, RELEASES, Machine
from tests.suite.choice import quick_of, sample

pytestmark = pytest.mark.engine
Make = Callable[..., Machine]
Check = Callable[..., Report]

EXACT = Test("exact_fp16", "exact", 15.0, params={"dtype": "fp16"})
# Long enough for NVML to be read meanwhile.
PCIE = Test("pcie", "pcie", 20.0, params={"seconds": 0.5})
SHORT = (*(Test(name, name, 20.0) for name in ("canary", "residue", "copy")), EXACT, PCIE)
# The whole of a quick check, its code by the compilers: once for each architecture, and for each branch.
WHOLE = {("T4", 535), ("A100", 550), ("B200", 570), ("H100", 580)}
COMPILER = {535: "nvrtc 12.", 550: "nvrtc 12.", 570: "nvrtc 12.", 580: "nvrtc 13."}


def codes(report: Report) -> set[str]:
    return {finding.code for finding in report.findings if finding.severity != Severity.INFO} - {"unwatched"}


QUICK = {("H100", 580), ("MIG", 535)}


@pytest.mark.parametrize(
    ("kind", "release"),
    quick_of(product(KINDS, RELEASES), QUICK, "every pair; `make test` has two", several=True),
    ids=lambda value: str(value),
)
def test_check_and_scrub_on_every_driver_and_gpu(
    with_kernels: Make, check: Check, release: int, kind: str
) -> None:
    made, whole = with_kernels(release, *KINDS[kind]), (kind, release) in WHOLE
    uuid = HALF if kind in ("MIG", "unprivileged") else GPU
    if whole:
        (made.folder / "nvrtc").touch()
    report = check(uuid, plan=None if whole else SHORT)
    scrubbed = run_scrub(uuid)
    if kind == "B200" and release < 570:
        assert report.exit_code == 4 and report.unavailable is not None
        assert f"The NVIDIA driver {RELEASES[release]} lists no GPU" in report.summary
        assert report.unavailable.fix.startswith("Install a newer driver")
        assert (scrubbed.verdict, scrubbed.library) == (Scrub.UNAVAILABLE, "device")
        assert "Install a newer driver" in scrubbed.text
        return
    assert (report.verdict, report.action, codes(report)) == (Verdict.PASS, Action.NONE, set()), render(
        report
    )
    assert {each.status for each in report.tests} == {Status.PASSED}
    assert report.software["kernels"].startswith(COMPILER[release] if whole else "packaged")
    assert report.facts is not None and report.facts.driver_version == RELEASES[release]
    assert (report.facts.vgpu, report.facts.mig) == (kind == "vGPU", uuid == HALF)
    if uuid == HALF:
        # Without rights as well: by its memory.
        assert (report.facts.sms, report.facts.memory_slices) == (60, 4)
    judged = {judgement.metric: judgement.advisory for test in report.tests for judgement in test.judgements}
    assert judged["copy_gb_s"] is (kind == "vGPU")
    assert (scrubbed.verdict, scrubbed.coverage_per_mille >= 980) == (Scrub.CLEAN, True), scrubbed.text


# --- setup of the machine: no fault of the device, reported with a fix ----------------------------


@pytest.mark.parametrize(
    ("release", "kind", "line", "text"),
    sample(
        [
            (535, "H100", "fabric 1", "systemctl start nvidia-fabricmanager"),
            (580, "A100", "fabric 1", "systemctl start nvidia-fabricmanager"),
            (550, "H200", "fabric 2", "systemctl start nvidia-fabricmanager"),
            (570, "H100", "compute_mode 2", "nvidia-smi -c DEFAULT"),
            (550, "T4", "cuda_refuses 803", "updated but not reloaded"),
        ],
        3,
        "the rows take the same path",
    ),
    ids=["802-old", "802-no-fabric-info", "in-progress", "prohibited", "mismatch"],
)
def test_machine_setup_errors_are_inconclusive(
    with_kernels: Make, check: Check, release: int, kind: str, line: str, text: str
) -> None:
    with_kernels(release, *KINDS[kind], line)
    report, scrubbed = check(GPU, plan=SHORT), run_scrub(GPU)
    assert report.verdict == Verdict.INCONCLUSIVE and text in render(report), render(report)
    assert report.action == (Action.RETRY if line == "fabric 2" else Action.INSPECT)
    assert scrubbed.verdict == Scrub.INCONCLUSIVE
    assert ("prohibited" if "compute_mode" in line else text) in scrubbed.text


def test_library_of_another_version_than_the_driver(machine: Make, check: Check) -> None:
    machine(580, *KINDS["H100"], "nvml_refuses 18")
    report, scrubbed = check(GPU, plan=SHORT), run_scrub(GPU)
    assert (report.verdict, report.exit_code, report.tests) == (Verdict.INCONCLUSIVE, 4, ())
    assert report.unavailable is not None and "ismatch" in report.unavailable.text
    assert "reload the NVIDIA kernel modules" in report.unavailable.fix
    assert scrubbed.verdict == Scrub.INCONCLUSIVE
    assert "reload the NVIDIA kernel modules" in scrubbed.text, scrubbed.text


@pytest.mark.parametrize(
    ("release", "kind", "file", "content", "text"),
    sample(
        [
            pytest.param(
                550, "A100", "persistence-off", "", "nvidia-smi -pm 1", id="persistence mode is off"
            ),
            pytest.param(570, "T4", "drawing", "812\n", "Graphics programs (process 812)", id="a display"),
        ],
        3,
        "the rows take the same path",
    ),
)
def test_informational_findings_pass(
    with_kernels: Make, check: Check, release: int, kind: str, file: str, content: str, text: str
) -> None:
    made = with_kernels(release, *KINDS[kind])
    (made.folder / file).write_text(content)
    report = check(GPU, plan=[EXACT])
    assert (report.verdict, codes(report)) == (Verdict.PASS, set()), render(report)
    assert text in render(report)


@pytest.mark.parametrize(
    "drawing", sample([True, False], 2, "the rows take the same path"), ids=["a display", "no display"]
)
def test_less_free_memory_than_in_the_last_check(with_kernels: Make, check: Check, drawing: bool) -> None:
    """A leak fails; memory of a display is reported and is no fault."""
    made = with_kernels(570, *KINDS["T4"])
    residue = [Test("residue", "residue", 20.0), PCIE]
    if drawing:
        (made.folder / "drawing").write_text("812\n")
    before = check(GPU, plan=residue).measures
    (metric,) = (name for name in before if "free" in name)
    report = check(GPU, plan=residue, baseline={metric: before[metric] + 300})
    assert metric.endswith(":display") is drawing
    if drawing:
        assert report.verdict == Verdict.DEGRADED, render(report)
        text = "300 MiB less free memory than in the last check. Graphics programs: process 812 (50 MiB)"
        assert report.tests[0].text == text
    else:
        assert (report.verdict, codes(report)) == (Verdict.FAIL, {"test_residue"}), render(report)
    if drawing:
        (made.folder / "drawing").unlink()
        assert check(GPU, plan=residue, baseline={metric: before[metric] + 300}).verdict == Verdict.PASS


@pytest.mark.thorough("the rules have quick tests")
def test_exclusive_mode_admits_one_process(with_kernels: Make, check: Check) -> None:
    made = with_kernels(580, *KINDS["H100"], "compute_mode 3")
    assert check(GPU, plan=SHORT).verdict == Verdict.PASS
    assert run_scrub(GPU).verdict == Scrub.CLEAN
    (made.folder / "contexts" / f"{GPU}.{os.getpid()}").touch()
    report, scrubbed = check(GPU, plan=SHORT), run_scrub(GPU)
    assert (report.verdict, codes(report)) == (Verdict.INCONCLUSIVE, {"busy"})
    assert (scrubbed.verdict, report.tests) == (Scrub.BUSY, ())


@pytest.mark.parametrize("kind", ["with instances", "without"])
def test_gpu_in_mig_mode_must_be_checked_by_instance(with_kernels: Make, check: Check, kind: str) -> None:
    """CUDA would open its first instance, which must not be used."""
    made = with_kernels(550, *(KINDS["MIG"] if kind == "with instances" else KINDS["MIG"][:1]))
    report, scrubbed = check(GPU, plan=SHORT), run_scrub(GPU)
    assert (report.verdict, report.action, codes(report)) == (
        Verdict.INCONCLUSIVE, Action.INSPECT, {"mig_mode"},
    )  # fmt: skip
    assert (scrubbed.verdict, report.tests) == (Scrub.INCONCLUSIVE, ())
    assert scrubbed.text == report.summary and "nvidia-smi -mig 0" in scrubbed.text
    assert not list((made.folder / "contexts").iterdir())


def test_residue_of_an_earlier_user_is_counted_and_cleared(with_kernels: Make) -> None:
    with_kernels(550, *KINDS["A100"], "dirty_words 40")
    scrubbed = run_scrub(GPU)
    assert (scrubbed.verdict, scrubbed.residue_words, scrubbed.left_words) == (Scrub.CLEAN, 40, 0)


# --- injected faults in both libraries ------------------------------------------------------------


FAULTS = [
    (("stuck", 1000, 5), "residue", Verdict.FAIL, Action.REPLACE, "test_residue", Scrub.FAILED),
    (("product", 100, 1), "exact_fp16", Verdict.FAIL, Action.REPLACE, "test_exact_fp16", Scrub.CLEAN),
    (("slow", 500), "copy", Verdict.FAIL, Action.INSPECT, "test_copy", Scrub.CLEAN),
    (("slow_pcie", 200), "pcie", Verdict.FAIL, Action.INSPECT, "test_pcie", Scrub.CLEAN),
    (("no_memory",), "residue", Verdict.INCONCLUSIVE, Action.RETRY, "test_residue", Scrub.INCONCLUSIVE),
    (("no_context", 214), "residue", Verdict.FAIL, Action.RESET, "no_context", Scrub.FAILED),
    (("uncorrected", 2), "residue", Verdict.FAIL, Action.DRAIN_AND_RESET, "ecc_standing", Scrub.CLEAN),
    (("remap_pending",), "residue", Verdict.FAIL, Action.DRAIN_AND_RESET, "remap_pending", Scrub.CLEAN),
    (("remap_failed",), "residue", Verdict.FAIL, Action.REPLACE, "remap_failure", Scrub.CLEAN),
    (("sram",), "residue", Verdict.FAIL, Action.REPLACE, "sram_threshold", Scrub.CLEAN),
    (("inforom",), "residue", Verdict.FAIL, Action.INSPECT, "inforom", Scrub.CLEAN),
    (("recovery", 2), "residue", Verdict.FAIL, Action.REBOOT, "recovery_action", Scrub.CLEAN),
    (("throttle", 64), "pcie", Verdict.FAIL, Action.INSPECT, "thermal_throttling", Scrub.CLEAN),
    (("links_down", 3), "pcie", Verdict.DEGRADED, Action.INSPECT, "nvlink_missing", Scrub.CLEAN),
    (("lost",), "residue", Verdict.FAIL, Action.REBOOT, "lost", Scrub.FAILED),
    (("ecc", "count_nonzero"), "residue", Verdict.FAIL, Action.DRAIN_AND_RESET, "xid_48", Scrub.FAILED),
    (("off_the_bus", "count_nonzero"), "residue", Verdict.FAIL, Action.REBOOT, "lost", Scrub.FAILED),
]  # fmt: skip
LEFT = {"slow_pcie", "remap_pending", "remap_failed", "sram", "inforom", "links_down", "off_the_bus"}


@pytest.mark.parametrize(
    ("fault", "plan", "verdict", "action", "found", "scrub"),
    quick_of(
        FAULTS,
        [fault for fault in FAULTS if fault[0][0] not in LEFT],
        "more faults; test_rules_verdict has each verdict",
        several=True,
    ),
    ids=lambda value: str(value[0]) if isinstance(value, tuple) else "",
)
def test_device_faults_fail(
    with_kernels: Make, check: Check, fault: tuple[Any, ...], plan: str, verdict: Verdict, action: Action,
    found: str, scrub: Scrub,
) -> None:  # fmt: skip
    made = with_kernels(570, *KINDS["H100"])
    made.fault(*fault)
    report = check(GPU, plan=[each for each in SHORT if each.name == plan])
    assert (report.verdict, report.action) == (verdict, action), render(report)
    assert found in codes(report), render(report)
    made.mend()
    made.fault(*fault)
    scrubbed = run_scrub(GPU)
    assert scrubbed.verdict == scrub, scrubbed.text


def test_endless_kernel_is_killed_at_its_deadline(with_kernels: Make, check: Check) -> None:
    made = with_kernels(580, *KINDS["H200"])
    made.fault("hang", "count_nonzero")
    report = check(GPU, plan=[Test("residue", "residue", 1.0)])
    assert (report.verdict, report.action, report.exit_code) == (Verdict.HUNG, Action.REBOOT, 5)
    assert run_scrub(GPU, deadline_s=5).verdict == Scrub.HUNG


@pytest.mark.thorough("the rules have quick tests")
def test_silent_nvml_is_detected(with_kernels: Make, check: Check) -> None:
    made = with_kernels(535, *KINDS["A100"])
    report = check(
        GPU,
        plan=[Test("bit_fade", "bit_fade", 30.0, params={"seconds": 20})],
        timing=Timing(term_s=0.3, watcher_silent_s=2, watcher_end_s=2),
        on_progress=lambda progress: made.fault("silent") if progress.phase == "start" else None,
    )
    assert (report.verdict, report.action) == (Verdict.HUNG, Action.REBOOT), render(report)
    assert "nvml_hung" in codes(report)


def test_killed_check_leaves_no_process_on_the_device(with_kernels: Make, check: Check) -> None:
    made = with_kernels(550, *KINDS["H100"])

    def kill(progress: Any) -> None:
        if progress.phase == "result":
            for path in (made.folder / "contexts").iterdir():
                os.kill(int(path.name.rpartition(".")[2]), signal.SIGKILL)

    report = check(GPU, plan=SHORT, on_progress=kill)
    assert (report.verdict, codes(report) >= {"incomplete"}) == (Verdict.INCONCLUSIVE, True), render(report)
    assert check(GPU, plan=SHORT).verdict == Verdict.PASS
