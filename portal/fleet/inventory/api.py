"""REST API of pools, nodes and devices."""

from __future__ import annotations

from uuid import UUID

from django.db.models import QuerySet
from django.urls import reverse
from drf_spectacular.utils import OpenApiParameter
from rest_framework.decorators import action
from rest_framework.response import Response

from portal.common import etags
from portal.common.api import ReadViewSet, Router, UserRequest, body_of, documented, filters, operation
from portal.common.etags import IF_MATCH, TaggedViewSet
from portal.common.history import selectors as history
from portal.common.history.models import SubjectKind
from portal.common.history.serializers import RevisionSerializer
from portal.common.scopes import Scope
from portal.fleet.inventory import cordons, locations, pools, selectors, services
from portal.fleet.inventory.codes import InventoryCode
from portal.fleet.inventory.contact import in_contact
from portal.fleet.inventory.device_states import LOOKS, DeviceState
from portal.fleet.inventory.models import Device, Node, Pool
from portal.fleet.inventory.serializers import (
    CordonSerializer,
    DeviceSerializer,
    NodeChangeSerializer,
    NodeSerializer,
    PoolChangeSerializer,
    PoolCreateSerializer,
    PoolSerializer,
)
from portal.people.accounts.policies import require_operator

SCOPES = {"GET": Scope.POOLS_READ, "*": Scope.POOLS_WRITE}
VERSIONS_SHOWN = 50
NUMBER = OpenApiParameter("number", int, OpenApiParameter.PATH, description="Number of the version, from 1.")


def note_of(request: UserRequest) -> str:
    return str(body_of(request, CordonSerializer).get("note", ""))


@documented(list="List pools", retrieve="Read a pool")
class PoolViewSet(TaggedViewSet, ReadViewSet):
    observed = frozenset(
        {"capabilities", "device_count", "inventory_at", "node_count", "online_count", "resources"}
    )
    tag = "gpus"
    operation_ids = {
        "list": "listPools",
        "create": "createPool",
        "retrieve": "getPool",
        "partial_update": "updatePool",
        "destroy": "deletePool",
        "versions": "listPoolVersions",
        "restore": "restorePoolVersion",
    }
    queryset = Pool.objects.none()
    serializer_class = PoolSerializer
    scopes = SCOPES
    ordering = ("slug", "id")
    lookup_field = "slug"
    lookup_value_converter = "slug"

    def get_queryset(self) -> QuerySet[Pool]:
        return selectors.pools()

    def get_object(self) -> Pool:
        return selectors.pool_by_slug(self.kwargs["slug"])

    @operation(
        "Create a pool",
        idempotent=True,
        description="For operators. Requests the inventory of the pool immediately.",
        request=PoolCreateSerializer,
        responses={201: PoolSerializer},
        errors=[400, 409, 415],
    )
    def create(self, request: UserRequest) -> Response:
        pool = services.create_pool(actor=request.user, **body_of(request, PoolCreateSerializer))
        location = reverse("api:pool-detail", args=[pool.slug])
        return self.answer(selectors.pool_by_slug(pool.slug), status=201, Location=location)

    @operation(
        "Change a pool",
        description=(
            "For operators. Omitted fields stay unchanged. With `retiring`, the pool accepts no new "
            "workspaces."
        ),
        request=PoolChangeSerializer(partial=True),
        responses={200: PoolSerializer},
        parameters=[IF_MATCH],
        errors=[400, 404, 412, 415],
    )
    def partial_update(self, request: UserRequest, slug: str) -> Response:
        require_operator(request.user)
        body = body_of(request, PoolChangeSerializer, partial=True)
        expected = etags.expected_versions(request)
        pools.change(actor=request.user, pool=self.get_object(), fields=body, expected=expected)
        return self.answer(self.get_object())

    @operation(
        "Delete a pool",
        description="For operators. Denied unless the pool is retiring and empty.",
        responses={204: None},
        parameters=[IF_MATCH],
        errors=[404, 409, 412],
    )
    def destroy(self, request: UserRequest, slug: str) -> Response:
        pools.delete(actor=request.user, pool=self.get_object(), expected=etags.expected_versions(request))
        return Response(status=204)

    @operation(
        "List the versions of a pool",
        description="For operators, because versions contain the configuration. Newest first, up to 50.",
        responses={200: RevisionSerializer(many=True)},
        errors=[404],
    )
    @action(detail=True, pagination_class=None)
    def versions(self, request: UserRequest, slug: str) -> Response:
        require_operator(request.user)
        revisions = history.revisions(SubjectKind.POOL, self.get_object().pk)
        rows = []
        for row, changes in history.revisions_with_changes(list(revisions[: VERSIONS_SHOWN + 1]))[
            :VERSIONS_SHOWN
        ]:
            row.changes = changes  # type: ignore[attr-defined]
            rows.append(row)
        return Response(RevisionSerializer(rows, many=True).data)

    @operation(
        "Restore a version of a pool",
        idempotent=True,
        description="For operators. Creates a new version with the values of the earlier one.",
        request=None,
        responses={200: PoolSerializer},
        parameters=[NUMBER, IF_MATCH],
        errors=[400, 404, 412],
    )
    @action(detail=True, methods=["post"], url_path="versions/<int:number>/restore")
    def restore(self, request: UserRequest, slug: str, number: int) -> Response:
        expected = etags.expected_versions(request)
        pools.restore(actor=request.user, pool=self.get_object(), number=number, expected=expected)
        return self.answer(self.get_object())


class NodeFilter(filters.FilterSet):
    pool = filters.CharFilter(field_name="pool__slug", label="Slug of the pool.")
    name = filters.CharFilter(label="Only the one with this name.")
    online = filters.BooleanFilter(method="filter_online", label="Whether the node is online.")
    cordoned = filters.BooleanFilter(label="Whether the node is cordoned.")

    def filter_online(self, nodes: QuerySet[Node], _name: str, value: bool) -> QuerySet[Node]:
        return nodes.filter(in_contact() if value else ~in_contact())


@documented(list="List nodes", retrieve="Read a node")
class NodeViewSet(TaggedViewSet, ReadViewSet):
    # An operator sets the location; inventories, checks and other operations change the rest.
    observed = frozenset(NodeSerializer.Meta.fields) - {"id", "name", "pool", "simulated", *locations.FIELDS}
    tag = "gpus"
    operation_ids = {
        "list": "listNodes",
        "retrieve": "getNode",
        "partial_update": "updateNode",
        "cordon": "cordonNode",
        "uncordon": "uncordonNode",
    }
    queryset = Node.objects.none()
    serializer_class = NodeSerializer
    filterset_class = NodeFilter
    scopes = SCOPES
    ordering = ("name", "id")
    missing = InventoryCode.NO_SUCH_NODE
    lookup_url_kwarg = "node_id"
    lookup_value_converter = "uuid"

    def get_queryset(self) -> QuerySet[Node]:
        return selectors.nodes()

    @operation(
        "Change a node",
        description=(
            "For operators. Omitted fields stay unchanged. Placement keeps requests for several nodes within "
            "a rack, else within a block."
        ),
        request=NodeChangeSerializer(partial=True),
        responses={200: NodeSerializer},
        parameters=[IF_MATCH],
        errors=[400, 404, 412, 415],
    )
    def partial_update(self, request: UserRequest, node_id: UUID) -> Response:
        require_operator(request.user)
        body = body_of(request, NodeChangeSerializer, partial=True)
        expected = etags.expected_versions(request)
        locations.set_location(actor=request.user, node_id=node_id, labels=body, expected=expected)
        return self.answer(self.get_object())

    def _set_cordon(self, cordoned: bool) -> Response:
        services.set_cordon(
            actor=self.request.user,
            node_id=self.kwargs["node_id"],
            cordoned=cordoned,
            reason=note_of(self.request),
        )
        return self.answer(self.get_object())

    @operation(
        "Cordon a node",
        description="For operators. Running work continues.",
        request=CordonSerializer,
        responses={200: NodeSerializer},
        errors=[400, 404, 415],
    )
    @action(detail=True, methods=["post"])
    def cordon(self, request: UserRequest, node_id: UUID) -> Response:
        return self._set_cordon(True)

    @operation(
        "Return a node to service",
        description="For operators. Cancels a drain in progress for workspaces that still run.",
        request=CordonSerializer,
        responses={200: NodeSerializer},
        errors=[400, 404, 415],
    )
    @action(detail=True, methods=["post"])
    def uncordon(self, request: UserRequest, node_id: UUID) -> Response:
        return self._set_cordon(False)


class DeviceFilter(filters.FilterSet):
    pool = filters.CharFilter(field_name="node__pool__slug", label="Slug of the pool.")
    node = filters.CharFilter(field_name="node__name", label="Name of the node.")
    model = filters.CharFilter(label="Only this model.")
    present = filters.BooleanFilter(label="Whether the last inventory reported the device.")
    healthy = filters.BooleanFilter(label="Whether the device is healthy.")
    cordoned = filters.BooleanFilter(label="Whether it is cordoned.")
    checking = filters.BooleanFilter(label="Whether a check or scrub is running.")
    state = filters.ChoiceFilter(
        choices=[(state.value, LOOKS[state].word) for state in DeviceState],
        label="Only devices in this `state`.",
    )


@documented(list="List devices", retrieve="Read a device")
class DeviceViewSet(ReadViewSet):
    tag = "gpus"
    operation_ids = {
        "list": "listDevices",
        "retrieve": "getDevice",
        "cordon": "cordonDevice",
        "uncordon": "uncordonDevice",
    }
    queryset = Device.objects.none()
    serializer_class = DeviceSerializer
    filterset_class = DeviceFilter
    scopes = SCOPES
    ordering = ("uuid",)
    missing = InventoryCode.NO_SUCH_DEVICE
    lookup_url_kwarg = "device_id"
    lookup_value_converter = "uuid"

    def get_queryset(self) -> QuerySet[Device]:
        return selectors.devices_with_state()

    @operation(
        "Cordon a device",
        description=(
            "For operators. Running work continues. Only an operator can return it to service, not a check."
        ),
        request=CordonSerializer,
        responses={200: DeviceSerializer},
        errors=[400, 404, 415],
    )
    @action(detail=True, methods=["post"])
    def cordon(self, request: UserRequest, device_id: UUID) -> Response:
        cordons.cordon_device(actor=request.user, device_id=device_id, reason=note_of(request))
        return self.answer(self.get_object())

    @operation(
        "Return a device to service",
        description=(
            "For operators. Lifts the cordon, regardless of its cause. Cancels a drain in progress for "
            "workspaces that still run."
        ),
        request=CordonSerializer,
        responses={200: DeviceSerializer},
        errors=[400, 404, 415],
    )
    @action(detail=True, methods=["post"])
    def uncordon(self, request: UserRequest, device_id: UUID) -> Response:
        cordons.lift_cordon(actor=request.user, device_id=device_id, reason=note_of(request))
        return self.answer(self.get_object())


router = Router()
router.register("pools", PoolViewSet)
router.register("nodes", NodeViewSet)
router.register("devices", DeviceViewSet)
urlpatterns = router.urls
