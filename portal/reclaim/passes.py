"""Walks the ladder for all workspaces: gives notices, takes them back, releases GPUs and stops what is due.

It may be killed at any moment and be done twice at a time: a notice is a row, given together with its
message or not at all, and who stops a workspace holds its lock and looks again.
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
from portal.reclaim import mornings, observing
from portal.reclaim.codes import LifetimeCode
from portal.reclaim.effective import Book, Place, book, place_of
from portal.reclaim.engine.ladder import RELEASES, Cause, Held, Notice, Standing, Step, Verdict, decide
from portal.reclaim.models import Absence, LastPass, ReclaimNotice, ScheduledStop, WorkspaceActivity
from portal.workspaces import gpus, services
from portal.workspaces.ends import shift_ends
from portal.workspaces.lifecycle import State
from portal.workspaces.models import Workspace
from portal.workspaces.transitions import locked

log = logging.getLogger(__name__)

INTERVAL_S = 30.0
AWAY_S = 90.0
"""After so long without a pass the portal counts as away: notices are longer by that time."""
AT_ONCE = 500
MAX_WARNED = 500
"""Of one pass, which so ends in a second: three rows are written for each."""
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


@dataclass(frozen=True, slots=True)
class Passed:
    """How many workspaces were warned, left alone again, stopped, went on without GPUs, and were started."""

    warned: int = 0
    withdrawn: int = 0
    stopped: int = 0
    released: int = 0
    started: int = 0


@dataclass(frozen=True, slots=True)
class Candidate:
    """What a decision needs to know of a running workspace, its notice and its activity."""

    pk: UUID
    generation: int
    ends_version: int
    ends_at: datetime | None
    lifetime_s: int | None
    ready_at: datetime | None
    place: Place
    team: str
    notice: Notice | None
    # Of this start: when it was looked at, and for how long it did nothing.
    observed_at: datetime | None = None
    idle_s: float = 0.0
    gpu_idle_s: float = 0.0
    kept_until: datetime | None = None


def run() -> Passed:
    """One pass over all that runs and may be near a threshold."""
    now = timezone.now()
    _make_up_for_absence(now)
    steps: dict[Step, list[tuple[Candidate, Verdict]]] = {step: [] for step in Step}
    site = present_site()
    for candidate in candidates(now, site):
        verdict = verdict_of(candidate, now, site)
        steps[verdict.step].append((candidate, verdict))
    withdrawn = _withdraw([candidate for candidate, _verdict in steps[Step.WITHDRAW]])
    # The soonest first. Who has to wait for the next pass has the whole notice then.
    first = sorted(steps[Step.WARN], key=lambda each: each[1].due_at_s or 0.0)[:MAX_WARNED]
    warned = sum(_warn(chunk, now) for chunk in _chunks(first))
    due = [candidate.pk for step in (Step.RELEASE, Step.STOP) for candidate, _verdict in steps[step]]
    done = [take_if_due(workspace_id) for workspace_id in due]
    started = mornings.start_due(site.book, now)
    _forget_strays()
    return Passed(warned, withdrawn, done.count(Step.STOP), done.count(Step.RELEASE), started)


@dataclass(frozen=True, slots=True)
class Site:
    """What holds for all decisions of a pass: policies, teams whose GPU-hours are spent, and absences."""

    book: Book
    spent: frozenset[str]
    absences: tuple[tuple[datetime, float], ...]

    def began_s(self, ready_at: datetime) -> float:
        """Since when one that became ready then runs, without the time in which nobody looked."""
        return ready_at.timestamp() + sum(seconds for since, seconds in self.absences if since >= ready_at)


def present_site() -> Site:
    """As it is now; three queries of few rows."""
    policies = book()
    spent = frozenset(teams_without_hours()) if policies.nearest.budget else frozenset()
    return Site(policies, spent, tuple(Absence.objects.values_list("since", "seconds")))


def candidates(now: datetime, site: Site) -> Iterable[Candidate]:
    """What runs and is near its end, was idle for long or has a notice: with all that a decision needs."""
    nearest = site.book.nearest
    near = Q(ends_at__lte=now + timedelta(seconds=nearest.notice_s)) | Q(reclaim_notice__isnull=False)
    if nearest.idle_s is not None:
        near |= Q(reclaim_activity__idle_s__gte=nearest.idle_s)
    if nearest.gpu_idle_s is not None:
        near |= Q(reclaim_activity__gpu_idle_s__gte=nearest.gpu_idle_s)
    if nearest.life_s is not None:
        # A clock that was put back makes a life begin earlier than its row says.
        back_s = sum(seconds for _since, seconds in site.absences if seconds < 0)
        near |= Q(ready_at__lte=now - timedelta(seconds=nearest.life_s + back_s))
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
        place = Place(pool, template, flavor, team_id, observing.is_accelerated(resources))
        notice = None
        if notice_generation == generation and notice_version == ends_version:
            notice = Notice(Cause(cause), warned_at.timestamp(), due_at.timestamp())
        candidate = Candidate(
            pk, generation, ends_version, ends_at, lifetime_s, ready_at, place, team, notice
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


def candidate_of(workspace: Workspace, activity: observing.Activity | None) -> Candidate:
    """The same of one running workspace, with what `observing.present` knows of it."""
    row: ReclaimNotice | None = ReclaimNotice.objects.filter(workspace=workspace.pk).first()
    holds = row is not None and (row.generation, row.ends_version) == (
        workspace.generation,
        workspace.ends_version,
    )
    known = activity if activity is not None and activity.generation == workspace.generation else None
    return Candidate(
        pk=workspace.pk,
        generation=workspace.generation,
        ends_version=workspace.ends_version,
        ends_at=workspace.runs_until,
        lifetime_s=workspace.lifetime_s,
        ready_at=workspace.ready_at,
        place=place_of(workspace),
        team=workspace.team.slug,
        notice=Notice(Cause(row.cause), row.warned_at.timestamp(), row.due_at.timestamp())
        if row is not None and holds
        else None,
        observed_at=known.observed_at if known is not None else None,
        idle_s=known.idle_s if known is not None else 0.0,
        gpu_idle_s=known.gpu_idle_s if known is not None else 0.0,
        kept_until=known.kept_until if known is not None else None,
    )


def verdict_of(candidate: Candidate, now: datetime, site: Site) -> Verdict:
    """What is due for a running workspace."""
    rules = site.book.policy(candidate.place)
    return decide(standing_of(candidate, now, site), rules, candidate.notice, now.timestamp())


def standing_of(candidate: Candidate, now: datetime, site: Site) -> Standing:
    """How it stands, as the engine wants to know it. Of idleness nothing is known where nobody has looked."""
    seen_at, kept_until, ready_at = candidate.observed_at, candidate.kept_until, candidate.ready_at
    known = seen_at is not None and observing.is_fresh(seen_at, now)
    accelerated = candidate.place.accelerated
    return Standing(
        ends_at_s=candidate.ends_at.timestamp() if candidate.ends_at is not None else None,
        lifetime_s=candidate.lifetime_s,
        idle_s=candidate.idle_s if known else None,
        gpu_idle_s=candidate.gpu_idle_s if known and accelerated else None,
        kept_until_s=kept_until.timestamp() if kept_until is not None else None,
        began_s=site.began_s(ready_at) if ready_at is not None else None,
        spent=accelerated and candidate.team in site.spent,
    )


def reason_of_stop(verdict: Verdict) -> Reason:
    """Why it is stopped: the value that has come to its threshold."""
    held: Held = next(each for each in verdict.held if each.cause == verdict.cause)
    return Reason(CODES[held.cause], {"value_s": round(held.value_s), "threshold_s": round(held.threshold_s)})


def _make_up_for_absence(now: datetime) -> None:
    """Move every end and notice by the time in which nobody looked: nobody could extend anything either.

    A clock that was set looks the same, and after one that was put back they would come too late.
    """
    with transaction.atomic():
        last, new = LastPass.objects.select_for_update().get_or_create(pk=1, defaults={"at": now})
        if new:
            return
        away = now - last.at
        if not 0 <= away.total_seconds() <= AWAY_S:
            log.warning("no pass for %d s, or the clock was set: nothing ends for that", away.total_seconds())
            ReclaimNotice.objects.update(due_at=F("due_at") + away)
            WorkspaceActivity.objects.filter(kept_until__isnull=False).update(
                kept_until=F("kept_until") + away
            )
            shift_ends(away)
            if away < timedelta(0):
                # What was stopped later than now is stopped as long ago as it was.
                ScheduledStop.objects.update(stopped_at=F("stopped_at") + away)
            Absence.objects.create(since=last.at, seconds=away.total_seconds())
        LastPass.objects.filter(pk=1).update(at=now)


def _chunks(items: Sequence[Any]) -> Iterable[Sequence[Any]]:
    return (items[first : first + AT_ONCE] for first in range(0, len(items), AT_ONCE))


def _withdraw(found: Sequence[Candidate]) -> int:
    """Delete notices of which nothing holds any more. A newer one of the same workspace stays."""
    gone = 0
    for chunk in _chunks(found):
        told = {
            candidate.pk: candidate.notice.warned_at_s for candidate in chunk if candidate.notice is not None
        }
        rows = ReclaimNotice.objects.filter(workspace__in=told)
        by_moment: dict[datetime, list[UUID]] = {}
        for pk, warned_at in rows.values_list("workspace_id", "warned_at"):
            if warned_at.timestamp() == told[pk]:
                by_moment.setdefault(warned_at, []).append(pk)
        for warned_at, pks in by_moment.items():
            gone += ReclaimNotice.objects.filter(workspace__in=pks, warned_at=warned_at).delete()[0]
    return gone


@transaction.atomic
def _warn(found: Sequence[tuple[Candidate, Verdict]], now: datetime) -> int:
    """Give notices, each together with its message and its entry in the audit log."""
    # Locked, so that who extends it at this moment has done so before, or takes the notice back.
    workspaces = {
        workspace.pk: workspace
        for workspace in Workspace.objects.select_for_update(of=("self",))
        .filter(pk__in=[candidate.pk for candidate, _verdict in found], state=State.RUNNING)
        .select_related("owner")
        .only(
            *("name", "state", "generation", "ends_version", "team_id"),
            *("owner__username", "owner__is_active", "owner__email", "owner__mail_notices"),
        )
        .order_by("pk")
    }
    # An overtaken one makes place.
    ReclaimNotice.objects.filter(workspace__in=workspaces).exclude(
        generation=F("workspace__generation"), ends_version=F("workspace__ends_version")
    ).delete()
    there = set(ReclaimNotice.objects.filter(workspace__in=workspaces).values_list("workspace_id", flat=True))
    rows = []
    for candidate, verdict in found:
        workspace = workspaces.get(candidate.pk)
        if workspace is None or workspace.pk in there:
            continue
        said = (workspace.generation, workspace.ends_version)
        if said != (candidate.generation, candidate.ends_version):
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
    _tell(rows)
    events.record_all(
        actor=SYSTEM,
        kind=AuditKind.WORKSPACE_RECLAIM_WARNED,
        entries=[
            (
                row.workspace,
                f"{'releases its GPUs' if row.cause in RELEASES else 'stops it'} on "
                f"{format_day_time(row.due_at)}",
            )
            for row in rows
        ],
    )
    return len(rows)


def _tell(rows: Sequence[ReclaimNotice]) -> None:
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
                body=(
                    _("%(why)s Its app restarts without them: kernels lose their variables, files stay.")
                    if row.cause in RELEASES
                    else _("%(why)s Its files are kept. On its page you can keep or extend it.")
                )
                % {"why": message_of(Reason.from_json(row.reason))},
                url=f"/workspaces/{row.workspace_id}/",
            )
            for row in rows
        ],
    )


def take_if_due(workspace_id: UUID) -> Step | None:
    """Stop one, or release its GPUs, if that is still due now that it is locked; which of these was done."""
    try:
        with transaction.atomic():
            workspace = locked(workspace_id)
            if workspace.state != State.RUNNING:
                return None
            # With what has been reported since the last look: who has begun to work is not stopped.
            candidate = candidate_of(workspace, observing.present(workspace))
            verdict = verdict_of(candidate, timezone.now(), present_site())
            if verdict.step not in (Step.RELEASE, Step.STOP):
                return None
            reason = reason_of_stop(verdict)
            ReclaimNotice.objects.filter(workspace=workspace_id).delete()
            if verdict.step is Step.RELEASE and _released(workspace, reason):
                return Step.RELEASE
            services.stop(actor=SYSTEM, workspace_id=workspace_id, cause=reason)
            if verdict.cause is Cause.SCHEDULE:
                mornings.remember(workspace)
            _tell_stopped(workspace, reason)
            return Step.STOP
    except (NotFound, PortalError):
        log.info("workspace %s was not stopped: it has changed", workspace_id)
        return None
    except Exception:
        # One broken row must not keep the others from being stopped; it is tried again with the next pass.
        log.exception("stopping workspace %s failed", workspace_id)
        return None


def _released(workspace: Workspace, reason: Reason) -> bool:
    """Release its GPUs, and tell; whether it can go on without them: no pool may take it, or no quota."""
    try:
        with transaction.atomic():
            gpus.release(actor=SYSTEM, workspace_id=workspace.pk, cause=reason)
    except PortalError as error:
        log.info("workspace %s cannot go on without GPUs and is stopped: %s", workspace.pk, error)
        return False
    events.notify(
        [workspace.owner],
        kind="workspace.gpu_released",
        title=_("%(name)s has released its GPUs") % {"name": workspace.name},
        body=_("%(why)s Its app restarts without them, and its files stay. Attach them on its page.")
        % {"why": message_of(reason)},
        url=f"/workspaces/{workspace.pk}/",
    )
    return True


def _tell_stopped(workspace: Workspace, reason: Reason) -> None:
    events.notify(
        [workspace.owner],
        kind="workspace.reclaimed",
        title=_("%(name)s was stopped") % {"name": workspace.name},
        body=_("%(why)s Its files are kept: start it when you need it.") % {"why": message_of(reason)},
        url=f"/workspaces/{workspace.pk}/",
    )


def _forget_strays() -> None:
    """Notices of what does not run any more, or runs anew."""
    ReclaimNotice.objects.filter(
        ~Q(workspace__state=State.RUNNING) | ~Q(generation=F("workspace__generation"))
    ).delete()
