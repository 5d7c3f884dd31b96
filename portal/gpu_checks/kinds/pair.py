"""Runs of a link check between two nodes, and their combined result."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from django.urls import reverse
from django.utils.translation import gettext

from portal.common.reasons.reason import Reason
from portal.common.reasons.wording import message_of
from portal.fleet.inventory.cordons import display_name, notify_operators
from portal.fleet.inventory.models import CordonCause
from portal.gpu_checks import report_reader, runs
from portal.gpu_checks.codes import CheckCode
from portal.gpu_checks.kinds.judged import JudgedHandler
from portal.gpu_checks.kinds.looks import RepeatForm
from portal.gpu_checks.models import CheckKind, CheckVerdict, GpuCheckRun, RunState
from portal.gpu_checks.report_reader import RunResult
from provisioning import messages
from provisioning.check_messages import CheckAnswer, CheckCommand
from provisioning.gpu.check.plan import PAIR_DEADLINE_S
from provisioning.gpu.check.types import Rendezvous

TEST = "two_nodes"
_ORDER = (CheckVerdict.PASS, CheckVerdict.DEGRADED, CheckVerdict.INCONCLUSIVE)
"""Possible results for a link, best first."""
_STEPS: Mapping[str, str] = {
    CheckVerdict.PASS: "passed",
    CheckVerdict.DEGRADED: "degraded",
    CheckVerdict.FAIL: "failed",
    CheckVerdict.HUNG: "hung",
}


class PairHandler(JudgedHandler):
    """One of the two runs of a link check; its `partner` is the run on the other node.

    The run neither proves a device nor sets warnings, because either node may have the fault. Only the
    driver's own errors about the device cordon it.
    """

    kind = CheckKind.PAIR
    noun = "link check"
    cordon_cause = CordonCause.CHECK
    trend_kind = CheckKind.PAIR

    def deadline_s(self, run: GpuCheckRun) -> float:
        return PAIR_DEADLINE_S

    def complete(self, command: CheckCommand, run: GpuCheckRun) -> CheckCommand:
        return replace(command, meeting=messages.load(run.plan["meeting"], Rendezvous))

    def repeatable(self, run: GpuCheckRun) -> bool:
        # The other end no longer waits after that time.
        return False

    def read(self, answer: CheckAnswer, run: GpuCheckRun) -> RunResult:
        return report_reader.read_check(answer, run)

    def apply_result(self, run: GpuCheckRun, reading: RunResult) -> None:
        name, other_end = (
            display_name(run.device),
            run.partner.device.node.name if run.partner else "another node",
        )
        step = _STEPS.get(reading.verdict, "inconclusive")
        runs.record(run, run.device, step, f"checked the link of {name} to {other_end}: {run.summary}")
        if reading.verdict in (CheckVerdict.FAIL, CheckVerdict.HUNG):
            self.cordon(run.device, run.summary, reading.action)
        _conclude(run)

    def handle_loss(self, run: GpuCheckRun, reason: str) -> None:
        _conclude(run)

    def title(self, run: GpuCheckRun) -> str:
        if run.partner is None:
            return self.label(run)
        return gettext("Link to %(node)s") % {"node": run.partner.device.node.name}

    def repeat(self, run: GpuCheckRun) -> RepeatForm | None:
        if run.partner is None:
            return None
        return RepeatForm(
            url=reverse("gpu_checks:check-link", args=[run.device.node_id]),
            name="with_node",
            value=str(run.partner.device.node_id),
            label=gettext("Check again"),
        )


def _conclude(run: GpuCheckRun) -> None:
    """Conclude a link check once both locked runs have ended. Both get the worse result."""
    other = run.partner
    if other is None or run.open:
        return
    if other.open:
        if other.state == RunState.QUEUED and not other.lease:
            # The other run is still queued, and its partner would be gone when it starts.
            _end_unstarted(other, run)
        return
    for this_end, other_end in ((run, other), (other, run)):
        _lift(this_end, other_end)
    _notify(run, other)


def _end_unstarted(run: GpuCheckRun, ended: GpuCheckRun) -> None:
    summary = message_of(Reason(CheckCode.LINK_OTHER_END, {"node": ended.device.node.name}))
    runs.close(run, RunState.LOST, summary=summary)
    message = f"did not start the link check of {display_name(run.device)}: {summary}"
    runs.record(run, run.device, "lost", message)


def _lift(run: GpuCheckRun, other_end: GpuCheckRun) -> None:
    """Change the result of a run to that of the other end, if that one is worse."""
    if run.state != RunState.DONE or run.verdict not in _ORDER:
        return
    # A fault of the other end's own device says nothing about the link.
    seen = other_end.verdict if other_end.verdict in _ORDER else CheckVerdict.INCONCLUSIVE
    if _ORDER.index(CheckVerdict(seen)) <= _ORDER.index(CheckVerdict(run.verdict)):
        return
    run.summary = message_of(
        Reason(
            CheckCode.LINK_OTHER_END_SAYS, {"node": other_end.device.node.name, "words": other_end.summary}
        )
    )[:2000]
    run.verdict, run.recovery = seen, other_end.recovery or "retry"
    run.save(update_fields=["verdict", "recovery", "summary"])


def _notify(run: GpuCheckRun, other: GpuCheckRun) -> None:
    """Send one notification for both ends if the link has a problem."""
    both = sorted((run, other), key=lambda end: end.plan.get("meeting", {}).get("rank", 0))
    verdicts = {end.verdict for end in both}
    if verdicts == {CheckVerdict.PASS}:
        return
    names = [end.device.node.name for end in both]
    wrong = {end.device.node.name: wrong_words(end) for end in both}
    faulty = [name for name in names if wrong[name]]
    if len(faulty) == 2:
        code = CheckCode.LINK_WRONG_AT_BOTH
    elif faulty and all(errors is not None for errors in wrong.values()):
        code = CheckCode.LINK_WRONG_AT_ONE
    else:
        code = CheckCode.LINK_NOT_AS_IT_SHOULD_BE
    first = next((end for end in both if end.verdict != CheckVerdict.PASS), both[0])
    node = faulty[0] if faulty else names[0]
    other_end = names[1] if node == names[0] else names[0]
    body = message_of(Reason(code, {"node": node, "other": other_end, "words": first.summary}))
    degraded = CheckVerdict.DEGRADED in verdicts
    outcome = "is degraded" if degraded else "could not be checked"
    kind = "device.pair_degraded" if degraded else "device.pair_inconclusive"
    notify_operators(first.device, kind, f"The link between {names[0]} and {names[1]} {outcome}", body)


def wrong_words(run: GpuCheckRun) -> int | None:
    """Return the number of wrong words at this end, or `None` if nothing was compared."""
    report = run.report if isinstance(run.report, dict) else {}
    tests: Iterable[Any] = report.get("tests") or ()
    return next((test.get("errors") for test in tests if test.get("name") == TEST), None)
