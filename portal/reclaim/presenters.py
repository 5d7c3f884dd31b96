"""Presents the end of a workspace for pages and notebooks."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, time
from typing import Any

from django.urls import reverse
from django.utils import timezone
from django.utils.dates import WEEKDAYS_ABBR
from django.utils.functional import Promise
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy as _l

from portal.common.formatting import format_duration, format_number
from portal.common.reasons.reason import Reason
from portal.common.reasons.wording import message_of, reason_of
from portal.people.accounts.models import User
from portal.reclaim import keeping, observing, pacing, passes, scheduled_starts, unused_gpus
from portal.reclaim.effective import PolicySet, scope_keys_of
from portal.reclaim.engine.activity import SignalKind
from portal.reclaim.engine.ladder import KEEPABLE, RELEASES, RunState, Step, idle_limit_s, threshold_readings
from portal.reclaim.engine.terms import Effective, Source
from portal.reclaim.engine.week import DAYS, Week
from portal.reclaim.models import PolicyScope, ReclaimNotice
from portal.reclaim.rebalancing import selectors as rebalancing
from portal.workspaces import extending, policies
from portal.workspaces.lifecycle import State
from portal.workspaces.models import Workspace


@dataclass(frozen=True, slots=True)
class Fact:
    """A signal as text: its name, its value and threshold, and whether it counts as work."""

    name: str
    value: str
    active: bool


@dataclass(frozen=True, slots=True)
class Rule:
    """A rule that applies to a workspace, as text, and its source.

    `used_s` of `limit_s` has passed; None if unknown or not countable. `policy` is the primary key of the
    policy; None for the site's settings.
    """

    name: str
    value: str
    source: str
    policy: Any = None
    used_s: int | None = None
    limit_s: int = 0

    @property
    def url(self) -> str:
        """The URL of the policy's page, or "". Lazy, since the gateway has no such pages."""
        return reverse("reclaim:policy", args=[self.policy]) if self.policy is not None else ""


@dataclass(frozen=True, slots=True)
class Life:
    """The lifetime of a running workspace.

    - `stops_at`: when it stops, or None; `reason` is set once the stop is announced.
    - `idle`: the announced stop is due to idleness; keeping the workspace averts it for `kept_for`.
    - `releases`: it does not stop; only its GPUs are released at `stops_at`, and its app restarts.
    - `used_s`, `total_s`: elapsed and total time from ready to its end.
    - `offered`, `offered_s`, `most_s`: default (in hours, and seconds) and maximum of an extension; empty and
      0 if the user cannot extend it.
    """

    stops_at: datetime | None
    ends_at: datetime | None
    left_s: int
    used_s: int
    total_s: int
    reason: str
    offered: str
    offered_s: int
    most_s: int
    idle: bool
    releases: bool
    kept_until: datetime | None
    kept_for: str
    facts: tuple[Fact, ...]
    idle_text: str
    unused_text: str
    rules: tuple[Rule, ...]


NAMES: dict[str, str | Promise] = {
    SignalKind.GPU: _l("GPU"),
    SignalKind.CPU: _l("CPU"),
    SignalKind.KERNELS: _l("Kernels"),
    SignalKind.TERMINALS: _l("Terminals"),
    SignalKind.JOBS: _l("Shell commands"),
    SignalKind.EDITS: _l("Saved documents"),
    SignalKind.TRAFFIC: _l("Traffic through the gateway"),
}


def facts_of(row: observing.ObservedActivity | None) -> tuple[Fact, ...]:
    """Return the signals of the last observation."""
    if row is None:
        return ()
    facts = []
    for signal in observing.signals_of(row):
        kind, value = signal["kind"], signal["value"]
        if kind not in NAMES:
            continue
        if value is None:
            text = _("not measured, counts as work") if signal["active"] else _("not measured for long")
        elif kind == SignalKind.GPU:
            text = _("%(value)s %% now; work from %(threshold)s %%") % signal
        elif kind == SignalKind.CPU:
            text = _("%(value).2f cores; work from %(threshold).2f") % signal
        elif kind == SignalKind.TRAFFIC:
            rates = {name: format_number(signal[name] / 1000, 1) for name in ("value", "threshold")}
            text = _("%(value)s kB/s; work from %(threshold)s kB/s") % rates
        elif kind == SignalKind.EDITS:
            text = _("saved since the last check") if value else _("no new changes")
        elif kind == SignalKind.TERMINALS:
            text = _("used") if value else _("not used")
        elif kind == SignalKind.JOBS and value and not signal["active"]:
            text = _("%(value)d waiting for hours") % signal
        elif kind == SignalKind.KERNELS and signal["active"] and not value:
            text = _("used since the last check")
        else:
            text = (
                _("%(value)d busy") % signal
                if kind == SignalKind.KERNELS
                else _("%(value)d running") % signal
            )
        facts.append(Fact(str(NAMES[kind]), text, signal["active"]))
    return tuple(facts)


def unused_text(row: observing.ObservedActivity | None) -> str:
    """Return how many of the GPUs are unused while others work, as text; empty if none."""
    count, gpus, since = unused_gpus.unused_gpus_of(row)
    if row is None or since is None or not observing.is_fresh(row.observed_at):
        return ""
    values = {
        "count": count,
        "gpus": gpus,
        "time": format_duration((row.observed_at - since).total_seconds()),
    }
    return _("%(count)d of %(gpus)d GPUs unused for %(time)s.") % values


def idle_text(row: observing.ObservedActivity | None, limit_s: int | None, *, releases: bool = False) -> str:
    """Return the idle time and its limit, if any, as text.

    `releases`: the limit releases the GPUs instead of stopping the workspace.
    """
    if row is None or row.signals == "[]" or not observing.is_fresh(row.observed_at):
        return _("Activity unknown, counted as work.")
    if not row.idle_s:
        return _("In use.")
    values = {"idle": format_duration(row.idle_s), "limit": format_duration(limit_s)}
    if limit_s is None:
        return _("Idle for %(idle)s. No idle limit applies.") % values
    if releases:
        return _("Idle for %(idle)s. GPUs are released after %(limit)s.") % values
    return _("Idle for %(idle)s. Stops after %(limit)s.") % values


def _step_of(notice: ReclaimNotice | None) -> str | None:
    if notice is None:
        return None
    return (Step.RELEASE if notice.cause in RELEASES else Step.STOP).value


def activity_of(workspace: Workspace) -> dict[str, Any]:
    """Return the activity of a workspace for REST."""
    running = workspace.state == State.RUNNING
    row = observing.current_activity(workspace) if running else None
    now = timezone.now()
    site = passes.read_pass_context()
    run_state = passes.run_state_of(passes.candidate_of(workspace, row), now, site) if running else None
    effective = site.policies.effective(scope_keys_of(workspace))
    rules = effective.policy
    notice = notice_about(workspace)
    return {
        "observed_at": row.observed_at if row is not None else None,
        "idle_s": run_state.idle_s if run_state is not None else None,
        "gpu_idle_s": run_state.gpu_idle_s if run_state is not None else None,
        "idle_limit_s": idle_limit_s(rules, now.timestamp()),
        "policy": rules_of(effective),
        "kept_until": row.kept_until if row is not None else None,
        "stops_at": notice.due_at if notice is not None else None,
        "step": _step_of(notice),
        "cause": notice.cause if notice is not None else None,
        "starts_at": scheduled_starts.next_start_of(workspace),
        "unused_gpus": unused_gpus.unused_gpus_of(row)[0],
        "signals": observing.signals_of(row),
        "held": threshold_readings(run_state, rules, now.timestamp()) if run_state is not None else [],
        "history": [
            {"at": at, "active": kinds}
            for at, kinds in (observing.changes_of(workspace) if row is not None else ())
        ],
        "progress": pacing.progress_of(workspace),
        "discontent": _discontent_of(workspace),
    }


def _discontent_of(workspace: Workspace) -> dict[str, Any] | None:
    discontent = rebalancing.discontent_of(workspace)
    if discontent is None:
        return None
    reason = reason_of(discontent.reason)
    return {
        "contentment": discontent.score,
        "reason": discontent.reason.get("code", ""),
        "message": message_of(reason) if reason is not None else "",
        "since": discontent.since,
    }


def life_of(workspace: Workspace, actor: User | None) -> Life | None:
    """Return the life as the actor sees it (None: its own pages), or None if it is not running."""
    if workspace.state != State.RUNNING:
        return None
    now = timezone.now()
    notice = notice_about(workspace)
    ends_at = workspace.runs_until
    stops_at = notice.due_at if notice is not None else ends_at
    began = workspace.ready_at or workspace.state_since
    reason = reason_of(notice.reason) if notice is not None else None
    may = actor is None or policies.may_operate(actor, workspace)
    most_s = extending.remaining_extension_s(workspace) if may else 0
    offered_s = min(extending.OFFERED_S, most_s)
    end = ends_at or stops_at
    row = observing.current_activity(workspace)
    site = passes.read_pass_context()
    effective = site.policies.effective(scope_keys_of(workspace))
    rules = effective.policy
    run_state = passes.run_state_of(passes.candidate_of(workspace, row), now, site)
    return Life(
        stops_at=stops_at,
        ends_at=ends_at,
        left_s=max(0, round((stops_at - now).total_seconds())) if stops_at else 0,
        used_s=max(0, round((now - began).total_seconds())),
        total_s=max(1, round((end - began).total_seconds())) if end else 0,
        reason=message_of(reason) if isinstance(reason, Reason) else "",
        offered=f"{round(offered_s / 3600, 2):g}" if offered_s else "",
        offered_s=offered_s,
        most_s=most_s,
        idle=notice is not None and notice.cause in KEEPABLE,
        releases=notice is not None and notice.cause in RELEASES,
        kept_until=row.kept_until if row is not None and (row.kept_until or now) > now else None,
        kept_for=format_duration(keeping.OFFERED_S) if may else "",
        facts=facts_of(row),
        idle_text=idle_text(row, idle_limit_s(rules, now.timestamp()), releases=rules.release_s is not None),
        unused_text=unused_text(row),
        rules=tuple(rule_rows(effective, site.policies, run_state, now)),
    )


def notice_about(workspace: Workspace) -> ReclaimNotice | None:
    """Return the valid notice of a running workspace, or None."""
    notices = ReclaimNotice.objects.filter(
        workspace=workspace.pk, generation=workspace.generation, ends_version=workspace.ends_version
    )
    return notices.first() if workspace.state == State.RUNNING else None


def source_text(source: Source) -> str:
    """Return the source as text."""
    if source.kind is None:
        return _("site settings")
    kind = str(PolicyScope(source.kind).label)
    return (
        _("%(kind)s %(name)s") % {"kind": kind.lower(), "name": source.name} if source.name else kind.lower()
    )


def rules_of(effective: Effective) -> list[dict[str, Any]]:
    """Return each effective value with its source, for REST."""
    values: dict[str, Any] = {
        "idle_s": effective.policy.idle_s,
        "gpu_idle_s": effective.policy.gpu_idle_s,
        "release_s": effective.policy.release_s,
        "longest_s": effective.policy.longest_s,
        "notice_s": effective.policy.notice_s,
        "stop_when_spent": effective.policy.stop_when_spent,
    }
    entries = [
        {"name": name, "value": values[name], "set_by": sources[0].key}
        for name, sources in effective.sources.items()
        if name in values
    ]
    weeks = zip(effective.policy.weeks, effective.sources.get("weeks", ()), strict=True)
    return entries + [
        {"name": "week", "value": week_json(week), "set_by": source.key} for week, source in weeks
    ]


def week_json(week: Week) -> dict[str, Any]:
    """Return a week for REST, with times as 19:00."""

    def text(at: time | None) -> str | None:
        return at.isoformat("minutes") if at is not None else None

    return {
        "zone": week.zone,
        "days": [day for day in DAYS if day in week.days],
        "work_from": text(week.begins),
        "work_until": text(week.ends),
        "after_hours_s": week.after_hours_s,
        "stop_at": text(week.stop_at),
        "start_at": text(week.start_at),
    }


def rule_rows(effective: Effective, policies: PolicySet, run_state: RunState, now: datetime) -> list[Rule]:
    """Return the effective rules as text, each limit with its elapsed part."""
    policy, rules = effective.policy, []

    def add(name: str, value: str, source: Source, used_s: float | None = None, limit_s: int = 0) -> None:
        used = None if used_s is None else min(round(used_s), limit_s)
        if used is not None:
            value = _("%(value)s of %(limit)s") % {"value": format_duration(used), "limit": value}
        rules.append(Rule(name, value, source_text(source), policies.keys.get(source), used, limit_s))

    lived_s = now.timestamp() - run_state.began_s if run_state.began_s is not None else None
    for name, label, limit_s, used_s in (
        ("idle_s", _("Idle limit"), policy.idle_s, run_state.idle_s),
        ("gpu_idle_s", _("GPU idle limit"), policy.gpu_idle_s, run_state.gpu_idle_s),
        ("release_s", _("GPUs are released after"), policy.release_s, run_state.idle_s),
        ("longest_s", _("Maximum lifetime"), policy.longest_s, lived_s),
        ("notice_s", _("Notice before a stop"), policy.notice_s, None),
    ):
        if limit_s and name in effective.sources:
            add(label, format_duration(limit_s), effective.sources[name][0], used_s, limit_s)
    for week, source in zip(policy.weeks, effective.sources.get("weeks", ()), strict=True):
        add(_("Hours"), week_text(week), source)
    if policy.stop_when_spent:
        add(_("GPU-hours"), _("stops when they are spent"), effective.sources["stop_when_spent"][0])
    return rules


def week_text(week: Week) -> str:
    """Return a week as one line: `Mon, Tue; work from 08:00 to 18:00 …`."""
    parts = [", ".join(str(WEEKDAYS_ABBR[at]) for at, day in enumerate(DAYS) if day in week.days)]
    if week.begins is not None and week.ends is not None:
        parts.append(
            _("work from %(begin)s to %(end)s")
            % {"begin": f"{week.begins:%H:%M}", "end": f"{week.ends:%H:%M}"}
        )
    if week.after_hours_s:
        parts.append(
            _("stops after %(time)s outside these hours") % {"time": format_duration(week.after_hours_s)}
        )
    if week.stop_at is not None:
        parts.append(_("stops at %(time)s if not in use") % {"time": f"{week.stop_at:%H:%M}"})
    if week.start_at is not None:
        parts.append(_("starts again at %(time)s") % {"time": f"{week.start_at:%H:%M}"})
    return "; ".join([*parts, week.zone])
