"""Services for quota requests: create, approve, approve less, deny, cancel.

A request may include a workspace that waits for it (marked in its queue entry). After approval the queue
starts the workspace; denying or cancelling deletes it, since it could never start.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from django.db import transaction
from django.urls import reverse
from django.utils import timezone
from django.utils.translation import gettext as _

from portal.common.actors import SYSTEM, SystemActor
from portal.common.errors import InvalidInput, NotAllowed, NotFound, StateConflict
from portal.common.events import services as events
from portal.common.events.kinds import AuditKind
from portal.common.events.models import TargetKind
from portal.common.events.services import Target
from portal.common.formatting import format_amount, format_resource_amount
from portal.common.problem_codes import ProblemCode
from portal.common.reasons.reason import Reason
from portal.common.texts import strip_nul
from portal.people.accounts import approvers
from portal.people.accounts.domain_events import TeamArchived, TeamDeletionStarted, UserDeactivated
from portal.people.accounts.models import Team, User
from portal.people.accounts.policies import require_work_in
from portal.quota.ledger import services as ledger
from portal.quota.requests import policies
from portal.quota.requests.codes import RequestCode
from portal.quota.requests.models import AutoApproveRule, QuotaRequest, RequestKind, RequestState
from portal.quota.requests.services.grants import create_grant
from portal.quota.requests.services.grants import end_due_grants as end_due_grants
from portal.quota.requests.services.grants import revoke_grant as revoke_grant
from portal.quota.requests.services.rules import remaining_allowance, rules_for
from portal.quota.requests.services.validation import MAX_NOTE, check
from portal.workspaces import services as workspaces
from portal.workspaces.approvals import record_approval
from portal.workspaces.lifecycle import QueueOutcome, State
from portal.workspaces.models import Workspace
from portal.workspaces.order import WorkspaceOrder
from portal.workspaces.transitions import lock_workspace


def url_of(request: QuotaRequest) -> str:
    """Return the URL of the request's page."""
    return reverse("quota_requests:request", args=[request.pk])


@transaction.atomic
def create_request(
    *,
    actor: User,
    team: Team,
    kind: str,
    resource: str,
    amount: int,
    until: datetime | None,
    note: str,
    workspace: Workspace | None = None,
) -> QuotaRequest:
    """Request `amount` more (base units). Approved at once if a rule allows it.

    Raises `NotAllowed` (not a member), `InvalidInput` (amount, resource, time, note) and `StateConflict` (an
    equal request is open; `quota_request` is its id).
    """
    require_work_in(actor, team)
    note = strip_nul(note).strip()
    check(actor, team, kind, resource, amount, until, note)
    if workspace is not None and (workspace.owner_id != actor.pk or workspace.team_id != team.pk):
        raise InvalidInput(
            Reason(RequestCode.NOT_YOUR_WORKSPACE),
            errors={"workspace": [Reason(RequestCode.WORKSPACE_OF_YOURS)]},
        )
    # Serialise requests of a team, so that rules are not exceeded and duplicates are detected.
    Team.objects.select_for_update(no_key=True).get(pk=team.pk)
    _refuse_duplicate(actor, team, kind, resource, workspace)
    request = QuotaRequest.objects.create(
        team=team,
        requester=actor,
        kind=kind,
        resource=resource,
        amount=amount,
        until=until,
        note=note,
        workspace=workspace,
    )
    amount_text = format_resource_amount(resource, amount)
    events.record(
        actor=actor,
        kind=AuditKind.QUOTA_REQUEST_CREATED,
        team=team,
        workspace=workspace,
        message=f"requested {amount_text} more for {team.name}: {note}",
        targets=[Target(TargetKind.QUOTA_REQUEST, str(request.pk))],
        data=_data(request, amount=amount, until=until),
    )
    rule = _rule_for(request)
    if rule is not None:
        _approve_by(rule, request)
        return request
    events.notify(
        policies.approvers_of(request),
        "quota.request_asked",
        _("%(username)s requests %(amount)s more for %(team)s")
        % {"username": actor.username, "amount": amount_text, "team": team.name},
        note,
        url_of(request),
    )
    return request


@transaction.atomic
def ask_to_start(
    *, actor: User, order: WorkspaceOrder, idempotency_key: str = "", **arguments: Any
) -> QuotaRequest:
    """Create a request like `create_request`, with a workspace that starts after approval.

    Creating a workspace with the same order and `idempotency_key` then returns this one. Raises like
    `create_request` and like creating a workspace, and `StateConflict` if no approval is needed.
    """
    waiting = workspaces.create(
        actor=actor, order=order, idempotency_key=idempotency_key, unapproved=True
    ).workspace
    if waiting.queue_entry.outcome != QueueOutcome.NEEDS_APPROVAL:
        raise StateConflict(
            Reason(
                RequestCode.NEEDS_NO_APPROVAL, {"template": order.template.name, "flavor": order.flavor.name}
            ),
            code=ProblemCode.NEEDS_NO_APPROVAL,
        )
    return create_request(actor=actor, team=order.team, workspace=waiting, **arguments)


def _refuse_duplicate(actor: User, team: Team, kind: str, resource: str, workspace: Workspace | None) -> None:
    same = QuotaRequest.objects.filter(
        requester=actor, team=team, kind=kind, resource=resource, state=RequestState.OPEN
    )
    # Each workspace may wait for a separate request.
    first = (same.filter(workspace=workspace) if workspace is not None else same).first()
    if first is not None:
        params = {"resource": resource, "amount": first.amount, "team": team.name}
        raise StateConflict(
            Reason(RequestCode.ASKED_ALREADY, params),
            code=ProblemCode.ASKED_ALREADY,
            quota_request=str(first.pk),
            url=url_of(first),
        )


# --- Rules ------------------------------------------------------------------------------------------


def _rule_for(request: QuotaRequest) -> AutoApproveRule | None:
    """Return the rule that approves the request, or None. The caller has locked the team's row."""
    if request.kind != RequestKind.QUOTA or request.until is None:
        return None
    now = timezone.now()
    for rule in rules_for(request.team, request.resource, request.requester):
        if request.until - now > timedelta(hours=rule.hours_at_most):
            continue
        if request.amount <= remaining_allowance(rule, request.team, now):
            return rule
    return None


def _approve_by(rule: AutoApproveRule, request: QuotaRequest) -> None:
    now = timezone.now()
    note = _("Approved automatically by a rule.")
    _set(
        request,
        RequestState.APPROVED,
        rule=rule,
        decided_at=now,
        decision_note=note,
        granted_amount=request.amount,
        granted_until=request.until,
    )
    create_grant(request=request, amount=request.amount, until=request.until)
    events.record(
        actor=SYSTEM,
        kind=AuditKind.QUOTA_REQUEST_APPROVED,
        team=request.team,
        workspace=request.workspace,
        message=f"approved {format_resource_amount(request.resource, request.amount)} for"
        f" {request.team.name}: a rule allows it",
        targets=[Target(TargetKind.QUOTA_REQUEST, str(request.pk))],
        data=_data(request, rule=str(rule.pk), amount=request.amount, until=request.until),
    )


# --- Decisions --------------------------------------------------------------------------------------


@transaction.atomic
def approve(
    *,
    actor: User,
    request_id: UUID,
    amount: int | None = None,
    until: datetime | None = None,
    note: str = "",
) -> QuotaRequest:
    """Grant the request, or a smaller `amount` or another end.

    Raises `NotAllowed`, `InvalidInput` and `StateConflict` (already decided or cancelled; names the decider).
    """
    request = _request(request_id)
    policies.require_decide(actor, request)
    granted = request.amount if amount is None else amount
    ends = request.until if until is None else until
    problems: dict[str, list[Reason]] = {}
    if isinstance(granted, bool) or not 0 < granted <= request.amount:
        params = {"resource": request.resource, "amount": request.amount}
        problems["amount"] = [Reason(RequestCode.GRANT_OUT_OF_RANGE, params)]
    if ends is not None and ends <= timezone.now():
        over = RequestCode.ASKED_TIME_OVER if until is None else RequestCode.END_IN_FUTURE
        problems["until"] = [Reason(over)]
    if until is not None and request.kind == RequestKind.LEDGER:
        problems["until"] = [Reason(RequestCode.HOURS_HAVE_NO_END)]
    if problems:
        first = next(iter(problems.values()))[0]
        raise InvalidInput(
            Reason(RequestCode.CORRECT_AND_DECIDE, {"first": first.as_json()}), errors=problems
        )
    note = strip_nul(note).strip()[:MAX_NOTE]
    _decide(request, RequestState.APPROVED, actor, note, granted_amount=granted, granted_until=ends)
    if request.kind == RequestKind.LEDGER:
        ledger.credit(actor=actor, team=request.team, amount=granted, note=note or request.note[:200])
    else:
        create_grant(request=request, amount=granted, until=ends)
    if request.workspace_id is not None:
        record_approval(actor=actor, workspace_id=request.workspace_id)
    amounts = format_resource_amount(request.resource, granted)
    if granted < request.amount:
        requested = format_amount(request.resource, request.amount)
        amounts = _("%(granted)s (of %(asked)s requested)") % {"granted": amounts, "asked": requested}
    _notify_decision(actor, request, "approved", amounts, note, amount=granted, until=ends)
    return request


@transaction.atomic
def deny(*, actor: User, request_id: UUID, note: str) -> QuotaRequest:
    """Deny a request, with a note for the requester. Deletes a workspace that waited for it."""
    note = strip_nul(note).strip()[:MAX_NOTE]
    if not note:
        raise InvalidInput(
            Reason(RequestCode.DENIAL_NEEDS_NOTE),
            errors={"note": [Reason(RequestCode.NOTE_FOR_REQUESTER)]},
        )
    request = _request(request_id)
    policies.require_decide(actor, request)
    _decide(request, RequestState.DENIED, actor, note)
    amount = format_resource_amount(request.resource, request.amount)
    _notify_decision(actor, request, "denied", amount, note)
    _delete_waiting_workspace(request, f"{actor.username} denied the request that it waited for: {note}")
    return request


@transaction.atomic
def cancel(*, actor: User, request_id: UUID) -> QuotaRequest:
    """Cancel one's own request. Deletes a workspace that waited for it."""
    request = _request(request_id)
    if request.requester_id != actor.pk:
        requester = {"username": request.requester.username}
        raise NotAllowed(Reason(RequestCode.ONLY_REQUESTER_CANCELS, requester))
    if request.state == RequestState.CANCELLED:
        return request
    _cancel(request, actor)
    return request


def cancel_all_of(event: UserDeactivated) -> None:
    """Cancel the open requests of a deactivated user."""
    open_requests = QuotaRequest.objects.filter(requester=event.user, state=RequestState.OPEN)
    for request_id in open_requests.order_by("created_at", "pk").values_list("pk", flat=True):
        _cancel(_request(request_id), event.actor)


def cancel_all_in_team(event: TeamArchived | TeamDeletionStarted) -> None:
    """Cancel the open requests for an archived or deleted team."""
    open_requests = QuotaRequest.objects.filter(team=event.team, state=RequestState.OPEN)
    for request_id in open_requests.order_by("created_at", "pk").values_list("pk", flat=True):
        _cancel(_request(request_id), event.actor)


def _cancel(request: QuotaRequest, actor: User | SystemActor) -> None:
    _set(
        request,
        RequestState.CANCELLED,
        decided_by=actor if isinstance(actor, User) else None,
        decided_at=timezone.now(),
        decision_note="",
    )
    amount = format_resource_amount(request.resource, request.amount)
    events.record(
        actor=actor,
        kind=AuditKind.QUOTA_REQUEST_CANCELLED,
        team=request.team,
        workspace=request.workspace,
        message=f"cancelled the request for {amount} more for {request.team.name}",
        targets=[Target(TargetKind.QUOTA_REQUEST, str(request.pk))],
        data=_data(request),
    )
    _delete_waiting_workspace(request, "the request that it waited for was cancelled")


def _request(request_id: UUID) -> QuotaRequest:
    quota_request = (
        QuotaRequest.objects.select_related("team", "requester", "workspace", "decided_by")
        .filter(pk=request_id)
        .first()
    )
    if quota_request is None:
        raise NotFound(Reason(RequestCode.NO_SUCH_REQUEST))
    return quota_request


def _decide(request: QuotaRequest, state: RequestState, actor: User, note: str, **fields: Any) -> None:
    """Decide by a conditional update, so that only one of several concurrent decisions succeeds."""
    _set(request, state, decided_by=actor, decided_at=timezone.now(), decision_note=note, **fields)


def _set(request: QuotaRequest, state: RequestState, **fields: Any) -> None:
    changes = {"state": state, **fields}
    open_one = QuotaRequest.objects.filter(pk=request.pk, state=RequestState.OPEN)
    if not open_one.update(**changes):
        raise _decided_already(request.pk)
    for name, value in changes.items():
        setattr(request, name, value)
    events.refresh_pages(policies.deciders_of(request))


def _decided_already(request_id: UUID) -> StateConflict:
    present = _request(request_id)
    code = {
        RequestState.APPROVED: RequestCode.APPROVED_ALREADY,
        RequestState.DENIED: RequestCode.DENIED_ALREADY,
        RequestState.CANCELLED: RequestCode.REQUEST_CANCELLED_ALREADY,
    }.get(RequestState(present.state), RequestCode.DECIDED_ALREADY)
    decider = present.decided_by.username if present.decided_by else ""
    at = (present.decided_at or timezone.now()).isoformat()
    return StateConflict(
        Reason(code, {"who": decider, "at": at}),
        code=ProblemCode.DECIDED_ALREADY,
        quota_request=str(request_id),
        state_of_request=present.state,
    )


def _notify_decision(
    actor: User, request: QuotaRequest, decision: str, amounts: str, note: str, **data: Any
) -> None:
    """Record the `decision` on `amounts`, and notify the requester."""
    for_whom = None
    if request.kind != RequestKind.MEMBER_CAP and not approvers.is_approver(actor):
        for_whom = approvers.delegator_of(actor)
    own = request.requester_id == actor.pk
    suffix = f" as delegate of {for_whom.username}" if for_whom else ""
    suffix += " (a request of their own: there is no other administrator)" if own else ""
    events.record(
        actor=actor,
        kind=AuditKind(f"quota.request_{decision}"),
        team=request.team,
        workspace=request.workspace,
        message=f"{decision} {amounts} for {request.team.name}{suffix}" + (f": {note}" if note else ""),
        targets=[Target(TargetKind.QUOTA_REQUEST, str(request.pk))],
        data=_data(request, **data, own=own, **({"in_place_of": for_whom.username} if for_whom else {})),
    )
    if not own:
        title = (
            _("%(username)s approved %(amounts)s for %(team)s")
            if decision == "approved"
            else _("%(username)s denied %(amounts)s for %(team)s")
        ) % {"username": actor.username, "amounts": amounts, "team": request.team.name}
        events.notify([request.requester], f"quota.request_{decision}", title, note, url_of(request))


def _delete_waiting_workspace(request: QuotaRequest, why: str) -> None:
    """Delete the workspace if it waited only for this request. The request's page informs its user."""
    if request.workspace_id is None:
        return
    # Under lock: another grant may have allowed it to start meanwhile.
    waiting = lock_workspace(request.workspace_id)
    if waiting.state != State.PENDING or waiting.queue_entry.outcome != QueueOutcome.NEEDS_APPROVAL:
        return
    if waiting.quota_requests.filter(state=RequestState.OPEN).exclude(pk=request.pk).exists():
        return
    events.record(
        actor=SYSTEM,
        kind=AuditKind.WORKSPACE_NOT_APPROVED,
        workspace=waiting,
        message="deleted the workspace",
        reason=why,
    )
    workspaces.delete(actor=SYSTEM, workspace_id=waiting.pk)


def _data(request: QuotaRequest, **more: Any) -> dict[str, Any]:
    shown = {
        name: value.isoformat() if isinstance(value, datetime) else value for name, value in more.items()
    }
    return {
        "request": str(request.pk),
        "kind": request.kind,
        "resource": request.resource,
        "asked": request.amount,
        **shown,
    }
