"""REST API of home moves between nodes."""

from __future__ import annotations

from typing import Any
from uuid import UUID

from django.db.models import QuerySet
from django.urls import reverse
from drf_spectacular.utils import extend_schema_field
from rest_framework import serializers
from rest_framework.decorators import action
from rest_framework.response import Response

from portal.common.api import (
    ReadViewSet,
    Router,
    StrictSerializer,
    UserRequest,
    body_of,
    documented,
    filters,
    operation,
)
from portal.common.errors import NotFound
from portal.common.problem_serializers import ReasonSerializer
from portal.common.reasons.reason import Reason
from portal.fleet.inventory.models import Pool
from portal.people.accounts.models import Team, User
from portal.workspaces.codes import WorkspaceCode
from portal.workspaces.homes import moves as home_moves
from portal.workspaces.homes.api import SCOPES
from portal.workspaces.homes.codes import HomeMoveCode
from portal.workspaces.models import HomeMove, HomeMoveState


class HomeMoveSerializer(serializers.ModelSerializer[HomeMove]):
    """A move of a home folder from one node of a pool to another."""

    owner = serializers.CharField(source="owner.username")
    team = serializers.CharField(source="team.slug")
    pool = serializers.CharField(source="pool.slug")
    from_node = serializers.CharField(source="source_name", help_text="Name of the source machine.")
    to_node = serializers.CharField(source="target_name", help_text="Name of the target machine.")
    requester = serializers.CharField(
        source="requester.username",
        allow_null=True,
        default=None,
        help_text="Username of the requester; null for moves that Berth starts itself.",
    )
    reason = serializers.SerializerMethodField(help_text="Why it waits or failed; null for none.")

    class Meta:
        model = HomeMove
        fields = [
            "id", "owner", "team", "pool", "from_node", "to_node", "state", "bytes_done", "bytes_total",
            "left_out", "evacuation", "requester", "asked_at", "started_at", "ended_at", "reason",
        ]  # fmt: skip
        read_only_fields = fields
        extra_kwargs = {
            "bytes_total": {
                "help_text": (
                    "Total size in bytes: the last measurement, or the exact size once known; 0 if unknown."
                )
            },
            "evacuation": {"help_text": "Id of the evacuation that the move belongs to; null for none."},
            "left_out": {"help_text": "Number of pipes, sockets and devices that are not moved."},
        }

    @extend_schema_field(ReasonSerializer(allow_null=True))
    def get_reason(self, move: HomeMove) -> dict[str, Any] | None:
        return move.reason or None


class HomeMoveFilter(filters.FilterSet):
    team = filters.CharFilter(field_name="team__slug", label="Slug of the team.")
    pool = filters.CharFilter(field_name="pool__slug", label="Slug of the pool.")
    owner = filters.CharFilter(field_name="owner__username", label="Username of the owner.")
    state = filters.ChoiceFilter(choices=HomeMoveState.choices, label="Only those in this state.")
    evacuation = filters.UUIDFilter(
        field_name="evacuation", label="Id of the evacuation that the move belongs to."
    )


class NewHomeMoveSerializer(StrictSerializer):
    owner = serializers.CharField(
        max_length=150,
        required=False,
        allow_blank=True,
        default="",
        help_text="Username of the owner of the home. Default: you.",
    )
    team = serializers.CharField(max_length=120, help_text="Slug of the team.")
    pool = serializers.CharField(max_length=120, help_text="Slug of the pool.")
    node = serializers.CharField(max_length=120, help_text="Name of the target machine.")


@documented(
    list="List moves of home folders",
    retrieve="Read a move of a home folder",
    of="Lists moves of your own homes. Operators and auditors see all. Newest first.",
)
class HomeMoveViewSet(ReadViewSet):
    tag = "machines"
    operation_ids = {
        "list": "listHomeMoves",
        "create": "moveHome",
        "retrieve": "getHomeMove",
        "cancel": "cancelHomeMove",
    }
    queryset = HomeMove.objects.none()
    serializer_class = HomeMoveSerializer
    filterset_class = HomeMoveFilter
    scopes = SCOPES
    ordering = ("-asked_at", "-id")
    missing = HomeMoveCode.NO_SUCH_MOVE
    lookup_field = "pk"
    lookup_url_kwarg = "home_move_id"
    lookup_value_converter = "uuid"

    def get_queryset(self) -> QuerySet[HomeMove]:
        return home_moves.visible_moves(self.request.user)

    @operation(
        "Move a home folder to another machine",
        description=(
            "For its user and operators, while no workspace uses it. New workspaces wait. "
            "Repeated requests return the same move."
        ),
        request=NewHomeMoveSerializer,
        responses={201: HomeMoveSerializer},
        retry_after_s=10,
        errors=[400, 404, 409, 415],
    )
    def create(self, request: UserRequest) -> Response:
        body = body_of(request, NewHomeMoveSerializer)
        owner = User.objects.filter(username=body["owner"]).first() if body["owner"] else request.user
        team = Team.objects.filter(slug=body["team"]).first()
        pool = Pool.objects.filter(slug=body["pool"], deleted_at=None).first()
        if owner is None or team is None or pool is None:
            raise NotFound(Reason(WorkspaceCode.NO_SUCH_HOME))
        move = home_moves.move_home(actor=request.user, owner=owner, team=team, pool=pool, node=body["node"])
        return self.answer(move, status=201, Location=reverse("api:home-move-detail", args=[move.pk]))

    @operation(
        "Cancel a move of a home folder",
        description="For its user and operators. The home stays where it is. Idempotent.",
        request=None,
        responses={200: HomeMoveSerializer},
        errors=[404, 409],
    )
    @action(detail=True, methods=["post"])
    def cancel(self, request: UserRequest, home_move_id: UUID) -> Response:
        return self.answer(home_moves.cancel_move(actor=request.user, move_id=home_move_id))


router = Router()
router.register("home-moves", HomeMoveViewSet, basename="home-move")
urlpatterns = router.urls
