"""Who I am, teams, members and tokens over REST."""

from __future__ import annotations

from typing import Any
from uuid import UUID

from django.db.models import QuerySet
from django.urls import register_converter, reverse
from drf_spectacular.utils import OpenApiParameter
from rest_framework.response import Response

from portal.accounts import schema, selectors, services  # noqa: F401  (schema registers itself)
from portal.accounts.models import ApiToken, Membership, Team, User
from portal.accounts.serializers import (
    MemberSerializer,
    MemberSetSerializer,
    MeSerializer,
    NewTokenSerializer,
    TeamCreateSerializer,
    TeamSerializer,
    TokenCreateSerializer,
    TokenSerializer,
)
from portal.common.api import ApiView, ListView, UserRequest, WhoeverSignedIn, operation, routes
from portal.common.errors import InvalidInput, NotFound
from portal.common.scopes import Scope


class UsernameConverter:
    """What a user's name may hold, and nothing that a database would stumble over."""

    regex = "[A-Za-z0-9._-]{1,64}"

    def to_python(self, value: str) -> str:
        return value

    def to_url(self, value: str) -> str:
        return value


register_converter(UsernameConverter, "username")
TEAM_SCOPES = {"GET": Scope.TEAMS_READ, "*": Scope.TEAMS_WRITE}
TOKEN_SCOPES = {"GET": Scope.TOKENS_READ, "*": Scope.TOKENS_WRITE}
USERNAME = OpenApiParameter("username", str, OpenApiParameter.PATH, description="The user's name.")


class Me(ApiView):
    permission_classes = [WhoeverSignedIn]

    @operation("Who am I", responses={200: MeSerializer})
    def get(self, request: UserRequest) -> Response:
        user = request.user
        token = request.auth if isinstance(request.auth, ApiToken) else None
        data = {
            "username": user.username,
            "email": user.email,
            "is_operator": user.operates,
            "is_approver": user.is_approver,
            "teams": selectors.memberships_of(user),
            "scopes": token.scopes if token else [Scope.ALL],
            "token": token,
        }
        return Response(MeSerializer(data).data)


def _team_data(actor: User, team: Team) -> Any:
    team = selectors.teams_for(actor).get(pk=team.pk)
    return TeamSerializer(team, context={"roles": selectors.roles_of(actor)}).data


class TeamList(ListView):
    scopes = TEAM_SCOPES
    serializer_class = TeamSerializer
    ordering = ("slug",)

    def get_queryset(self) -> QuerySet[Team]:
        return Team.objects.none() if self.documenting() else selectors.teams_for(self.request.user)

    def get_serializer_context(self) -> dict[str, Any]:
        roles = {} if self.documenting() else selectors.roles_of(self.request.user)
        return {**super().get_serializer_context(), "roles": roles}

    @operation("List the teams that you may see", responses={200: TeamSerializer(many=True)}, errors=[400])
    def get(self, request: UserRequest) -> Response:
        return self.list(request)

    @operation(
        "Create a team",
        description="For operators.",
        request=TeamCreateSerializer,
        responses={201: TeamSerializer},
        errors=[400, 415],
    )
    def post(self, request: UserRequest) -> Response:
        body = TeamCreateSerializer(data=request.data)
        body.is_valid(raise_exception=True)
        given = body.validated_data
        team = services.create_team(
            actor=request.user,
            slug=given["slug"],
            name=given.get("name", ""),
            owner=_user(given["owner"]) if given.get("owner") else None,
        )
        location = reverse("api:team", args=[team.slug])
        return Response(_team_data(request.user, team), status=201, headers={"Location": location})


def _user(username: str) -> User:
    user = User.objects.filter(username=username.strip().lower(), is_active=True).first()
    if user is None:
        raise InvalidInput(
            f"There is no user “{username}”.",
            next_action="Check the spelling.",
            errors={"owner": ["No user has this name."]},
        )
    return user


class TeamDetail(ApiView):
    scopes = TEAM_SCOPES

    @operation("Read a team", responses={200: TeamSerializer}, errors=[404])
    def get(self, request: UserRequest, slug: str) -> Response:
        return Response(_team_data(request.user, selectors.team_by_slug(request.user, slug)))


class MemberList(ListView):
    scopes = TEAM_SCOPES
    serializer_class = MemberSerializer
    ordering = ("joined_at", "id")

    def get_queryset(self) -> QuerySet[Membership]:
        if self.documenting():
            return Membership.objects.none()
        team = selectors.team_by_slug(self.request.user, self.kwargs["slug"])
        return team.memberships.select_related("user")

    @operation("List a team's members", responses={200: MemberSerializer(many=True)}, errors=[400, 404])
    def get(self, request: UserRequest, slug: str) -> Response:
        return self.list(request)


class MemberDetail(ApiView):
    scopes = TEAM_SCOPES

    @operation(
        "Add a member or change the role",
        description="For owners of the team and operators. A team keeps at least one owner.",
        request=MemberSetSerializer,
        responses={200: MemberSerializer},
        parameters=[USERNAME],
        errors=[400, 404, 409, 415],
    )
    def put(self, request: UserRequest, slug: str, username: str) -> Response:
        body = MemberSetSerializer(data=request.data)
        body.is_valid(raise_exception=True)
        membership = services.set_member(
            actor=request.user,
            team=selectors.team_by_slug(request.user, slug),
            username=username,
            role=body.validated_data["role"],
        )
        return Response(MemberSerializer(membership).data)

    @operation(
        "Take a member out of a team",
        description="For owners of the team and operators; members may leave by themselves.",
        responses={204: None},
        parameters=[USERNAME],
        errors=[404, 409],
    )
    def delete(self, request: UserRequest, slug: str, username: str) -> Response:
        services.remove_member(
            actor=request.user, team=selectors.team_by_slug(request.user, slug), username=username
        )
        return Response(status=204)


class TokenList(ListView):
    scopes = TOKEN_SCOPES
    serializer_class = TokenSerializer
    ordering = ("-created_at", "-id")

    def get_queryset(self) -> QuerySet[ApiToken]:
        return ApiToken.objects.none() if self.documenting() else selectors.tokens_of(self.request.user)

    @operation("List your tokens", responses={200: TokenSerializer(many=True)}, errors=[400])
    def get(self, request: UserRequest) -> Response:
        return self.list(request)

    @operation(
        "Create a token",
        description="The answer holds the secret, this once. A token cannot make one that may do more.",
        request=TokenCreateSerializer,
        responses={201: NewTokenSerializer},
        errors=[400, 415],
    )
    def post(self, request: UserRequest) -> Response:
        body = TokenCreateSerializer(data=request.data)
        body.is_valid(raise_exception=True)
        given = body.validated_data
        parent = request.auth if isinstance(request.auth, ApiToken) else None
        made = services.create_token(
            actor=request.user,
            user=request.user,
            name=given["name"],
            scopes=given.get("scopes") or (parent.scopes if parent else [Scope.ALL]),
            expires_at=given.get("expires_at"),
            made_with=parent,
        )
        data = NewTokenSerializer(made.token, context={"secret": made.secret}).data
        return Response(data, status=201, headers={"Cache-Control": "no-store"})


class TokenDetail(ApiView):
    scopes = TOKEN_SCOPES

    @operation("Read one of your tokens", responses={200: TokenSerializer}, errors=[404])
    def get(self, request: UserRequest, token_id: UUID) -> Response:
        token = selectors.tokens_of(request.user).filter(pk=token_id).first()
        if token is None:
            raise NotFound("There is no such token of yours.", next_action="Look at your list of tokens.")
        return Response(TokenSerializer(token).data)

    @operation("Revoke a token", description="At once.", responses={204: None}, errors=[404])
    def delete(self, request: UserRequest, token_id: UUID) -> Response:
        services.revoke_token(actor=request.user, token_id=token_id)
        return Response(status=204)


urlpatterns = [
    *routes("me", Me, "me"),
    *routes("teams", TeamList, "teams"),
    *routes("teams/<slug:slug>", TeamDetail, "team"),
    *routes("teams/<slug:slug>/members", MemberList, "members"),
    *routes("teams/<slug:slug>/members/<username:username>", MemberDetail, "member"),
    *routes("tokens", TokenList, "tokens"),
    *routes("tokens/<uuid:token_id>", TokenDetail, "token"),
]
