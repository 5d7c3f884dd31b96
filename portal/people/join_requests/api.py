"""REST API of joinable teams and join requests."""

from __future__ import annotations

from typing import Any
from uuid import UUID

from django.db.models import QuerySet
from django.urls import reverse
from rest_framework import serializers
from rest_framework.decorators import action
from rest_framework.response import Response

from portal.common.api import (
    ApiView,
    ListViewSet,
    ReadViewSet,
    Router,
    StrictSerializer,
    UserRequest,
    body_of,
    documented,
    filters,
    operation,
    routes,
)
from portal.common.scopes import Scope
from portal.people.accounts.models import Role, Team
from portal.people.join_requests import selectors, services
from portal.people.join_requests.codes import JoinCode
from portal.people.join_requests.models import MAX_MESSAGE, JoinRequest, JoinState

SCOPES = {"GET": Scope.TEAMS_READ, "*": Scope.TEAMS_WRITE}


class JoinRequestSerializer(serializers.ModelSerializer[JoinRequest]):
    """A request to join a team. `team` is null if the team has been deleted."""

    team = serializers.CharField(source="team.slug", allow_null=True, default=None)
    requester = serializers.CharField(source="requester.username", help_text="Username of the requester.")
    state = serializers.ChoiceField(JoinState.choices)
    role = serializers.CharField(help_text="Granted role; empty if the request was not approved.")
    decided_by = serializers.CharField(
        source="decided_by.username",
        allow_null=True,
        default=None,
        help_text="Username of the user who decided; null if not decided.",
    )

    class Meta:
        model = JoinRequest
        fields = [
            "id", "team", "team_name", "requester", "message", "state", "role", "decided_by", "decided_at",
            "decision_note", "created_at", "expires_at",
        ]  # fmt: skip
        read_only_fields = fields


class JoinAskSerializer(StrictSerializer):
    message = serializers.CharField(
        required=False,
        allow_blank=True,
        default="",
        max_length=MAX_MESSAGE,
        help_text="Message to the owners of the team.",
    )

    examples = {"message": "I train the models of the new project."}


class JoinApproveSerializer(StrictSerializer):
    role = serializers.ChoiceField(
        Role.choices, default=Role.MEMBER, help_text="Role that the new member gets."
    )
    note = serializers.CharField(required=False, allow_blank=True, default="", max_length=MAX_MESSAGE)


class JoinDenySerializer(StrictSerializer):
    note = serializers.CharField(max_length=MAX_MESSAGE, help_text="Note for the requester.")


class JoinableTeamSerializer(serializers.ModelSerializer[Team]):
    """A team that you can request to join."""

    owners = serializers.SerializerMethodField(help_text="Usernames of the owners, who decide.")
    request = serializers.SerializerMethodField(help_text="Id of your open request; null without one.")

    class Meta:
        model = Team
        fields = ["slug", "name", "owners", "request"]
        read_only_fields = fields

    def get_owners(self, team: Any) -> list[str]:
        return [place.user.username for place in team.owner_places]

    def get_request(self, team: Any) -> UUID | None:
        return team.own_requests[0].pk if team.own_requests else None


class JoinFilter(filters.FilterSet):
    team = filters.CharFilter(field_name="team__slug", label="Slug of the team.")
    state = filters.ChoiceFilter(choices=JoinState.choices, label="Only requests in this state.")
    requester = filters.CharFilter(field_name="requester__username", label="Username of the requester.")


class TeamFilter(filters.FilterSet):
    q = filters.CharFilter(
        method="filter_words",
        max_length=100,
        label="Words to search for in the names of the team and its owners.",
    )

    def filter_words(self, teams: QuerySet[Team], name: str, value: str) -> QuerySet[Team]:
        return selectors.search_teams(teams, value)


@documented(
    list="List joinable teams",
    of="Lists teams that you are not a member of. Empty if the site does not list teams to everyone.",
)
class JoinableTeamViewSet(ListViewSet):
    tag = "teams"
    operation_ids = {"list": "listJoinableTeams"}
    queryset = Team.objects.none()
    serializer_class = JoinableTeamSerializer
    filterset_class = TeamFilter
    scopes = SCOPES
    ordering = ("name", "id")

    def get_queryset(self) -> QuerySet[Team]:
        return selectors.joinable_teams(self.request.user)


@documented(
    list="List requests to join",
    of="Lists your own requests and those to teams that you own. Operators see all. Newest first.",
    retrieve="Read a request to join",
)
class JoinRequestViewSet(ReadViewSet):
    tag = "teams"
    operation_ids = {
        "list": "listJoinRequests",
        "retrieve": "getJoinRequest",
        "approve": "approveJoinRequest",
        "cancel": "cancelJoinRequest",
        "deny": "denyJoinRequest",
    }
    queryset = JoinRequest.objects.none()
    serializer_class = JoinRequestSerializer
    filterset_class = JoinFilter
    scopes = SCOPES
    ordering = ("-created_at", "-id")
    missing = JoinCode.NO_SUCH_JOIN_REQUEST
    lookup_field = "pk"
    lookup_url_kwarg = "join_id"
    lookup_value_converter = "uuid"

    def get_queryset(self) -> QuerySet[JoinRequest]:
        return selectors.requests_for(self.request.user)

    @operation(
        "Approve a request to join",
        description=(
            "For owners of the team and operators. The requester becomes a member. Returns 409 if someone "
            "has already decided."
        ),
        request=JoinApproveSerializer,
        responses={200: JoinRequestSerializer},
        errors=[400, 404, 409, 415],
    )
    @action(detail=True, methods=["post"])
    def approve(self, request: UserRequest, join_id: UUID) -> Response:
        body = body_of(request, JoinApproveSerializer)
        return self.answer(services.approve(actor=request.user, request_id=join_id, **body))

    @operation(
        "Deny a request to join",
        description="For owners of the team and operators. Requires a note.",
        request=JoinDenySerializer,
        responses={200: JoinRequestSerializer},
        errors=[400, 404, 409, 415],
    )
    @action(detail=True, methods=["post"])
    def deny(self, request: UserRequest, join_id: UUID) -> Response:
        body = body_of(request, JoinDenySerializer)
        return self.answer(services.deny(actor=request.user, request_id=join_id, **body))

    @operation(
        "Cancel a request to join",
        description="For the requester. Idempotent.",
        responses={200: JoinRequestSerializer},
        errors=[404, 409],
    )
    @action(detail=True, methods=["post"])
    def cancel(self, request: UserRequest, join_id: UUID) -> Response:
        return self.answer(services.cancel(actor=request.user, request_id=join_id))


class AskToJoin(ApiView):
    """Creates join requests."""

    tag = "teams"
    operation_ids = {"post": "requestToJoinTeam"}
    scopes = SCOPES

    @operation(
        "Request to join a team",
        description=(
            "Notifies the owners of the team. 200 with the open request if there is one. 404 also for a team "
            "that you cannot see. 429 for too many requests."
        ),
        request=JoinAskSerializer,
        responses={201: JoinRequestSerializer, 200: JoinRequestSerializer},
        errors=[400, 404, 409, 415, 429],
    )
    def post(self, request: UserRequest, slug: str) -> Response:
        body = body_of(request, JoinAskSerializer)
        join_request, new = services.request_to_join(actor=request.user, slug=slug, text=body["message"])
        location = reverse("api:join-request-detail", args=[join_request.pk])
        return Response(
            JoinRequestSerializer(join_request).data,
            status=201 if new else 200,
            headers={"Location": location},
        )


router = Router()
router.register("join-requests", JoinRequestViewSet, basename="join-request")
router.register("joinable-teams", JoinableTeamViewSet, basename="joinable-team")
urlpatterns = [
    *routes("teams/<slug:slug>/join-requests", AskToJoin, "team-join-requests"),
    *router.urls,
]
