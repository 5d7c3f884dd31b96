"""Presents requests for pages: evidence and available actions."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from django.utils import timezone
from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from portal.common.formatting import (
    format_amount,
    format_duration,
    format_input,
    format_number,
    format_resource_amount,
    format_unit,
)
from portal.fleet.inventory.series import GpuUse
from portal.people.accounts.models import Team, User
from portal.quota.limits import resources
from portal.quota.limits.models import Grant, Quota
from portal.quota.limits.presenters.bars import QuotaUsage
from portal.quota.limits.selectors import limits
from portal.quota.limits.sizes import site_sizes
from portal.quota.requests import selectors
from portal.quota.requests.evidence import Evidence
from portal.quota.requests.models import QuotaRequest, RequestKind, RequestState

MAX_NOTE = 120


@dataclass(frozen=True, slots=True)
class EvidenceLine:
    """A fact about a request: label and sentence. `key` identifies it in any language."""

    name: str
    text: str
    key: str = ""


@dataclass(frozen=True, slots=True)
class RequestCard:
    """A request on a page.

    `problem` is the error of the last attempt, `given` are the submitted fields, and `bar` is the team's
    usage of the resource, for those who decide.
    """

    request: QuotaRequest
    evidence: Evidence | None
    may_decide: bool
    may_revoke: bool
    may_cancel: bool
    problem: str = ""
    given: dict[str, str] | None = None
    focus: bool = False
    bar: QuotaUsage | None = None

    @property
    def needs_note(self) -> bool:
        """Whether the last attempt denied the request without a note."""
        given = self.given or {}
        return bool(self.problem) and given.get("decision") == "deny" and not given.get("note", "").strip()

    @property
    def requested_text(self) -> str:
        return format_resource_amount(self.request.resource, self.request.amount)

    @property
    def asked(self) -> str:
        return format_input(self.request.resource, self.request.amount, 3)

    @property
    def unit(self) -> str:
        return format_unit(self.request.resource)

    @property
    def time_boxed(self) -> bool:
        """Whether the grant can have an end. GPU-hours last until they are spent."""
        return self.request.kind != RequestKind.LEDGER

    @property
    def limit_text(self) -> str:
        """The limit to increase, as text."""
        if self.request.kind == RequestKind.MEMBER_CAP:
            return _("their own cap in %(team)s") % {"team": self.request.team.name}
        if self.request.kind == RequestKind.LEDGER:
            return _("the budget of %(team)s") % {"team": self.request.team.name}
        return self.request.team.name

    @property
    def duration_text(self) -> str:
        """The requested duration."""
        if not self.time_boxed:
            return _("until they are spent")
        if self.request.until is None:
            return _("no end")
        seconds = (self.request.until - self.request.created_at).total_seconds()
        return _("for %(span)s") % {"span": format_duration(round(seconds / 60) * 60)}

    @property
    def workspace_line(self) -> str:
        """The request's workspace and its state; empty without one."""
        workspace = self.request.workspace
        if workspace is None:
            return ""
        params = {
            "template": workspace.template.name,
            "flavor": workspace.flavor.name,
            "state": workspace.get_state_display().lower(),
        }
        if self.request.state == RequestState.OPEN:
            return _("a workspace (%(template)s on %(flavor)s) waits for this request") % params
        return _("for a workspace (%(template)s on %(flavor)s), now %(state)s") % params

    @property
    def overdue(self) -> bool:
        """Whether the requested period has passed without a decision."""
        until = self.request.until
        return self.request.state == RequestState.OPEN and until is not None and until <= timezone.now()

    @property
    def grant(self) -> Grant | None:
        return getattr(self.request, "grant", None)

    @property
    def granted(self) -> str:
        return format_resource_amount(self.request.resource, self.request.granted_amount or 0)

    @property
    def can_approve_less(self) -> bool:
        return self.request.granted_amount is not None and self.request.granted_amount < self.request.amount

    @property
    def grant_lasts(self) -> bool:
        """Whether the request has an active grant."""
        grant = self.grant
        return (
            grant is not None
            and grant.ended_at is None
            and (grant.ends_at is None or grant.ends_at > timezone.now())
        )

    @property
    def lines(self) -> list[EvidenceLine]:
        """The evidence as labelled lines, most relevant first."""
        return lines(self.evidence) if self.evidence is not None else []

    @property
    def earlier_outcomes(self) -> list[EvidenceLine]:
        """Outcomes of the team's earlier requests for the same resource."""
        if self.evidence is None:
            return []
        return [EvidenceLine(_outcome(row), _earlier_text(row)) for row in self.evidence.earlier]


def present_request(
    actor: User,
    request: QuotaRequest,
    evidence: Evidence | None = None,
    *,
    shows_result: bool = False,
    **fields: Any,
) -> RequestCard:
    """Return the request with the actions that the actor may take.

    With `shows_result`, an approved request has the team's bar too, so that the reader sees what changed.
    """
    grant = getattr(request, "grant", None)
    approved = shows_result and request.state == RequestState.APPROVED
    shows_bar = (evidence is not None or approved) and _has_bar(request)
    return RequestCard(
        request=request,
        evidence=evidence,
        may_decide=selectors.may_decide(actor, request),
        may_revoke=grant is not None and selectors.may_revoke(actor, grant),
        may_cancel=request.state == RequestState.OPEN and request.requester_id == actor.pk,
        bar=limits.resource_usage(request.team, request.resource) if shows_bar else None,
        **fields,
    )


def _has_bar(request: QuotaRequest) -> bool:
    return request.kind != RequestKind.LEDGER


def inbox(actor: User) -> list[RequestCard]:
    """Return the actor's inbox. All rows may be decided, so permissions are not checked per row."""
    rows = selectors.inbox(actor)
    teams = {row.request.team_id: row.request.team for row in rows if _has_bar(row.request)}
    bars = limits.usage_by_team(teams.values()) if teams else {}
    bars_by_key = {(slug, bar.resource): bar for slug, of_team in bars.items() for bar in of_team}
    return [
        RequestCard(
            row.request,
            row.evidence,
            may_decide=True,
            may_revoke=False,
            may_cancel=row.request.requester_id == actor.pk,
            bar=bars_by_key.get((row.request.team.slug, row.request.resource)),
        )
        for row in rows
    ]


def lines(evidence: Evidence) -> list[EvidenceLine]:
    """Return the evidence as labelled lines, most relevant first."""
    request = evidence.request
    name = evidence.counted_in
    rows = [
        EvidenceLine(_("If approved"), effect(evidence), "effect"),
        EvidenceLine(_("Current"), _usage_against_quota(evidence), "standing"),
    ]
    if evidence.balance is not None:
        left = format_resource_amount(resources.GPU_HOURS, max(0, evidence.balance))
        rows.append(EvidenceLine(_("Budget left"), left, "budget"))
    suffix = _(" by %(username)s") % {"username": request.requester.username} if evidence.of_user else ""
    rows.append(EvidenceLine(_("Last 30 days"), _last_30_days(evidence, suffix)))
    rows.append(EvidenceLine(_("Idle share"), _idle_text(evidence)))
    if evidence.use is not None and evidence.use.held_s:
        rows.append(EvidenceLine(_("GPU use, 30 days"), _use(evidence.use)))
    if evidence.cohort:
        left = (
            _("no quota for this resource")
            if evidence.cohort_left is None
            else _("%(amount)s of the quota unused") % {"amount": format_amount(name, evidence.cohort_left)}
        )
        rows.append(EvidenceLine(_("Available in %(cohort)s") % {"cohort": evidence.cohort}, left))
    if evidence.size is not None:
        rows.append(EvidenceLine(_("Site"), _site(evidence), "site"))
    return rows


def _last_30_days(evidence: Evidence, suffix: str) -> str:
    name = evidence.counted_in
    if not evidence.workspaces:
        return _("no workspace%(whose)s") % {"whose": suffix}
    params = {
        "hours": f"{format_number(evidence.hours)} {_hours(name)}",
        "whose": suffix,
        "mean": format_resource_amount(name, evidence.mean),
        "count": evidence.workspaces,
    }
    return (
        ngettext(
            "%(hours)s%(whose)s: %(mean)s on average, %(count)s workspace",
            "%(hours)s%(whose)s: %(mean)s on average, %(count)s workspaces",
            evidence.workspaces,
        )
        % params
    )


def _site(evidence: Evidence) -> str:
    name = evidence.counted_in
    size = evidence.size or 0
    params = {"size": format_amount(name, size), "free": format_amount(name, evidence.free or 0)}
    text = _("%(size)s in service, %(free)s free") % params
    if evidence.committed:
        text += "; " + _("%(amount)s in quotas and grants") % {
            "amount": format_amount(name, evidence.committed)
        }
        if evidence.committed > size:
            text += _(", exceeding capacity")
    return text


def _usage_against_quota(evidence: Evidence) -> str:
    name = evidence.counted_in
    used = format_resource_amount(name, evidence.used)
    if evidence.of_user:
        params = {"username": evidence.request.requester.username, "used": used}
        return _("%(username)s uses %(used)s") % params
    if evidence.quota is None:
        return _("%(used)s in use; no quota") % {"used": used}
    text = _("%(used)s in use of a quota of %(quota)s") % {
        "used": used,
        "quota": format_amount(name, evidence.quota),
    }
    if evidence.grant:
        text += _(", %(amount)s from grants") % {"amount": format_amount(name, evidence.grant)}
    return text


def _hours(resource: str) -> str:
    match resource.removeprefix(resources.SIMULATED):
        case resources.CPU:
            return _("core-hours")
        case resources.MEMORY | resources.DISK:
            return _("GiB-hours")
        case resources.WORKSPACES:
            return _("workspace-hours")
    return _("GPU-hours")


def _idle_text(evidence: Evidence) -> str:
    idle = evidence.idle
    if idle is None or idle.percent is None:
        return _("not measured")
    text = _("now %(percent)s %%: %(idle)s of %(measured)s measured are idle") % {
        "percent": idle.percent,
        "idle": idle.idle,
        "measured": idle.measured,
    }
    return text + _unmeasured_note(idle.allocated - idle.measured)


def _use(use: GpuUse) -> str:
    """Return the utilisation of the team's GPUs as text."""
    if use.percent is None:
        return _("not measured")
    text = _("%(percent)s %% of %(hours)s measured GPU-hours") % {
        "percent": use.percent,
        "hours": format_number(round(use.measured_s / 3600)),
    }
    return text + _unmeasured_note(round((use.held_s - use.measured_s) / 3600))


def _unmeasured_note(count: int) -> str:
    return "; " + _("%(count)s not measured") % {"count": format_number(count)} if count else ""


def effect(evidence: Evidence) -> str:
    """Return the effect of an approval on other teams as text."""
    request = evidence.request
    name = evidence.counted_in
    if request.kind == RequestKind.LEDGER:
        return _("no effect on other teams; the budget increases")
    if request.kind == RequestKind.MEMBER_CAP:
        return _("the team's quota is unchanged; its members share it differently")
    if evidence.free is None:
        return _("no effect on other teams")
    free = {"free": format_amount(name, evidence.free)}
    if not evidence.shortfall:
        return _("no effect on other teams; %(free)s free now") % free
    if not evidence.borrowers:
        return _("no effect on other teams; %(free)s free now, the rest waits until other work ends") % free
    lenders = ", ".join(
        f"{holder.team} {format_amount(name, holder.amount)}" for holder in evidence.borrowers
    )
    text = _("%(free)s free now; can preempt work of borrowers: %(lenders)s") % {
        **free,
        "lenders": lenders,
    }
    taken = sum(holder.amount for holder in evidence.borrowers)
    return text + (_("; the rest waits until other work ends") if taken < evidence.shortfall else "")


def _outcome(row: QuotaRequest) -> str:
    if row.state == RequestState.APPROVED and (row.granted_amount or 0) < row.amount:
        return _("Partly approved")
    return row.get_state_display()


def _earlier_text(row: QuotaRequest) -> str:
    params = {
        "username": row.requester.username,
        "asked": format_resource_amount(row.resource, row.amount),
        "granted": format_amount(row.resource, row.granted_amount or 0),
    }
    if row.state == RequestState.APPROVED and row.granted_amount not in (None, row.amount):
        text = _("%(username)s requested %(asked)s, granted %(granted)s") % params
    else:
        text = _("%(username)s requested %(asked)s") % params
    if row.state == RequestState.DENIED and row.decision_note:
        text += f": “{row.decision_note[:MAX_NOTE]}”"
    return text


def limited_resource(team: Team | None, resource_names: list[str]) -> str:
    """Return the first resource that the team has a quota of, else the first of all; “” without any."""
    limited = set(Quota.objects.filter(team=team).values_list("resource", flat=True)) if team else set()
    return next((name for name in (*resource_names, *limited) if name in limited), "") or next(
        iter(resource_names), ""
    )


def known_resources(teams: Iterable[Team], *more: str) -> list[str]:
    """Return the resources to choose from: the site's, those with team quotas, and `more`; GPUs first."""
    names = set(site_sizes()) - {resources.GPU_HOURS}
    names.add(resources.WORKSPACES)
    names |= set(Quota.objects.filter(team__in=list(teams)).values_list("resource", flat=True))
    names |= {name for name in more if name}

    def place(name: str) -> tuple[bool, bool, str]:
        simulated = "simulated" in name
        return (simulated, not (resources.is_accelerator(name) or name == resources.GPU), name)

    return sorted(names, key=place)
