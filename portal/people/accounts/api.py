"""REST API of the current user, teams and members."""

from __future__ import annotations

from typing import Any

from django.contrib.auth import logout
from django.db.models import QuerySet
from django.urls import register_converter, reverse
from drf_spectacular.utils import OpenApiParameter
from rest_framework.decorators import action
from rest_framework.request import Request
from rest_framework.response import Response

from portal.common import etags
from portal.common.api import (
    ApiView,
    IsSignedIn,
    ReadViewSet,
    Router,
    UserRequest,
    body_of,
    documented,
    operation,
    routes,
)
from portal.common.errors import InvalidInput, NotAllowed
from portal.common.etags import IF_MATCH, TaggedViewSet
from portal.common.history.serializers import RevisionSerializer
from portal.common.reasons.reason import Reason
from portal.common.scopes import Scope
from portal.people.accounts import (
    deletion_choices,
    policies,
    schema,  # noqa: F401  (registers itself)
    selectors,
    services,
    team_egress,
    teams,
    users,
)
from portal.people.accounts.codes import AccountCode
from portal.people.accounts.mfa.proof import require_fresh
from portal.people.accounts.models import ApiToken, Membership, Team, User
from portal.people.accounts.serializers import (
    MemberSerializer,
    MemberSetSerializer,
    MeSerializer,
    TeamChangeSerializer,
    TeamContentsSerializer,
    TeamCreateSerializer,
    TeamEgressChangeSerializer,
    TeamEgressSerializer,
    TeamSerializer,
)
from portal.people.accounts.team_contents import team_contents

TEAM_HOMES = OpenApiParameter(
    "homes",
    str,
    enum=["delete"],
    description="`delete` confirms that the team's home folders are deleted. Required if there are any.",
)
NUMBER = OpenApiParameter("number", int, OpenApiParameter.PATH, description="Number of the version, from 1.")


class UsernameConverter:
    """URL converter for user names. Matches only text that databases accept."""

    regex = "[A-Za-z0-9._-]{1,64}"

    def to_python(self, value: str) -> str:
        return value

    def to_url(self, value: str) -> str:
        return value


register_converter(UsernameConverter, "username")
TEAM_SCOPES = {"GET": Scope.TEAMS_READ, "*": Scope.TEAMS_WRITE}
VERSIONS_SHOWN = 50
USERNAME = OpenApiParameter("username", str, OpenApiParameter.PATH, description="Username of the user.")


class Me(ApiView):
    """The authenticated user, for any token."""

    tag = "users"
    operation_ids = {"get": "getMe", "delete": "deleteMe"}
    permission_classes = [IsSignedIn]

    @property
    def query_params(self) -> frozenset[str]:  # type: ignore[override]
        return frozenset({"workspaces", "homes"}) if self.request.method == "DELETE" else frozenset()

    @operation("Read your account", responses={200: MeSerializer})
    def get(self, request: UserRequest) -> Response:
        user = request.user
        token = request.auth if isinstance(request.auth, ApiToken) else None
        data = {
            "username": user.username,
            "kind": user.kind.value,
            "email": user.email,
            "is_operator": user.operates,
            "is_approver": user.is_approver,
            "roles": user.roles,
            "teams": selectors.team_roles_of(user),
            "scopes": token.scopes if token else [Scope.ALL],
            "token": token,
        }
        return Response(MeSerializer(data).data)

    @operation(
        "Delete your account",
        description=(
            "Requires `BERTH_ACCOUNT_DELETION` or the role of administrator, and a browser session that "
            "was confirmed recently. API tokens get 403. Returns 409 for the last administrator, for the "
            "only owner of a team with other members, and for accounts with workspaces unless "
            "`workspaces=delete`. Home folders stay on their nodes unless `homes=delete`."
        ),
        responses={204: None},
        parameters=[deletion_choices.WORKSPACES, deletion_choices.HOMES],
        errors=[400, 409],
    )
    def delete(self, request: UserRequest) -> Response:
        if isinstance(request.auth, ApiToken):
            raise NotAllowed(Reason(AccountCode.OWN_ACCOUNT_BY_TOKEN))
        require_fresh(request)
        users.delete(
            actor=request.user,
            user=request.user,
            delete_workspaces=deletion_choices.is_deletion_chosen(request),
            delete_homes=deletion_choices.is_deletion_chosen(request, "homes"),
        )
        logout(request._request)
        return Response(status=204)


DELETION_RETRY_AFTER_S = 5
"""Seconds until a client should check again whether a team has been deleted."""


@documented(list="List teams", retrieve="Read a team")
class TeamViewSet(ReadViewSet):
    tag = "teams"
    operation_ids = {
        "list": "listTeams",
        "create": "createTeam",
        "retrieve": "getTeam",
        "partial_update": "updateTeam",
        "contents": "getTeamContents",
        "archive": "archiveTeam",
        "restore": "restoreTeam",
        "destroy": "deleteTeam",
        "egress": "getTeamEgress",
        "set_egress": "setTeamEgress",
        "egress_versions": "listTeamEgressVersions",
        "egress_restore": "restoreTeamEgressVersion",
    }
    queryset = Team.objects.none()
    serializer_class = TeamSerializer
    scopes = TEAM_SCOPES
    ordering = ("slug",)
    lookup_field = "slug"
    lookup_value_converter = "slug"

    def get_queryset(self) -> QuerySet[Team]:
        return selectors.teams_for(self.request.user)

    def get_object(self) -> Team:
        team = selectors.team_by_slug(self.request.user, self.kwargs["slug"])
        return self.get_queryset().get(pk=team.pk)

    def get_serializer_context(self) -> dict[str, Any]:
        return {**super().get_serializer_context(), "roles": selectors.roles_of(self.request.user)}

    @property
    def query_params(self) -> frozenset[str]:  # type: ignore[override]
        return frozenset({"homes"}) if self.action == "destroy" else frozenset()

    def answer(self, row: Any, *, status: int = 200, **headers: str) -> Response:
        versions = etags.headers_of(row, *teams.state_of(row))
        answered: Response = super().answer(row, status=status, **versions, **headers)
        return answered

    def retrieve(self, request: Request, *args: Any, **kwargs: Any) -> Response:
        return self.answer(self.get_object())

    @operation(
        "Create a team",
        idempotent=True,
        description="For operators. The first owner is `owner`, by default you.",
        request=TeamCreateSerializer,
        responses={201: TeamSerializer},
        errors=[400, 415],
    )
    def create(self, request: UserRequest) -> Response:
        body = body_of(request, TeamCreateSerializer)
        # Check permission before looking up a name, so as not to reveal which accounts exist.
        policies.require_operator(request.user)
        team = services.create_team(
            actor=request.user,
            slug=body["slug"],
            name=body.get("name", ""),
            owner=_user(body["owner"]) if body.get("owner") else request.user,
        )
        location = reverse("api:team-detail", args=[team.slug])
        return self.answer(self.get_queryset().get(pk=team.pk), status=201, Location=location)

    @operation(
        "Change a team",
        description="Name, and turns of members. For owners of the team and operators. Idempotent.",
        request=TeamChangeSerializer,
        responses={200: TeamSerializer},
        parameters=[IF_MATCH],
        errors=[400, 404, 412, 415],
    )
    def partial_update(self, request: UserRequest, slug: str) -> Response:
        body = body_of(request, TeamChangeSerializer, partial=True)
        expected, team = etags.expected_versions(request), self.get_object()
        teams.change(actor=request.user, team=team, expected=expected, **body)
        return self.answer(self.get_object())

    @operation(
        "Delete a team",
        description=(
            "For operators. The team must be archived; read its contents first. Members, service accounts, "
            "tokens, secrets, webhooks and limits end at once. Workspaces, then home folders, templates and "
            "environments follow: 202 until they are deleted, then 204, and the slug can be used again. "
            "Reports and the audit log keep the team. Idempotent."
        ),
        responses={202: TeamSerializer, 204: None},
        parameters=[TEAM_HOMES, IF_MATCH],
        errors=[400, 404, 409, 412],
        retry_after_s=DELETION_RETRY_AFTER_S,
    )
    def destroy(self, request: UserRequest, slug: str) -> Response:
        team = teams.delete(
            actor=request.user,
            team=self.get_object(),
            delete_homes=deletion_choices.is_deletion_chosen(request, "homes"),
            expected=etags.expected_versions(request),
        )
        if team.deleted_at is not None:
            return Response(status=204)
        location = reverse("api:team-detail", args=[team.slug])
        return self.answer(self.get_object(), status=202, Location=location)

    @operation(
        "Count the contents of a team",
        description="For owners of the team, operators and auditors. Read it before archiving or deletion.",
        responses={200: TeamContentsSerializer},
        errors=[404],
    )
    @action(detail=True, pagination_class=None, filterset_class=None)
    def contents(self, request: UserRequest, slug: str) -> Response:
        team = self.get_object()
        if not request.user.sees_all:
            policies.require_manage_team(request.user, team)
        return Response(TeamContentsSerializer(team_contents().contents_of(team)).data)

    @operation(
        "Archive a team",
        description=(
            "Stops its workspaces and allows no new ones. Cancels its open requests and its reservations. "
            "Keeps members, workspaces, home folders, quota, budgets and records. For owners of the team and "
            "operators. Idempotent."
        ),
        request=None,
        responses={200: TeamSerializer},
        errors=[404],
    )
    @action(detail=True, methods=["post"])
    def archive(self, request: UserRequest, slug: str) -> Response:
        teams.archive(actor=request.user, team=self.get_object())
        return self.answer(self.get_object())

    @operation(
        "Restore an archived team",
        description="Members can start workspaces again. For owners of the team and operators. Idempotent.",
        request=None,
        responses={200: TeamSerializer},
        errors=[404],
    )
    @action(detail=True, methods=["post"])
    def restore(self, request: UserRequest, slug: str) -> Response:
        teams.restore(actor=request.user, team=self.get_object())
        return self.answer(self.get_object())

    @operation(
        "Read a team's egress policy",
        responses={200: TeamEgressSerializer},
        errors=[404],
    )
    @action(detail=True, url_path="egress", pagination_class=None, filterset_class=None)
    def egress(self, request: UserRequest, slug: str) -> Response:
        return _egress(self.get_object())

    @operation(
        "Set a team's egress policy",
        description=(
            "For operators. Owners of the team can only make the policy stricter. Running workspaces are "
            "not affected."
        ),
        request=TeamEgressChangeSerializer,
        responses={200: TeamEgressSerializer},
        parameters=[IF_MATCH],
        errors=[400, 404, 412, 415],
    )
    @egress.mapping.put
    def set_egress(self, request: UserRequest, slug: str) -> Response:
        team = self.get_object()
        policies.require_manage_team(request.user, team)
        body = body_of(request, TeamEgressChangeSerializer)
        expected = etags.expected_versions(request)
        return _egress(team_egress.set_egress(actor=request.user, team=team, **body, expected=expected))

    @operation(
        "List the versions of a team's egress policy",
        description="For owners of the team, operators and auditors. Newest first, up to 50.",
        responses={200: RevisionSerializer(many=True)},
        errors=[404],
    )
    @action(detail=True, url_path="egress/versions", pagination_class=None, filterset_class=None)
    def egress_versions(self, request: UserRequest, slug: str) -> Response:
        team = self.get_object()
        if not request.user.sees_all:
            policies.require_manage_team(request.user, team)
        rows = []
        for row, changes in team_egress.versions(team, at_most=VERSIONS_SHOWN):
            row.changes = changes  # type: ignore[attr-defined]
            rows.append(row)
        return Response(RevisionSerializer(rows, many=True).data)

    @operation(
        "Restore a version of a team's egress policy",
        idempotent=True,
        description="For operators, and for owners of the team if it permits nothing new. Creates a new "
        "change with the values of that version.",
        request=None,
        responses={200: TeamEgressSerializer},
        parameters=[NUMBER, IF_MATCH],
        errors=[400, 404, 412],
    )
    @action(detail=True, methods=["post"], url_path="egress/versions/<int:number>/restore")
    def egress_restore(self, request: UserRequest, slug: str, number: int) -> Response:
        expected = etags.expected_versions(request)
        return _egress(
            team_egress.restore(actor=request.user, team=self.get_object(), number=number, expected=expected)
        )


def _egress(team: Team) -> Response:
    headers = etags.headers_of(team)
    return Response(TeamEgressSerializer(team).data, headers=headers)


def _user(username: str) -> User:
    user = User.objects.filter(username=username.strip().lower(), is_active=True).first()
    if user is None:
        raise InvalidInput(
            Reason(AccountCode.NO_SUCH_USER, {"username": username}),
            errors={"owner": ["No user has this name."]},
        )
    return user


@documented(list="List a team's members", retrieve="Read a membership", errors=[404])
class MemberViewSet(TaggedViewSet, ReadViewSet):
    tag = "teams"
    operation_ids = {
        "list": "listTeamMembers",
        "retrieve": "getTeamMember",
        "update": "setTeamMember",
        "revoke": "revokeTeamMember",
    }
    queryset = Membership.objects.none()
    serializer_class = MemberSerializer
    scopes = TEAM_SCOPES
    ordering = ("joined_at", "id")
    lookup_field = "username"
    lookup_value_converter = "username"

    def _team(self) -> Team:
        return selectors.team_by_slug(self.request.user, self.kwargs["slug"])

    def get_queryset(self) -> QuerySet[Membership]:
        return self._team().memberships.select_related("user")

    def get_object(self) -> Membership:
        return selectors.membership_of(self._team(), self.kwargs["username"])

    @operation(
        "Set a member's role",
        description="Adds a member, or changes the role. For owners of the team and operators. A team keeps "
        "at least one owner.",
        request=MemberSetSerializer,
        responses={200: MemberSerializer},
        parameters=[USERNAME, IF_MATCH],
        errors=[400, 404, 409, 412, 415],
    )
    def update(self, request: UserRequest, slug: str, username: str) -> Response:
        role = body_of(request, MemberSetSerializer)["role"]
        row = services.set_member(
            actor=request.user,
            team=self._team(),
            username=username,
            role=role,
            expected=etags.expected_versions(request),
        )
        return self.answer(row)

    @operation(
        "Revoke a membership",
        description="For owners of the team and operators. Members can revoke their own membership.",
        request=None,
        responses={204: None},
        parameters=[USERNAME, IF_MATCH],
        errors=[404, 409, 412],
    )
    @action(detail=True, methods=["post"])
    def revoke(self, request: UserRequest, slug: str, username: str) -> Response:
        services.remove_member(
            actor=request.user,
            team=self._team(),
            username=username,
            expected=etags.expected_versions(request),
        )
        return Response(status=204)


router = Router()
router.register("teams", TeamViewSet)
router.register("teams/<slug:slug>/members", MemberViewSet)
urlpatterns = [*routes("me", Me, "me"), *router.urls]
