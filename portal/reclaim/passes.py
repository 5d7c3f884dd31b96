"""Applies the reclaim policies: sends and withdraws notices, releases GPUs, and stops workspaces.

Passes can be interrupted and run concurrently: a notice is a row that is written together with its message,
and each stop locks the workspace and decides again.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

from django.db import transaction
from django.db.models import F, Q, TextField
from django.db.models.functions import Cast
from django.utils import timezone
from django.utils.translation import gettext as _

from portal.common.actors import SYSTEM
from portal.common.errors import NotFound, PortalError
from portal.common.events import services as events
from portal.common.events.kinds import AuditKind
from portal.common.formatting import format_day_time
from portal.common.reasons.reason import Reason
from portal.common.reasons.wording import message_of
from portal.quota.ledger.selectors import teams_without_hours
from portal.reclaim import observing, scheduled_starts
from portal.reclaim.codes import LifetimeCode
from portal.reclaim.effective import PolicySet, ScopeKeys, policy_set, scope_keys_of
from portal.reclaim.engine.ladder import (
    RELEASES,
    Cause,
    Notice,
    RunState,
    Step,
    ThresholdReading,
    Verdict,
    decide,
)
from portal.reclaim.engine.terms import Effective
from portal.reclaim.models import Absence, LastPass, ReclaimNotice, ScheduledStop, WorkspaceActivity
from portal.workspaces import gpus, services
from portal.workspaces.ends import shift_ends
from portal.workspaces.lifecycle import State
from portal.workspaces.models import Workspace
from portal.workspaces.stops import StopRule
from portal.workspaces.transitions import lock_workspace

log = logging.getLogger(__name__)

INTERVAL_S = 30.0
MIN_OUTAGE_S = 90.0
"""Minimum gap between passes that counts as an outage. Notices are extended by the gap."""
AT_ONCE = 500
MAX_WARNED = 500
"""Maximum number of warnings per pass, which should take about a second; each warning writes three rows."""
COLUMNS = (
    *("pk", "generation", "ends_version", "ends_at", "lifetime_s", "ready_at"),
    *("pool_id", "template_id", "flavor_id", "team_id", "team__slug", "resources_text"),
    *(f"reclaim_notice__{name}" for name in ("generation", "ends_version", "cause", "warned_at", "due_at")),
    *(
        f"reclaim_activity__{name}"
        for name in ("generation", "observed_at", "idle_s", "gpu_idle_s", "kept_until")
    ),
)
CODES = {
    Cause.LIFETIME: LifetimeCode.ENDS_BY_LIFETIME,
    Cause.GPU_IDLE: LifetimeCode.ENDS_BY_GPU_IDLE,
    Cause.IDLE: LifetimeCode.ENDS_BY_IDLE,
    Cause.LONGEST: LifetimeCode.ENDS_BY_LONGEST,
    Cause.SCHEDULE: LifetimeCode.ENDS_BY_SCHEDULE,
    Cause.BUDGET: LifetimeCode.ENDS_BY_BUDGET,
    Cause.RELEASE: LifetimeCode.RELEASED_BY_IDLE,
    Cause.RELEASE_GPU_IDLE: LifetimeCode.RELEASED_BY_GPU_IDLE,
}


RULES = {
    Cause.LIFETIME: "lifetime_hours",
    Cause.GPU_IDLE: "gpu_idle_s",
    Cause.IDLE: "idle_s",
    Cause.LONGEST: "longest_s",
    Cause.SCHEDULE: "weeks",
    Cause.BUDGET: "stop_when_spent",
    Cause.RELEASE: "release_s",
    Cause.RELEASE_GPU_IDLE: "gpu_idle_s",
}
"""The value of the effective policy behind each cause. A lifetime is in the request itself."""


@dataclass(frozen=True, slots=True)
class PassReport:
    """Number of workspaces warned, with withdrawn notices, stopped, with released GPUs, and started."""

    warned: int = 0
    withdrawn: int = 0
    stopped: int = 0
    released: int = 0
    started: int = 0


@dataclass(frozen=True, slots=True)
class Candidate:
    """The input of a decision: a running workspace, its notice and its activity."""

    pk: UUID
    generation: int
    ends_version: int
    ends_at: datetime | None
    lifetime_s: int | None
    ready_at: datetime | None
    scope_keys: ScopeKeys
    team: str
    notice: Notice | None
    # The last observation and idle seconds of this start.
    observed_at: datetime | None = None
    idle_s: float = 0.0
    gpu_idle_s: float = 0.0
    kept_until: datetime | None = None


def run() -> PassReport:
    """Run one pass over all running workspaces that may be near a threshold."""
    now = timezone.now()
    _extend_for_outage(now)
    steps: dict[Step, list[tuple[Candidate, Verdict]]] = {step: [] for step in Step}
    site = read_pass_context()
    for candidate in candidates(now, site):
        verdict = verdict_of(candidate, now, site)
        steps[verdict.step].append((candidate, verdict))
    withdrawn = _withdraw([candidate for candidate, _verdict in steps[Step.WITHDRAW]])
    # Soonest first. The next pass warns the rest, with the full notice period.
    first = sorted(steps[Step.WARN], key=lambda warning: warning[1].due_at_s or 0.0)[:MAX_WARNED]
    warned = sum(_warn(chunk, now) for chunk in _chunks(first))
    due_ids = [candidate.pk for step in (Step.RELEASE, Step.STOP) for candidate, _verdict in steps[step]]
    taken_steps = [apply_step_if_due(workspace_id) for workspace_id in due_ids]
    started = scheduled_starts.start_due(site.policies, now)
    _delete_stale_notices()
    return PassReport(
        warned, withdrawn, taken_steps.count(Step.STOP), taken_steps.count(Step.RELEASE), started
    )


@dataclass(frozen=True, slots=True)
class PassContext:
    """Common input of all decisions of a pass: policies, teams without GPU-hours, and gaps."""

    policies: PolicySet
    spent: frozenset[str]
    absences: tuple[tuple[datetime, float], ...]

    def began_s(self, ready_at: datetime) -> float:
        """Return the start of a workspace, moved forward by gaps in observation."""
        return ready_at.timestamp() + sum(seconds for since, seconds in self.absences if since >= ready_at)


def read_pass_context() -> PassContext:
    """Read the current values, with three small queries."""
    policies = policy_set()
    spent = frozenset(teams_without_hours()) if policies.earliest_thresholds.budget else frozenset()
    return PassContext(policies, spent, tuple(Absence.objects.values_list("since", "seconds")))


def candidates(now: datetime, site: PassContext) -> Iterable[Candidate]:
    """Yield running workspaces near their end, idle for long, or under notice."""
    thresholds = site.policies.earliest_thresholds
    near = Q(ends_at__lte=now + timedelta(seconds=thresholds.notice_s)) | Q(reclaim_notice__isnull=False)
    if thresholds.idle_s is not None:
        near |= Q(reclaim_activity__idle_s__gte=thresholds.idle_s)
    if thresholds.gpu_idle_s is not None:
        near |= Q(reclaim_activity__gpu_idle_s__gte=thresholds.gpu_idle_s)
    if thresholds.life_s is not None:
        # After the clock was set back, a start was earlier than its row says.
        back_s = sum(seconds for _since, seconds in site.absences if seconds < 0)
        near |= Q(ready_at__lte=now - timedelta(seconds=thresholds.life_s + back_s))
    if site.spent:
        near |= Q(team__slug__in=site.spent)
    rows = Workspace.objects.filter(near, state=State.RUNNING).annotate(
        resources_text=Cast("resources", TextField())
    )
    for (
        *own,
        pool,
        template,
        flavor,
        team_id,
        team,
        resources,
        notice_generation,
        notice_version,
        cause,
        warned_at,
        due_at,
        seen_generation,
        observed_at,
        idle_s,
        gpu_idle_s,
        kept_until,
    ) in rows.values_list(*COLUMNS).iterator(chunk_size=2000):
        pk, generation, ends_version, ends_at, lifetime_s, ready_at = own
        scope_keys = ScopeKeys(pool, template, flavor, team_id, observing.is_accelerated(resources))
        notice = None
        if notice_generation == generation and notice_version == ends_version:
            notice = Notice(Cause(cause), warned_at.timestamp(), due_at.timestamp())
        candidate = Candidate(
            pk, generation, ends_version, ends_at, lifetime_s, ready_at, scope_keys, team, notice
        )
        if seen_generation == generation:
            candidate = replace(
                candidate,
                observed_at=observed_at,
                idle_s=idle_s,
                gpu_idle_s=gpu_idle_s,
                kept_until=kept_until,
            )
        yield candidate


def candidate_of(workspace: Workspace, activity: observing.ObservedActivity | None) -> Candidate:
    """Return the candidate for one running workspace, with its current activity."""
    row: ReclaimNotice | None = ReclaimNotice.objects.filter(workspace=workspace.pk).first()
    holds = row is not None and (row.generation, row.ends_version) == (
        workspace.generation,
        workspace.ends_version,
    )
    current = activity if activity is not None and activity.generation == workspace.generation else None
    return Candidate(
        pk=workspace.pk,
        generation=workspace.generation,
        ends_version=workspace.ends_version,
        ends_at=workspace.runs_until,
        lifetime_s=workspace.lifetime_s,
        ready_at=workspace.ready_at,
        scope_keys=scope_keys_of(workspace),
        team=workspace.team.slug,
        notice=Notice(Cause(row.cause), row.warned_at.timestamp(), row.due_at.timestamp())
        if row is not None and holds
        else None,
        observed_at=current.observed_at if current is not None else None,
        idle_s=current.idle_s if current is not None else 0.0,
        gpu_idle_s=current.gpu_idle_s if current is not None else 0.0,
        kept_until=current.kept_until if current is not None else None,
    )


def verdict_of(candidate: Candidate, now: datetime, site: PassContext) -> Verdict:
    """Return the step that is due for a running workspace."""
    rules = site.policies.policy(candidate.scope_keys)
    return decide(run_state_of(candidate, now, site), rules, candidate.notice, now.timestamp())


def run_state_of(candidate: Candidate, now: datetime, site: PassContext) -> RunState:
    """Return the engine's input. Idle times are unknown without a recent observation."""
    seen_at, kept_until, ready_at = candidate.observed_at, candidate.kept_until, candidate.ready_at
    is_fresh = seen_at is not None and observing.is_fresh(seen_at, now)
    accelerated = candidate.scope_keys.accelerated
    return RunState(
        ends_at_s=candidate.ends_at.timestamp() if candidate.ends_at is not None else None,
        lifetime_s=candidate.lifetime_s,
        idle_s=candidate.idle_s if is_fresh else None,
        gpu_idle_s=candidate.gpu_idle_s if is_fresh and accelerated else None,
        kept_until_s=kept_until.timestamp() if kept_until is not None else None,
        began_s=site.began_s(ready_at) if ready_at is not None else None,
        spent=accelerated and candidate.team in site.spent,
    )


def reason_of_stop(verdict: Verdict) -> Reason:
    """Return the reason for a stop: the value that has reached its threshold."""
    reading: ThresholdReading = next(entry for entry in verdict.readings if entry.cause == verdict.cause)
    return Reason(
        CODES[reading.cause], {"value_s": round(reading.value_s), "threshold_s": round(reading.threshold_s)}
    )


def rule_of(verdict: Verdict, effective: Effective) -> StopRule:
    """Return the policy value that stops a workspace, and the policy that sets it."""
    assert verdict.cause is not None
    name = RULES[verdict.cause]
    sources = effective.sources.get(name, ())
    return StopRule(name, ", ".join(source.key for source in sources) or "request")


def _extend_for_outage(now: datetime) -> None:
    """Extend all ends and notices by a gap between passes, in which users could not extend them either.

    A change of the clock looks the same. After the clock was set back, ends are moved back too.
    """
    with transaction.atomic():
        last, new = LastPass.objects.select_for_update().get_or_create(pk=1, defaults={"at": now})
        if new:
            return
        away = now - last.at
        if not 0 <= away.total_seconds() <= MIN_OUTAGE_S:
            log.warning(
                "no reclaim pass for %d s, or the clock was changed; stopping nothing for that time",
                away.total_seconds(),
            )
            ReclaimNotice.objects.update(due_at=F("due_at") + away)
            WorkspaceActivity.objects.filter(kept_until__isnull=False).update(
                kept_until=F("kept_until") + away
            )
            shift_ends(away)
            if away < timedelta(0):
                # Move stops that would be in the future, so that the time since them is unchanged.
                ScheduledStop.objects.update(stopped_at=F("stopped_at") + away)
            Absence.objects.create(since=last.at, seconds=away.total_seconds())
        LastPass.objects.filter(pk=1).update(at=now)


def _chunks(items: Sequence[Any]) -> Iterable[Sequence[Any]]:
    return (items[first : first + AT_ONCE] for first in range(0, len(items), AT_ONCE))


def _withdraw(unjustified: Sequence[Candidate]) -> int:
    """Delete notices that no longer apply, and return their number. Newer notices of a workspace stay."""
    deleted = 0
    for chunk in _chunks(unjustified):
        warned_at_s = {
            candidate.pk: candidate.notice.warned_at_s for candidate in chunk if candidate.notice is not None
        }
        rows = ReclaimNotice.objects.filter(workspace__in=warned_at_s)
        by_moment: dict[datetime, list[UUID]] = {}
        for pk, warned_at in rows.values_list("workspace_id", "warned_at"):
            if warned_at.timestamp() == warned_at_s[pk]:
                by_moment.setdefault(warned_at, []).append(pk)
        for warned_at, pks in by_moment.items():
            deleted += ReclaimNotice.objects.filter(workspace__in=pks, warned_at=warned_at).delete()[0]
    return deleted


@transaction.atomic
def _warn(due: Sequence[tuple[Candidate, Verdict]], now: datetime) -> int:
    """Write notices, each together with its message and audit entry. Returns their number."""
    # Lock the rows, so that a concurrent extension has either committed or will withdraw the notice.
    workspaces = {
        workspace.pk: workspace
        for workspace in Workspace.objects.select_for_update(of=("self",))
        .filter(pk__in=[candidate.pk for candidate, _verdict in due], state=State.RUNNING)
        .select_related("owner")
        .only(
            *("name", "state", "generation", "ends_version", "team_id"),
            *("owner__username", "owner__is_active", "owner__email", "owner__mail_notices"),
        )
        .order_by("pk")
    }
    # Replace outdated notices.
    ReclaimNotice.objects.filter(workspace__in=workspaces).exclude(
        generation=F("workspace__generation"), ends_version=F("workspace__ends_version")
    ).delete()
    existing = set(
        ReclaimNotice.objects.filter(workspace__in=workspaces).values_list("workspace_id", flat=True)
    )
    rows = []
    for candidate, verdict in due:
        workspace = workspaces.get(candidate.pk)
        if workspace is None or workspace.pk in existing:
            continue
        version = (workspace.generation, workspace.ends_version)
        if version != (candidate.generation, candidate.ends_version):
            continue
        assert verdict.due_at_s is not None
        assert verdict.cause is not None
        rows.append(
            ReclaimNotice(
                workspace=workspace,
                generation=workspace.generation,
                ends_version=workspace.ends_version,
                cause=verdict.cause,
                warned_at=now,
                due_at=datetime.fromtimestamp(verdict.due_at_s, UTC),
                reason=reason_of_stop(verdict).as_json(),
            )
        )
    ReclaimNotice.objects.bulk_create(rows)
    _notify(rows)
    events.record_all(
        actor=SYSTEM,
        kind=AuditKind.WORKSPACE_RECLAIM_WARNED,
        entries=[
            (
                row.workspace,
                f"announced the {'release of GPUs' if row.cause in RELEASES else 'stop of the workspace'} on "
                f"{format_day_time(row.due_at)}",
            )
            for row in rows
        ],
    )
    return len(rows)


def _notify(rows: Sequence[ReclaimNotice]) -> None:
    events.notify_each(
        kind="workspace.reclaim_warned",
        notes=[
            events.Note(
                user=row.workspace.owner,
                title=(
                    _("%(name)s releases its GPUs on %(time)s")
                    if row.cause in RELEASES
                    else _("%(name)s stops on %(time)s")
                )
                % {"name": row.workspace.name, "time": format_day_time(row.due_at)},
                body=_text_of_notice(Cause(row.cause)) % {"why": message_of(Reason.from_json(row.reason))},
                url=f"/workspaces/{row.workspace_id}/",
            )
            for row in rows
        ],
    )


def _text_of_notice(cause: Cause) -> str:
    """Return what happens, and how the user can prevent it. `%(why)s` is the reason."""
    if cause in RELEASES:
        return _("%(why)s The app restarts without GPUs. Kernels lose their variables; files are kept.")
    if cause is Cause.BUDGET:
        return _("%(why)s Files are kept. Request more GPU-hours to keep it running.")
    if cause is Cause.LONGEST:
        return _("%(why)s Files are kept.")
    return _("%(why)s Files are kept. Open its page to keep or extend it.")


def apply_step_if_due(workspace_id: UUID) -> Step | None:
    """Stop a workspace or release its GPUs if that is still due once locked. Returns the step, or None."""
    try:
        with transaction.atomic():
            workspace = lock_workspace(workspace_id)
            if workspace.state != State.RUNNING:
                return None
            # Includes the latest report, so that a workspace that is used again is not stopped.
            candidate = candidate_of(workspace, observing.current_activity(workspace))
            site = read_pass_context()
            verdict = verdict_of(candidate, timezone.now(), site)
            if verdict.step not in (Step.RELEASE, Step.STOP):
                return None
            reason = reason_of_stop(verdict)
            ReclaimNotice.objects.filter(workspace=workspace_id).delete()
            if verdict.step is Step.RELEASE and _release_gpus(workspace, reason):
                return Step.RELEASE
            rule = rule_of(verdict, site.policies.effective(scope_keys_of(workspace)))
            services.stop(actor=SYSTEM, workspace_id=workspace_id, cause=reason, rule=rule)
            if verdict.cause is Cause.SCHEDULE:
                scheduled_starts.record_scheduled_stop(workspace)
            _notify_stopped(workspace, reason)
            return Step.STOP
    except (NotFound, PortalError):
        log.info("did not stop workspace %s: it changed meanwhile", workspace_id)
        return None
    except Exception:
        # A failure must not block other workspaces; the next pass retries.
        log.exception("could not stop workspace %s", workspace_id)
        return None


def _release_gpus(workspace: Workspace, reason: Reason) -> bool:
    """Release GPUs and notify the user. Returns False if the workspace cannot continue without GPUs."""
    try:
        with transaction.atomic():
            gpus.release(actor=SYSTEM, workspace_id=workspace.pk, cause=reason)
    except PortalError as error:
        log.info("stopping workspace %s, which cannot run without GPUs: %s", workspace.pk, error)
        return False
    events.notify(
        [workspace.owner],
        kind="workspace.gpu_released",
        title=_("GPUs of %(name)s released") % {"name": workspace.name},
        body=_("%(why)s The app restarts without GPUs. Files are kept. Attach GPUs again on its page.")
        % {"why": message_of(reason)},
        url=f"/workspaces/{workspace.pk}/",
    )
    return True


def _notify_stopped(workspace: Workspace, reason: Reason) -> None:
    events.notify(
        [workspace.owner],
        kind="workspace.reclaimed",
        title=_("%(name)s was stopped") % {"name": workspace.name},
        body=_("%(why)s Files are kept. Start the workspace when you need it.") % {"why": message_of(reason)},
        url=f"/workspaces/{workspace.pk}/",
    )


def _delete_stale_notices() -> None:
    """Delete notices of workspaces that no longer run or have been restarted."""
    ReclaimNotice.objects.filter(
        ~Q(workspace__state=State.RUNNING) | ~Q(generation=F("workspace__generation"))
    ).delete()
