"""REST API of evacuations, which move all homes of a node to another node."""

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
    ApiViewSet,
    ReadViewSet,
    Router,
    StrictSerializer,
    UserRequest,
    body_of,
    documented,
    filters,
    operation,
)
from portal.common.problem_serializers import ReasonSerializer
from portal.common.reasons.wording import message_of
from portal.fleet.inventory.api import SCOPES
from portal.fleet.machines.policies import require_see
from portal.people.accounts.policies import require_operator
from portal.workspaces.homes import evacuations
from portal.workspaces.homes.codes import HomeMoveCode
from portal.workspaces.homes.evacuations import NodeHomeCounts
from portal.workspaces.models import EvacuationState, HomeEvacuation
from portal.workspaces.problems import stored_message


class HomesThereSerializer(serializers.Serializer[NodeHomeCounts]):
    """Counts of the homes on a node, by whether they can be moved."""

    node = serializers.CharField(source="node.name")
    pool = serializers.CharField(source="node.pool.slug")
    homes = serializers.IntegerField(help_text="Number of home folders.")
    used_mib = serializers.IntegerField(help_text="Total size of the homes at the last measurement, in MiB.")
    measured = serializers.IntegerField(help_text="Number of homes included in `used_mib`.")
    ready = serializers.IntegerField(help_text="Number of homes that can be moved now.")
    in_use = serializers.IntegerField(
        help_text="Number of homes in use, which are moved once no workspace uses them."
    )
    moving = serializers.IntegerField(help_text="Number of homes already being moved or archived.")
    kept = serializers.IntegerField(help_text="Number of homes of deleted accounts, which stay.")
    targets = serializers.ListField(
        child=serializers.CharField(), help_text="Names of the possible target nodes."
    )
    reason = serializers.SerializerMethodField(
        help_text="Why no home can be moved; null if homes can be moved."
    )
    message = serializers.SerializerMethodField(help_text="Reason, as a sentence; empty for none.")

    @extend_schema_field(ReasonSerializer(allow_null=True))
    def get_reason(self, counts: NodeHomeCounts) -> dict[str, Any] | None:
        return counts.refused.as_json() if counts.refused is not None else None

    def get_message(self, counts: NodeHomeCounts) -> str:
        return message_of(counts.refused) if counts.refused is not None else ""


class MoveHomesSerializer(StrictSerializer):
    to = serializers.CharField(max_length=120, help_text="Name of the target node.")

    examples = {"to": "node-2"}


class HomeEvacuationSerializer(serializers.ModelSerializer[HomeEvacuation]):
    """An evacuation, which moves all homes on a node to another node."""

    pool = serializers.CharField(source="pool.slug")
    from_node = serializers.CharField(source="source_name", help_text="Name of the source node.")
    to_node = serializers.CharField(source="target_name", help_text="Name of the target node.")
    moved = serializers.IntegerField(help_text="Number of homes already moved.")
    under_way = serializers.IntegerField(help_text="Number of homes being moved.")
    stayed = serializers.IntegerField(
        help_text=(
            "Number of moves that failed or were cancelled. `home-moves`, filtered by `evacuation`, has "
            "the reasons."
        )
    )
    left = serializers.IntegerField(help_text="Number of homes still to move, including those being moved.")
    bytes_done = serializers.IntegerField(help_text="Bytes copied so far.")
    requester = serializers.CharField(
        source="requester.username", allow_null=True, default=None, help_text="Username of the requester."
    )
    reason = serializers.SerializerMethodField(help_text="Why it waits or ended early; null for none.")
    message = serializers.SerializerMethodField(help_text="Reason, as a sentence; empty for none.")

    class Meta:
        model = HomeEvacuation
        fields = [
            "id", "pool", "from_node", "to_node", "state", "homes", "moved", "under_way", "stayed", "left",
            "bytes_done", "requester", "asked_at", "ended_at", "reason", "message",
        ]  # fmt: skip
        read_only_fields = fields
        extra_kwargs = {"homes": {"help_text": "Number of homes on the node at the time of the request."}}

    @extend_schema_field(ReasonSerializer(allow_null=True))
    def get_reason(self, evacuation: HomeEvacuation) -> dict[str, Any] | None:
        return evacuation.reason or None

    def get_message(self, evacuation: HomeEvacuation) -> str:
        return stored_message(evacuation.reason)


class HomeEvacuationFilter(filters.FilterSet):
    pool = filters.CharFilter(field_name="pool__slug", label="Slug of the pool.")
    from_node = filters.CharFilter(field_name="source_name", label="Name of the source node.")
    state = filters.ChoiceFilter(choices=EvacuationState.choices, label="Only those in this state.")


@documented(
    list="List moves of all homes of a node",
    retrieve="Read a move of all homes of a node",
    of="For operators and auditors. Newest first.",
)
class HomeEvacuationViewSet(ReadViewSet):
    tag = "machines"
    operation_ids = {
        "list": "listHomeEvacuations",
        "retrieve": "getHomeEvacuation",
        "cancel": "cancelHomeEvacuation",
    }
    queryset = HomeEvacuation.objects.none()
    serializer_class = HomeEvacuationSerializer
    filterset_class = HomeEvacuationFilter
    scopes = SCOPES
    ordering = ("-asked_at", "-id")
    missing = HomeMoveCode.NO_SUCH_EVACUATION
    lookup_field = "pk"
    lookup_url_kwarg = "home_evacuation_id"
    lookup_value_converter = "uuid"

    def get_queryset(self) -> QuerySet[HomeEvacuation]:
        require_see(self.request.user)
        return evacuations.visible_evacuations(self.request.user)

    @operation(
        "Cancel a move of all homes of a node",
        description=(
            "For operators. Moved home folders stay at the target; the others stay where they "
            "are. Idempotent."
        ),
        request=None,
        responses={200: HomeEvacuationSerializer},
        errors=[404, 409],
    )
    @action(detail=True, methods=["post"])
    def cancel(self, request: UserRequest, home_evacuation_id: UUID) -> Response:
        evacuation = evacuations.cancel(actor=request.user, evacuation_id=home_evacuation_id)
        return self.answer(evacuations.evacuation(request.user, evacuation.pk))


class NodeHomesViewSet(ApiViewSet):
    tag = "machines"
    operation_ids = {"homes": "getNodeHomes", "move_homes": "evacuateNodeHomes"}
    serializer_class = HomesThereSerializer
    scopes = SCOPES
    lookup_url_kwarg = "node_id"
    lookup_value_converter = "uuid"

    @operation(
        "Count the homes on a node",
        description=(
            "For operators and auditors. Counts the homes that can be moved, and gives the reason for the "
            "others."
        ),
        responses={200: HomesThereSerializer},
        errors=[404],
    )
    @action(detail=True, methods=["get"])
    def homes(self, request: UserRequest, node_id: UUID) -> Response:
        node = evacuations.node_by_id(request.user, node_id)
        return self.answer(evacuations.homes_on_node(request.user, node))

    @operation(
        "Move all homes of a node to another one",
        description=(
            "For operators. Moves a few homes at a time. A home in use is moved once no workspace uses it. "
            "A repeated request returns the evacuation in progress, or retries homes that stayed after it "
            "has ended."
        ),
        request=MoveHomesSerializer,
        responses={201: HomeEvacuationSerializer},
        retry_after_s=10,
        errors=[400, 404, 409, 415],
    )
    @homes.mapping.post
    def move_homes(self, request: UserRequest, node_id: UUID) -> Response:
        require_operator(request.user)
        body = body_of(request, MoveHomesSerializer)
        new_evacuation = evacuations.evacuate(actor=request.user, node_id=node_id, to=body["to"])
        evacuation = evacuations.evacuation(request.user, new_evacuation.pk)
        shown = HomeEvacuationSerializer(evacuation, context=self.get_serializer_context()).data
        location = reverse("api:home-evacuation-detail", args=[new_evacuation.pk])
        return Response(shown, status=201, headers={"Location": location})


router = Router()
router.register("home-evacuations", HomeEvacuationViewSet, basename="home-evacuation")
router.register("nodes", NodeHomesViewSet, basename="node-homes")
urlpatterns = router.urls
