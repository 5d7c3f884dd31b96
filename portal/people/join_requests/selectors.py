"""Queries for joinable teams and join requests visible to the actor."""

from __future__ import annotations

from uuid import UUID

from django.db.models import Exists, OuterRef, Prefetch, Q, QuerySet

from portal.common.errors import NotFound
from portal.common.reasons.reason import Reason
from portal.common.texts import strip_nul
from portal.people.accounts.codes import AccountCode
from portal.people.accounts.models import Membership, Role, Team, User
from portal.people.join_requests import policies
from portal.people.join_requests.codes import JoinCode
from portal.people.join_requests.models import JoinRequest, JoinState


def joinable_teams(actor: User) -> QuerySet[Team]:
    """Return active teams that the actor is not in and may ask to join, by name.

    Each has `owner_places` (memberships of active owners, with users) and `own_requests` (the actor's open
    request, if any). Empty for auditors, who work in no team, and if teams are not listed (operators see
    all).
    """
    if actor.is_auditor or not (policies.lists_teams() or actor.sees_all):
        return Team.objects.none()
    owners = Membership.objects.filter(role=Role.OWNER, user__is_active=True).select_related("user")
    own = JoinRequest.objects.filter(requester=actor, state=JoinState.OPEN)
    return (
        Team.objects.filter(archived_at=None)
        .exclude(Exists(Membership.objects.filter(team=OuterRef("pk"), user=actor)))
        .order_by("name", "pk")
        .prefetch_related(
            Prefetch("memberships", owners.order_by("user__username"), to_attr="owner_places"),
            Prefetch("join_requests", own, to_attr="own_requests"),
        )
    )


def search_teams(teams: QuerySet[Team], query: str) -> QuerySet[Team]:
    """Return teams whose name or owners contain all words."""
    for term in strip_nul(query).split()[:10]:
        owned = Membership.objects.filter(
            team=OuterRef("pk"), role=Role.OWNER, user__is_active=True, user__username__icontains=term
        )
        teams = teams.filter(Q(name__icontains=term) | Q(slug__icontains=term) | Q(Exists(owned)))
    return teams


def listed_team(actor: User, slug: str) -> Team:
    """Return the team. Raises `NotFound` also if the actor may not know that it exists."""
    visible = Q() if policies.lists_teams() or actor.sees_all else Q(memberships__user=actor)
    team = Team.objects.filter(visible, slug=strip_nul(slug)).first()
    if team is None:
        raise NotFound(Reason(AccountCode.NO_SUCH_TEAM, {"slug": slug}))
    return team


def requests_for(actor: User) -> QuerySet[JoinRequest]:
    """Return requests visible to the actor, newest first."""
    requests = JoinRequest.objects.select_related("team", "requester", "decided_by")
    return requests.filter(policies.visible_to(actor)).order_by("-created_at", "-id")


def request_by_id(actor: User, request_id: UUID) -> JoinRequest:
    """Return the request. Raises `NotFound` if it does not exist or is not visible to the actor."""
    join_request = requests_for(actor).filter(pk=request_id).first()
    if join_request is None:
        raise NotFound(Reason(JoinCode.NO_SUCH_JOIN_REQUEST))
    return join_request


def requests_of_user(user: User) -> QuerySet[JoinRequest]:
    """Return the user's own requests, newest first."""
    return (
        JoinRequest.objects.filter(requester=user)
        .select_related("team", "decided_by")
        .order_by("-created_at", "-id")
    )


def requests_to_decide(actor: User) -> QuerySet[JoinRequest]:
    """Return open requests that wait for the actor's decision, oldest first."""
    requests = JoinRequest.objects.select_related("team", "requester")
    return requests.filter(policies.filter_decidable(actor), state=JoinState.OPEN).order_by(
        "created_at", "id"
    )
