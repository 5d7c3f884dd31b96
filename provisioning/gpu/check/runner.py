"""Run a check: a child that uses the device, a watcher of NVML, deadlines, and one report at the end.

`run_check` never raises and never hangs: it returns a report whatever a process or driver does.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path

from provisioning.gpu.check import second_look, verdict
from provisioning.gpu.check.plan import DEADLINE_S, JOINT_DEADLINE_S, PAIR_DEADLINE_S, Test
from provisioning.gpu.check.process import python, reap_abandoned
from provisioning.gpu.check.report import Report, summarise, summary_of
from provisioning.gpu.check.session import Check, Simulation, Timing
from provisioning.gpu.check.turns import folder
from provisioning.gpu.check.types import (
    Action,
    Finding,
    Level,
    Progress,
    Rendezvous,
    Severity,
    TestResult,
    Verdict,
)


def run_check(
    uuid: str,
    level: str,
    *,
    baseline: Mapping[str, float] | None = None,
    node_median: Mapping[str, float] | None = None,
    baseline_of: str = "",
    on_progress: Callable[[Progress], object] | None = None,
    deadline_s: float | None = None,
    peers: Sequence[str] = (),
    peers_required: bool = True,
    meeting: Rendezvous | None = None,
    joint: bool = False,
    simulation: Simulation | None = None,
    child: Sequence[str] = (),
    watcher: Sequence[str] = (),
    timing: Timing | None = None,
    plan: Sequence[Test] | None = None,
    turns: Path | None = None,
) -> Report:
    """Check one device or MIG instance and return a report.

    `level`: quick, standard, extended. `baseline` and `node_median` are `Report.measures` of earlier passes
    of this device (or model), and the median of its neighbours. `baseline_of` is the `Report.software_key` of
    both; with another key they are ignored. `peers`: UUIDs of idle devices whose links are measured (standard
    and extended); without `peers_required` a missing measurement is accepted. `meeting`: test only the link
    to another node, whose check connects to the same rendezvous. `joint`: test only the device and all
    `peers` under load at once. `deadline_s`: limit for the whole check, after which it is aborted. The other
    parameters are for tests.

    Values below their floor are measured again, alone on this node, before they count. Blocks until the
    report is complete; two devices can be checked from two threads. Only `KeyboardInterrupt` and similar
    propagate, after all processes have ended.
    """
    reap_abandoned()
    started = datetime.now(UTC)
    try:
        requested_level = Level(level)
    except ValueError:
        return _refusal(uuid, started, f"Unknown level {level!r}. Use quick, standard or extended.")
    if turns is None and simulation is None:
        turns = folder()
    whole_s = (
        PAIR_DEADLINE_S if meeting is not None else JOINT_DEADLINE_S if joint else DEADLINE_S[requested_level]
    )
    until = time.monotonic() + (deadline_s or whole_s)

    def run_tests(
        tests_to_run: Sequence[Test] | None, *, alone: bool
    ) -> tuple[Check, tuple[TestResult, ...], list[Finding]]:
        check = Check(
            uuid, requested_level,
            peers=tuple(peers), peers_required=peers_required, meeting=meeting, joint=joint,
            deadline_s=max(0.0, until - time.monotonic()), on_progress=on_progress, simulation=simulation,
            child=child or python("provisioning.gpu.check.child"),
            watcher=watcher or python("provisioning.gpu.check.watch"),
            timing=timing or Timing(), plan=tests_to_run, last=baseline,
            turns=turns, alone=alone,
        )  # fmt: skip
        return check, *_run(check, baseline, node_median, baseline_of)

    check, tests, findings = run_tests(plan, alone=False)
    state = check.state
    if turns is not None and (names := second_look.repeatable_tests(tests, findings)):
        second_check, tests_alone, found_alone = run_tests(
            [t for t in state.plan if t.name in names], alone=True
        )
        tests = second_look.merge_results(tests, tests_alone, names)
        findings = list(second_look.findings_of_both(findings, found_alone, verdict.of_tests(tests)))
        state.after, state.abandoned = (
            second_check.state.after,
            state.abandoned or second_check.state.abandoned,
        )
        state.xids += second_check.state.xids
    simulated = simulation is not None
    if state.unavailable is not None:
        decided, action = Verdict.INCONCLUSIVE, Action.INSPECT
        summary = state.unavailable.text
    else:
        decided, action = verdict.decide(findings, tests, simulated=simulated)
        summary = summary_of(decided, findings, tests, simulated)
    check.report_progress(Progress("end", done=len(state.results), total=len(state.plan), text=summary))
    return Report(
        uuid=uuid, level=requested_level, verdict=decided, action=action, summary=summary,
        findings=tuple(findings), tests=tests, started_at=started, finished_at=datetime.now(UTC),
        nonce=state.nonce, simulated=simulated, abandoned=state.abandoned, unavailable=state.unavailable,
        facts=state.facts if state.before is not None else None,
        health_before=state.before, health_after=state.after, samples=summarise(state.samples),
        xids=tuple(state.xids), software=state.software,
    )  # fmt: skip


def _run(
    check: Check,
    baseline: Mapping[str, float] | None,
    node_median: Mapping[str, float] | None,
    baseline_of: str,
) -> tuple[tuple[TestResult, ...], list[Finding]]:
    """Run a check and judge it; unexpected errors become findings."""
    try:
        check.run()
    except Exception as error:
        text = f"The check failed with an unexpected error: {type(error).__name__}: {error}"[:500]
        check.state.findings.append(Finding("internal", Severity.INCONCLUSIVE, text, Action.INSPECT))
    try:
        return check.judge(baseline, node_median, baseline_of)
    except Exception as error:
        text = f"The results could not be evaluated: {type(error).__name__}: {error}"[:500]
        unjudged = Finding("internal", Severity.INCONCLUSIVE, text, Action.INSPECT)
        return (), [*check.state.findings, unjudged]


def _refusal(uuid: str, started: datetime, text: str) -> Report:
    finding = Finding("usage", Severity.INCONCLUSIVE, text, Action.NONE)
    return Report(
        uuid=uuid, level=Level.QUICK, verdict=Verdict.INCONCLUSIVE, action=Action.NONE, summary=text,
        findings=(finding,), tests=(), started_at=started, finished_at=datetime.now(UTC),
        nonce=secrets.token_hex(16),
    )  # fmt: skip
