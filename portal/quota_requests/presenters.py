"""What the pages of requests show: a request with its evidence, and the actions that are offered."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from django.utils import timezone

from portal.accounts.models import Team, User
from portal.common.formatting import (
    format_amount,
    format_duration,
    format_input,
    format_resource_amount,
    format_unit,
)
from portal.inventory.series import GpuUse
from portal.quota_requests import selectors as selectors
from portal.quota_requests.evidence import Evidence
from portal.quota_requests.models import QuotaRequest, RequestKind, RequestStatus
from portal.quotas import resources
from portal.quotas.models import Grant, Quota
from portal.quotas.presenters.bars import Bar
from portal.quotas.selectors import limits
from portal.quotas.sizes import site_sizes


@dataclass(frozen=True, slots=True)
class Line:
    """A fact about a request: what it is about, and a sentence."""

    name: str
    text: str


@dataclass(frozen=True, slots=True)
class Shown:
    """A request as a page shows it.

    `problem` is why the last try did not work, `given` what was typed, `bar` the team's part in the
    resource while there is something to decide.
    """

    request: QuotaRequest
    evidence: Evidence | None
    may_decide: bool
    may_revoke: bool
    may_withdraw: bool
    problem: str = ""
    given: dict[str, str] | None = None
    focus: bool = False
    bar: Bar | None = None

    @property
    def wanted(self) -> str:
        return format_resource_amount(self.request.resource, self.request.amount)

    @property
    def asked(self) -> str:
        return format_input(self.request.resource, self.request.amount, 3)

    @property
    def unit(self) -> str:
        return format_unit(self.request.resource)

    @property
    def time_boxed(self) -> bool:
        """Whether its grant can have an end: GPU-hours last until they are spent."""
        return self.request.kind != RequestKind.LEDGER

    @property
    def whose(self) -> str:
        """What is asked to grow."""
        if self.request.kind == RequestKind.MEMBER_CAP:
            return f"their own cap in {self.request.team.name}"
        if self.request.kind == RequestKind.LEDGER:
            return f"the budget of {self.request.team.name}"
        return self.request.team.name

    @property
    def lasts(self) -> str:
        """For how long, as it was asked."""
        if not self.time_boxed:
            return "until they are spent"
        if self.request.until is None:
            return "without an end"
        seconds = (self.request.until - self.request.created_at).total_seconds()
        return f"for {format_duration(round(seconds / 60) * 60)}"

    @property
    def workspace_line(self) -> str:
        """What the request was made for, and whether that still waits; empty where it was for none."""
        workspace = self.request.workspace
        if workspace is None:
            return ""
        what = f"{workspace.template.name} on {workspace.flavor.name}"
        if self.request.status == RequestStatus.OPEN:
            return f"{what} waits for it"
        return f"for {what}, which is {workspace.get_state_display().lower()}"

    @property
    def overdue(self) -> bool:
        """Whether the time that was asked for is over before anybody decided."""
        until = self.request.until
        return self.request.status == RequestStatus.OPEN and until is not None and until <= timezone.now()

    @property
    def grant(self) -> Grant | None:
        return getattr(self.request, "grant", None)

    @property
    def granted(self) -> str:
        return format_resource_amount(self.request.resource, self.request.granted_amount or 0)

    @property
    def less(self) -> bool:
        return self.request.granted_amount is not None and self.request.granted_amount < self.request.amount

    @property
    def grant_lasts(self) -> bool:
        """Whether a grant came of it that counts now."""
        grant = self.grant
        return (
            grant is not None
            and grant.ended_at is None
            and (grant.ends_at is None or grant.ends_at > timezone.now())
        )

    @property
    def lines(self) -> list[Line]:
        """The evidence as sentences."""
        return lines(self.evidence) if self.evidence is not None else []

    @property
    def earlier(self) -> list[Line]:
        """What became of earlier requests of the team for the same."""
        if self.evidence is None:
            return []
        return [Line(_outcome(row), _earlier(row)) for row in self.evidence.earlier]


def shown(actor: User, request: QuotaRequest, evidence: Evidence | None = None, **more: Any) -> Shown:
    """The request as the actor may see it; asks what the actor may do with it."""
    grant = getattr(request, "grant", None)
    barred = evidence is not None and _barred(request)
    return Shown(
        request=request,
        evidence=evidence,
        may_decide=selectors.may_decide(actor, request),
        may_revoke=grant is not None and selectors.may_revoke(actor, grant),
        may_withdraw=request.status == RequestStatus.OPEN and request.requester_id == actor.pk,
        bar=limits.bar_of(request.team, request.resource) if barred else None,
        **more,
    )


def _barred(request: QuotaRequest) -> bool:
    return request.kind != RequestKind.LEDGER


def inbox(actor: User) -> list[Shown]:
    """The actor's inbox: all of it may be decided, so nothing is asked for each row."""
    rows = selectors.inbox(actor)
    teams = {row.request.team_id: row.request.team for row in rows if _barred(row.request)}
    bars = limits.bars_for_many(teams.values()) if teams else {}
    found = {(slug, bar.resource): bar for slug, of_team in bars.items() for bar in of_team}
    return [
        Shown(
            row.request,
            row.evidence,
            may_decide=True,
            may_revoke=False,
            may_withdraw=row.request.requester_id == actor.pk,
            bar=found.get((row.request.team.slug, row.request.resource)),
        )
        for row in rows
    ]


def lines(evidence: Evidence) -> list[Line]:
    """What helps to decide, in the order in which one asks for it."""
    request = evidence.request
    name = evidence.counted_in
    found = [Line("Has now", _standing(evidence))]
    if evidence.balance is not None:
        found.append(
            Line("Budget left", format_resource_amount(resources.GPU_HOURS, max(0, evidence.balance)))
        )
    whose = f" by {request.requester.username}" if evidence.of_user else ""
    if evidence.workspaces:
        mean = format_resource_amount(name, evidence.mean)
        hours = f"{evidence.hours:,} {_hours(name)}".strip()
        found.append(
            Line(
                "Last 30 days",
                f"{hours}{whose}: {mean} on average, {evidence.workspaces} workspace"
                f"{'' if evidence.workspaces == 1 else 's'}",
            )
        )
    else:
        found.append(Line("Last 30 days", f"no workspace{whose}"))
    found.append(Line("Idle share", _idle(evidence)))
    if evidence.use is not None and evidence.use.held_s:
        found.append(Line("GPU use, 30 days", _use(evidence.use)))
    if evidence.cohort:
        left = (
            "no quota names it there"
            if evidence.cohort_left is None
            else f"{format_amount(name, evidence.cohort_left)} of its quota is not in use"
        )
        found.append(Line(f"Left in {evidence.cohort}", left))
    if evidence.size is not None:
        free = format_amount(name, evidence.free or 0)
        text = f"{format_amount(name, evidence.size)} in service, {free} free"
        if evidence.committed:
            promised = format_amount(name, evidence.committed)
            over = ": more than there is" if evidence.committed > evidence.size else ""
            text += f"; {promised} promised as quota and grants{over}"
        found.append(Line("Site", text))
    found.append(Line("If approved", effect(evidence)))
    return found


def _standing(evidence: Evidence) -> str:
    name = evidence.counted_in
    used = format_resource_amount(name, evidence.used)
    if evidence.of_user:
        return f"{evidence.request.requester.username} uses {used}"
    if evidence.quota is None:
        return f"{used} in use; no quota"
    granted = ""
    if evidence.granted:
        granted = f", {format_amount(name, evidence.granted)} of it by grants"
    return f"{used} in use of a quota of {format_amount(name, evidence.quota)}{granted}"


def _hours(resource: str) -> str:
    return {
        resources.CPU: "core-hours",
        resources.MEMORY: "GiB-hours",
        resources.DISK: "GiB-hours",
        resources.WORKSPACES: "workspace-hours",
    }.get(resource.removeprefix(resources.SIMULATED), "GPU-hours")


def _idle(evidence: Evidence) -> str:
    idle = evidence.idle
    if idle is None or idle.percent is None:
        return "not measured"
    text = f"now {idle.percent} %: {idle.idle} of {idle.measured} that report do nothing"
    silent = idle.held - idle.measured
    return text + (f"; {silent} not measured" if silent else "")


def _use(use: GpuUse) -> str:
    """Of the whole team, all GPUs together."""
    if use.percent is None:
        return "not measured"
    part = f"{use.percent} % of {round(use.measured_s / 3600):,} GPU-hours that were measured"
    silent = round((use.held_s - use.measured_s) / 3600)
    return part + (f"; {silent:,} not measured" if silent else "")


def effect(evidence: Evidence) -> str:
    """What approving would do to others."""
    request = evidence.request
    name = evidence.counted_in
    if request.kind == RequestKind.LEDGER:
        return "nobody gives anything up; the budget grows"
    if request.kind == RequestKind.MEMBER_CAP:
        return "the team's quota stays as it is; its members share it otherwise"
    if evidence.free is None:
        return "nobody gives anything up"
    if not evidence.short:
        return f"nobody gives anything up: {format_amount(name, evidence.free)} free now"
    free = format_amount(name, evidence.free)
    if not evidence.borrowers:
        return f"nobody has to give anything up; {free} free now, the rest waits until others end"
    lenders = ", ".join(
        f"{holder.team} {format_amount(name, holder.amount)}" for holder in evidence.borrowers
    )
    taken = sum(holder.amount for holder in evidence.borrowers)
    rest = "; the rest waits until others end" if taken < evidence.short else ""
    return f"{free} free now; may be taken back from what others borrow: {lenders}{rest}"


def _outcome(row: QuotaRequest) -> str:
    if row.status == RequestStatus.APPROVED and (row.granted_amount or 0) < row.amount:
        return "Approved in part"
    return row.get_status_display()


def _earlier(row: QuotaRequest) -> str:
    asked = format_resource_amount(row.resource, row.amount)
    text = f"{row.requester.username} asked for {asked}"
    if row.status == RequestStatus.APPROVED and row.granted_amount not in (None, row.amount):
        text += f" and got {format_amount(row.resource, row.granted_amount or 0)}"
    if row.status == RequestStatus.DENIED and row.decision_note:
        text += f": “{row.decision_note[:120]}”"
    return text


def known_resources(teams: Iterable[Team], *more: str) -> list[str]:
    """What can be asked for: what the site has, what quotas of the teams name, and `more`; GPUs first."""
    found = set(site_sizes()) - {resources.GPU_HOURS}
    found.add(resources.WORKSPACES)
    found |= set(Quota.objects.filter(team__in=list(teams)).values_list("resource", flat=True))
    found |= {name for name in more if name}

    def place(name: str) -> tuple[bool, bool, str]:
        simulated = "simulated" in name
        return (simulated, not (resources.is_accelerator(name) or name == resources.GPU), name)

    return sorted(found, key=place)
