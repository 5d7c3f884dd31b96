"""Queries for users, teams, members and tokens visible to the actor."""

from __future__ import annotations

from datetime import datetime
from typing import Any, NamedTuple
from uuid import UUID

from django.db.models import Count, Exists, OuterRef, Prefetch, Q, QuerySet
from django.utils import timezone

from portal.common.errors import NotFound
from portal.common.events.kinds import AuditKind
from portal.common.events.models import Event, EventTarget, TargetKind
from portal.common.prepared import PreparedRows
from portal.common.reasons.reason import Reason
from portal.common.texts import strip_nul
from portal.people.accounts import policies
from portal.people.accounts.codes import AccountCode
from portal.people.accounts.models import (
    ApiToken,
    ApiTokenQuerySet,
    Membership,
    Role,
    Team,
    User,
    UserQuerySet,
)


def teams_for(actor: User) -> QuerySet[Team]:
    """Return teams visible to the actor, with `member_count`."""
    teams = Team.objects.annotate(member_count=Count("memberships", distinct=True)).order_by("slug")
    return teams if actor.sees_all else teams.filter(memberships__user=actor)


def own_teams(actor: User) -> QuerySet[Team]:
    """Return teams that the actor is in, with any role."""
    return Team.objects.filter(memberships__user=actor).order_by("slug")


def chargeable_teams(actor: User) -> QuerySet[Team]:
    """Return teams that the actor may charge: active ones where they are more than a viewer."""
    working = Membership.objects.filter(user=actor).exclude(role=Role.VIEWER)
    return Team.objects.filter(memberships__in=working, archived_at=None).order_by("slug")


def membership_of(team: Team, username: str) -> Membership:
    """Return the membership of a user in a team. Raises `NotFound`."""
    membership = team.memberships.select_related("user").filter(user__username=strip_nul(username)).first()
    if membership is None:
        raise NotFound(Reason(AccountCode.NOT_A_MEMBER, {"username": username, "team": team.name}))
    return membership


def team_by_slug(actor: User, slug: str) -> Team:
    """Return the team. Raises `NotFound` if it does not exist or is not visible to the actor."""
    visible = Q() if actor.sees_all else Q(memberships__user=actor)
    team = (
        Team.objects.filter(visible, slug=strip_nul(slug))
        .prefetch_related(
            Prefetch("memberships", Membership.objects.select_related("user").order_by("user__username"))
        )
        .first()
    )
    if team is None:
        raise NotFound(Reason(AccountCode.NO_SUCH_TEAM, {"slug": slug}))
    return team


def owners_of(team: Team) -> QuerySet[User]:
    return User.objects.filter(memberships__team=team, memberships__role=Role.OWNER, is_active=True)


def workspace_names(team: Team, username: str) -> list[str]:
    """Return names of a member's workspaces in the team that are not deleted. They prevent removal."""
    member = User.objects.filter(memberships__team=team, username=username).first()
    if member is None:
        return []
    return list(member.workspaces.live().filter(team=team).order_by("name").values_list("name", flat=True))


def tokens_of(actor: User) -> ApiTokenQuerySet:
    """Return the actor's tokens that are not revoked, newest first.

    Includes expired ones, to explain a 401.
    """
    return _tokens().unrevoked().filter(owner=actor)


def tokens_for(actor: User, *, revoked: bool = False) -> ApiTokenQuerySet:
    """Return tokens visible to the actor, newest first. `revoked` includes revoked ones.

    Visible are one's own, those of service accounts of teams that one owns, and all for operators and
    auditors.
    """
    tokens = _tokens() if revoked else _tokens().unrevoked()
    if actor.sees_all:
        return tokens
    owned = Membership.objects.filter(user=actor, role=Role.OWNER).values("team")
    return tokens.filter(Q(owner=actor) | Q(owner__owning_team__in=owned))


def tokens_unused_since(tokens: ApiTokenQuerySet, moment: datetime) -> ApiTokenQuerySet:
    """Return tokens created before `moment` and not used since."""
    unused = Q(last_used_at=None) | Q(last_used_at__lt=moment)
    return tokens.filter(unused, created_at__lt=moment)


def _tokens() -> ApiTokenQuerySet:
    """Return tokens, newest first. `rotated` says whether a newer token replaces it."""
    newer = ApiToken.objects.filter(replaces=OuterRef("pk"))
    rows = ApiToken.objects.select_related("owner__owning_team", "created_by").annotate(rotated=Exists(newer))
    tokens: ApiTokenQuerySet = rows.order_by("-created_at", "-id")
    return tokens


def memberships_of(actor: User) -> QuerySet[Membership]:
    """Return the actor's memberships."""
    return Membership.objects.filter(user=actor).select_related("team").order_by("team__slug")


class TeamRole(NamedTuple):
    """A membership, as columns for display."""

    slug: str
    name: str
    role: str


_TEAM_ROLES = PreparedRows(
    lambda keys: (
        Membership.objects.filter(user__in=keys)
        .order_by("team__slug")
        .values_list("team__slug", "team__name", "role")
    ),
    lambda: User._meta.pk,
)


def team_roles_of(actor: User) -> list[TeamRole]:
    """Return `memberships_of` as columns. Faster, for hot paths."""
    return [TeamRole(*row) for row in _TEAM_ROLES.rows([actor.pk])]


def roles_of(actor: User) -> dict[UUID, str]:
    """Return the actor's role by team id."""
    return dict(Membership.objects.filter(user=actor).values_list("team_id", "role"))


def still_valid(actor: User, token: ApiToken | None) -> bool:
    """Return whether a long-running request may continue: user active and token valid."""
    if token is None:
        return User.objects.filter(pk=actor.pk, is_active=True).exists()
    return ApiToken.objects.valid_at(timezone.now()).filter(pk=token.pk).exists()


def users_for(actor: User) -> UserQuerySet:
    """Return all existing accounts with their memberships. Raises `NotAllowed`."""
    policies.require_see_people(actor)
    places = Membership.objects.select_related("team").order_by("team__slug")
    users = User.objects.not_deleted().select_related("owning_team")
    return users.prefetch_related(Prefetch("memberships", places)).order_by("username")


def user_by_name(actor: User, username: str) -> User:
    """Return the account.

    Raises `NotFound`, and `NotAllowed` unless the actor is an administrator or auditor.
    """
    user = users_for(actor).filter(username=strip_nul(username)).first()
    if user is None:
        raise NotFound(Reason(AccountCode.NO_SUCH_USER, {"username": username}))
    return user


def search_users(users: UserQuerySet, query: str) -> UserQuerySet:
    """Return users whose name or address contains all words."""
    for term in strip_nul(query).split()[:10]:
        users = users.filter(
            Q(username__icontains=term)
            | Q(email__icontains=term)
            | Q(first_name__icontains=term)
            | Q(last_name__icontains=term)
        )
    return users


def entries_about(user: User) -> QuerySet[Event]:
    """Return audit entries about a user or by the user, newest first."""
    return Event.objects.filter(Q(actor=user) | Q(pk__in=_entry_ids(user))).order_by("-id")


def entries_with_target(user: User) -> QuerySet[Event]:
    """Return audit entries about a user."""
    return Event.objects.filter(pk__in=_entry_ids(user))


def _entry_ids(user: User) -> QuerySet[EventTarget, Any]:
    return EventTarget.objects.filter(kind=TargetKind.USER, key=str(user.pk)).values("event_id")


def sign_ins_of(user: User) -> QuerySet[Event]:
    """Return the user's sign-ins, refused sign-ins and ended sessions, newest first."""
    return entries_with_target(user).filter(kind__in=SIGN_INS).order_by("-id")


SIGN_INS = (
    AuditKind.SESSION_SIGNED_IN,
    AuditKind.SESSION_SIGN_IN_FAILED,
    AuditKind.SESSION_LOCKED_OUT,
    AuditKind.SESSION_SIGNED_OUT,
    AuditKind.SESSION_ENDED,
)
