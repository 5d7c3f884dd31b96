"""Permissions on join requests."""

from __future__ import annotations

from collections.abc import Iterable

from django.conf import settings
from django.db.models import Exists, OuterRef, Q, QuerySet

from portal.common.errors import NotAllowed
from portal.common.reasons.reason import Reason
from portal.people.accounts.codes import AccountCode
from portal.people.accounts.models import Membership, Role, Team, User
from portal.people.accounts.policies import may_manage_team
from portal.people.join_requests.codes import JoinCode
from portal.people.join_requests.models import JoinRequest


def lists_teams() -> bool:
    """Return whether all signed-in users may see which teams exist and who owns them."""
    return bool(settings.BERTH_LIST_TEAMS)


def visible_to(actor: User) -> Q:
    """Return a filter for requests visible to the actor: their own, and those to teams they manage."""
    return Q(requester=actor) | (Q(team__isnull=False) if actor.sees_all else Q(team__in=_owned_teams(actor)))


def filter_decidable(actor: User) -> Q:
    """Return a filter for requests that wait for the actor.

    These are requests to teams that the actor owns and, for operators, to teams without an active owner.
    Operators may decide all others as well, but those wait for the owners.
    """
    owned = Q(team__in=_owned_teams(actor))
    if actor.operates:
        owners = Membership.objects.filter(team=OuterRef("team"), role=Role.OWNER, user__is_active=True)
        owned |= Q(team__isnull=False) & ~Q(Exists(owners))
    return owned & ~Q(requester=actor)


def may_decide(actor: User, request: JoinRequest) -> bool:
    """Return whether the actor may decide this request while it is open. Own requests cannot be decided."""
    return (
        request.team is not None
        and actor.is_active
        and request.requester_id != actor.pk
        and may_manage_team(actor, request.team)
    )


def require_decide(actor: User, request: JoinRequest) -> None:
    """Raise `NotAllowed` unless the actor may decide this request."""
    if request.requester_id == actor.pk:
        raise NotAllowed(Reason(JoinCode.NOBODY_JOINS_ALONE))
    if not may_decide(actor, request):
        raise NotAllowed(Reason(AccountCode.ONLY_TEAM_OWNERS, {"team": request.team_name}))


def deciders_of(request: JoinRequest) -> Iterable[User]:
    """Return users that the request waits for: the team's owners, else operators.

    Never includes the requester.
    """
    deciders = User.objects.filter(
        memberships__team=request.team, memberships__role=Role.OWNER, is_active=True
    )
    if not deciders.exists():
        deciders = User.objects.filter(Q(is_operator=True) | Q(is_superuser=True), is_active=True)
    return deciders.exclude(pk=request.requester_id)


def _owned_teams(actor: User) -> QuerySet[Team]:
    return Team.objects.filter(memberships__user=actor, memberships__role=Role.OWNER)
