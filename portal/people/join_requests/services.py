"""Writes join requests: ask, approve, deny, cancel, expire.

Each notifies the requester and refreshes the pages of the users that the request waited for.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from django.conf import settings
from django.db import transaction
from django.db.models import QuerySet
from django.db.models.signals import pre_delete
from django.urls import reverse
from django.utils import timezone
from django.utils.translation import gettext as _

from portal.common.actors import SYSTEM, SystemActor
from portal.common.errors import InvalidInput, NotAllowed, NotFound, PortalError, StateConflict
from portal.common.events import services as events
from portal.common.events.kinds import AuditKind
from portal.common.events.models import TargetKind
from portal.common.events.services import Target
from portal.common.problem_codes import ProblemCode
from portal.common.reasons.reason import Reason
from portal.common.texts import strip_nul
from portal.people.accounts import services as accounts
from portal.people.accounts.codes import AccountCode
from portal.people.accounts.domain_events import MemberSet, TeamArchived, TeamDeletionStarted, UserDeactivated
from portal.people.accounts.models import Role, Team, User
from portal.people.accounts.policies import is_member, require_active_team, require_person, require_role_for
from portal.people.join_requests import policies, selectors
from portal.people.join_requests.codes import JoinCode
from portal.people.join_requests.models import MAX_MESSAGE, JoinRequest, JoinState

MAX_OPEN = 5
"""Maximum number of open requests per user."""
MAX_A_DAY = 10
"""Maximum number of requests per user in 24 hours, including cancelled ones. Each notifies all owners."""
BATCH = 200


class TooManyJoinRequests(PortalError):
    """The user has reached a limit of join requests."""

    code = ProblemCode.TOO_MANY_JOIN_REQUESTS
    status = 429
    title = "Too many requests"


def connect() -> None:
    """Connect the signal that cancels requests to deleted teams. Called once when Django is ready."""
    pre_delete.connect(_team_deleted, sender=Team, dispatch_uid="join_requests.services")


def url_of(request: JoinRequest) -> str:
    """Return the URL of the request's page."""
    return reverse("join_requests:request", args=[request.pk])


@transaction.atomic
def request_to_join(*, actor: User, slug: str, text: str = "") -> tuple[JoinRequest, bool]:
    """Ask to join the team `slug`. `text` is a message to its owners.

    Returns the request and whether it is new; an open request is returned as it is. Raises `NotFound` for a
    team not listed for the actor, `StateConflict` (already a member; denied recently; an auditor),
    `NotAllowed`, `InvalidInput` and `TooManyJoinRequests`.
    """
    # Serializes requests of the same user, and locks against concurrent deactivation.
    actor = User.objects.select_for_update(no_key=True).get(pk=actor.pk)
    if not actor.is_active:
        raise NotAllowed(Reason(AccountCode.USER_DEACTIVATED, {"username": actor.username}))
    team = selectors.listed_team(actor, slug)
    require_active_team(team)
    if is_member(actor, team):
        raise StateConflict(
            Reason(JoinCode.ALREADY_IN_TEAM, {"team": team.name}), code=ProblemCode.ALREADY_IN_TEAM
        )
    require_person(actor)
    # Auditors see every team but work in none.
    require_role_for(actor, Role.MEMBER)
    text = strip_nul(text).strip()
    if len(text) > MAX_MESSAGE:
        wrong = Reason(JoinCode.JOIN_MESSAGE_TOO_LONG, {"max": MAX_MESSAGE})
        raise InvalidInput(wrong, errors={"message": [wrong]})
    now = timezone.now()
    own_requests = JoinRequest.objects.filter(requester=actor)
    # Close an expired request that the periodic task has not closed yet.
    _expire(own_requests.filter(team=team), now)
    present = own_requests.filter(team=team, state=JoinState.OPEN).select_related("team", "requester").first()
    if present is not None:
        return present, False
    _refuse_too_soon(own_requests, team, now)
    _refuse_too_many(own_requests, now)
    join_request = JoinRequest.objects.create(
        team=team,
        team_name=team.name,
        requester=actor,
        message=text,
        expires_at=now + timedelta(days=settings.BERTH_JOIN_REQUEST_DAYS),
    )
    _record(actor, join_request, AuditKind.TEAM_JOIN_REQUESTED, f"requested to join {team.name}", reason=text)
    events.notify(
        policies.deciders_of(join_request),
        "team.join_asked",
        _("%(username)s requests to join %(team)s") % {"username": actor.username, "team": team.name},
        text,
        url_of(join_request),
    )
    return join_request, True


def _refuse_too_soon(own_requests: QuerySet[JoinRequest], team: Team, now: datetime) -> None:
    since = now - timedelta(days=settings.BERTH_JOIN_AGAIN_DAYS)
    denied = own_requests.filter(team=team, state=JoinState.DENIED, decided_at__gt=since)
    last = denied.order_by("-decided_at").first()
    if last is not None and last.decided_at is not None:
        until = (last.decided_at + timedelta(days=settings.BERTH_JOIN_AGAIN_DAYS)).isoformat()
        reason = Reason(JoinCode.ASK_TO_JOIN_LATER, {"team": team.name, "until": until})
        raise StateConflict(reason, code=ProblemCode.ASK_TO_JOIN_LATER, again_at=until)


def _refuse_too_many(own_requests: QuerySet[JoinRequest], now: datetime) -> None:
    if own_requests.filter(state=JoinState.OPEN).count() >= MAX_OPEN:
        raise TooManyJoinRequests(Reason(JoinCode.TOO_MANY_JOIN_REQUESTS, {"limit": MAX_OPEN}))
    if own_requests.filter(created_at__gt=now - timedelta(days=1)).count() >= MAX_A_DAY:
        raise TooManyJoinRequests(Reason(JoinCode.TOO_MANY_JOIN_REQUESTS_A_DAY, {"limit": MAX_A_DAY}))


@transaction.atomic
def approve(*, actor: User, request_id: UUID, role: str = Role.MEMBER, note: str = "") -> JoinRequest:
    """Add the requester to the team with `role`. For team owners and operators, never the requester.

    Raises `NotFound`, `NotAllowed`, `InvalidInput` (role) and `StateConflict` (already closed).
    """
    request = _locked_request(actor, request_id)
    policies.require_decide(actor, request)
    team = request.team
    assert team is not None, "policies.require_decide refuses a request to a team that is gone"
    waited = list(policies.deciders_of(request))
    _close(request, JoinState.APPROVED, actor, _note(note), role=role)
    accounts.set_member(actor=actor, team=team, username=request.requester.username, role=role)
    params = {"username": actor.username, "team": team.name}
    _record(
        actor,
        request,
        AuditKind.TEAM_JOIN_APPROVED,
        f"added {request.requester.username} to {team.name} as {role}",
        reason=request.decision_note,
        role=role,
    )
    events.notify(
        [request.requester],
        "team.join_approved",
        _("%(username)s added you to %(team)s") % params,
        request.decision_note or _("You can view the team and start what your role allows."),
        reverse("home:home"),
    )
    events.refresh_pages(waited)
    return request


@transaction.atomic
def deny(*, actor: User, request_id: UUID, note: str) -> JoinRequest:
    """Deny a request, with a note to the requester. Raises like `approve`."""
    note = _note(note)
    if not note:
        missing = Reason(JoinCode.JOIN_DENIAL_NEEDS_NOTE)
        raise InvalidInput(missing, errors={"note": [missing]})
    request = _locked_request(actor, request_id)
    policies.require_decide(actor, request)
    waited = list(policies.deciders_of(request))
    _close(request, JoinState.DENIED, actor, note)
    message = f"denied the request of {request.requester.username} to join {request.team_name}"
    _record(actor, request, AuditKind.TEAM_JOIN_DENIED, message, reason=note)
    params = {"username": actor.username, "team": request.team_name}
    events.notify(
        [request.requester],
        "team.join_denied",
        _("%(username)s denied your request to join %(team)s") % params,
        note,
        url_of(request),
    )
    events.refresh_pages(waited)
    return request


@transaction.atomic
def cancel(*, actor: User, request_id: UUID) -> JoinRequest:
    """Cancel one's own request. Idempotent. Raises `NotFound`, `NotAllowed` and `StateConflict`."""
    request = _locked_request(actor, request_id)
    if request.requester_id != actor.pk:
        requester = {"username": request.requester.username}
        raise NotAllowed(Reason(JoinCode.ONLY_REQUESTER_CANCELS_JOIN, requester))
    if request.state != JoinState.CANCELLED:
        _cancel(request, actor)
    return request


def cancel_all_of(event: UserDeactivated) -> None:
    """Cancel all open requests of a deactivated user."""
    for request in _open().filter(requester=event.user):
        _cancel(request, event.actor)


def team_archived(event: TeamArchived | TeamDeletionStarted) -> None:
    """Cancel all open requests to join an archived or deleted team."""
    for request in _open().filter(team=event.team):
        _cancel(request, event.actor, "the team is archived")


def member_set(event: MemberSet) -> None:
    """Close the open request of a user who was added to the team in another way."""
    for request in _open().filter(requester=event.user, team=event.team):
        waited = list(policies.deciders_of(request))
        actor = event.actor if isinstance(event.actor, User) else None
        _close(request, JoinState.APPROVED, actor, "", role=event.role)
        message = f"added {request.requester.username} to {request.team_name} as {event.role}"
        _record(event.actor, request, AuditKind.TEAM_JOIN_APPROVED, message, role=event.role)
        events.refresh_pages(waited)


def expire_due(*, now: datetime | None = None) -> int:
    """Close expired requests and notify requesters. Returns the number closed."""
    with transaction.atomic():
        return _expire(JoinRequest.objects.all(), now or timezone.now())


def _expire(requests: QuerySet[JoinRequest], now: datetime) -> int:
    due = _open(requests).filter(expires_at__lte=now)[:BATCH]
    for request in due:
        waited = list(policies.deciders_of(request))
        _close(request, JoinState.EXPIRED, None, "")
        params = {"team": request.team_name}
        message = f"closed the request of {request.requester.username} to join {request.team_name}"
        _record(SYSTEM, request, AuditKind.TEAM_JOIN_EXPIRED, message, reason="not decided in time")
        events.notify(
            [request.requester],
            "team.join_expired",
            _("Your request to join %(team)s expired") % params,
            _("It was not decided in time. Contact a team owner, then request again."),
            url_of(request),
        )
        events.refresh_pages(waited)
    return len(due)


def _cancel(request: JoinRequest, actor: User | SystemActor, why: str = "") -> None:
    waited = list(policies.deciders_of(request))
    _close(request, JoinState.CANCELLED, actor if isinstance(actor, User) else None, "")
    message = f"cancelled the request of {request.requester.username} to join {request.team_name}"
    _record(actor, request, AuditKind.TEAM_JOIN_CANCELLED, message, reason=why)
    events.refresh_pages([*waited, request.requester])


def _team_deleted(*, instance: Team, **_more: Any) -> None:
    with transaction.atomic():
        for request in _open().filter(team=instance):
            _cancel(request, SYSTEM, "the team was deleted")
            events.notify(
                [request.requester],
                "team.join_cancelled",
                _("%(team)s, which you requested to join, was deleted") % {"team": request.team_name},
                "",
                url_of(request),
            )


def _open(requests: QuerySet[JoinRequest] | None = None) -> QuerySet[JoinRequest]:
    """Return the open requests, locked in a fixed order."""
    rows = JoinRequest.objects.all() if requests is None else requests
    return (
        rows.filter(state=JoinState.OPEN)
        .select_related("team", "requester")
        .select_for_update(of=("self",))
        .order_by("created_at", "pk")
    )


def _locked_request(actor: User, request_id: UUID) -> JoinRequest:
    """Return the request, locked. Raises `NotFound` if it is not visible to the actor."""
    rows = JoinRequest.objects.select_related("team", "requester").filter(pk=request_id)
    request = rows.filter(policies.visible_to(actor)).select_for_update(of=("self",)).first()
    if request is None:
        raise NotFound(Reason(JoinCode.NO_SUCH_JOIN_REQUEST))
    return request


def _close(request: JoinRequest, state: JoinState, actor: User | None, note: str, *, role: str = "") -> None:
    """Close an open request. Raises `StateConflict` that names who decided first."""
    if request.state != JoinState.OPEN:
        raise _already_closed_error(request)
    request.state, request.role = state, role
    request.decided_by, request.decided_at, request.decision_note = actor, timezone.now(), note
    request.save(update_fields=["state", "role", "decided_by", "decided_at", "decision_note"])


def _already_closed_error(request: JoinRequest) -> StateConflict:
    code = {
        JoinState.APPROVED: JoinCode.JOIN_APPROVED_ALREADY,
        JoinState.DENIED: JoinCode.JOIN_DENIED_ALREADY,
    }.get(JoinState(request.state), JoinCode.JOIN_CLOSED_ALREADY)
    username = request.decided_by.username if request.decided_by else _("An administrator")
    params = {} if code is JoinCode.JOIN_CLOSED_ALREADY else {"who": username}
    return StateConflict(
        Reason(code, params),
        code=ProblemCode.DECIDED_ALREADY,
        join_request=str(request.pk),
        state_of_request=request.state,
    )


def _note(text: str) -> str:
    return strip_nul(text).strip()[:MAX_MESSAGE]


def _record(
    actor: User | SystemActor,
    request: JoinRequest,
    kind: AuditKind,
    message: str,
    *,
    reason: str = "",
    **data: Any,
) -> None:
    events.record(
        actor=actor,
        kind=kind,
        team=request.team,
        message=message,
        reason=reason,
        targets=[Target(TargetKind.USER, str(request.requester_id))],
        data={"join_request": str(request.pk), "requester": request.requester.username, **data},
    )
