"""Pools, nodes and devices over REST."""

from __future__ import annotations

from typing import Any
from uuid import UUID

from django.db.models import QuerySet
from django.utils import timezone
from rest_framework.response import Response

from portal.common.api import ApiView, ListView, UserRequest, filters, operation, routes
from portal.common.errors import NotFound
from portal.common.scopes import Scope
from portal.inventory import cordons, selectors, services
from portal.inventory.device_states import LOOKS, DeviceState
from portal.inventory.models import Device, Node, Pool
from portal.inventory.serializers import (
    CordonSerializer,
    DeviceSerializer,
    NodeSerializer,
    PoolSerializer,
)

SCOPES = {"GET": Scope.POOLS_READ, "*": Scope.POOLS_WRITE}


class PoolList(ListView):
    scopes = SCOPES
    serializer_class = PoolSerializer
    ordering = ("slug",)

    def get_queryset(self) -> QuerySet[Pool]:
        return selectors.pools()

    @operation("List pools", responses={200: PoolSerializer(many=True)}, errors=[400])
    def get(self, request: UserRequest) -> Response:
        return self.list(request)


class PoolDetail(ApiView):
    scopes = SCOPES

    @operation("Read a pool", responses={200: PoolSerializer}, errors=[404])
    def get(self, request: UserRequest, slug: str) -> Response:
        return Response(PoolSerializer(selectors.pool_by_slug(slug)).data)


class NodeFilter(filters.FilterSet):
    pool = filters.CharFilter(field_name="pool__slug", label="Short name of the pool.")
    name = filters.CharFilter(label="Exactly this name.")
    online = filters.BooleanFilter(label="Whether the last inventory saw it.")
    cordoned = filters.BooleanFilter(label="Whether an operator has taken it out of placement.")


class NodeList(ListView):
    scopes = SCOPES
    serializer_class = NodeSerializer
    filterset_class = NodeFilter
    ordering = ("name", "id")

    def get_queryset(self) -> QuerySet[Node]:
        return selectors.nodes()

    @operation("List nodes", responses={200: NodeSerializer(many=True)}, errors=[400])
    def get(self, request: UserRequest) -> Response:
        return self.list(request)


def _node(node_id: UUID) -> Any:
    node = selectors.nodes().filter(pk=node_id).first()
    if node is None:
        raise NotFound("There is no such node.", next_action="Look at the list of nodes.")
    return NodeSerializer(node).data


class NodeDetail(ApiView):
    scopes = SCOPES

    @operation("Read a node", responses={200: NodeSerializer}, errors=[404])
    def get(self, request: UserRequest, node_id: UUID) -> Response:
        return Response(_node(node_id))


def reason_of(request: UserRequest) -> str:
    body = CordonSerializer(data=request.data)
    body.is_valid(raise_exception=True)
    return str(body.validated_data.get("reason", ""))


class _SetCordon(ApiView):
    scopes = SCOPES
    cordoned: bool

    def set_cordon(self, request: UserRequest, node_id: UUID) -> Response:
        services.set_cordon(
            actor=request.user, node_id=node_id, cordoned=self.cordoned, reason=reason_of(request)
        )
        return Response(_node(node_id))


class NodeCordon(_SetCordon):
    cordoned = True

    @operation(
        "Take a node out of placement",
        description="For operators. What runs on it goes on.",
        request=CordonSerializer,
        responses={200: NodeSerializer},
        errors=[400, 404, 415],
    )
    def post(self, request: UserRequest, node_id: UUID) -> Response:
        return self.set_cordon(request, node_id)


class NodeUncordon(_SetCordon):
    cordoned = False

    @operation(
        "Put a node back into placement",
        description="For operators. Who was asked to leave by a drain, and has not left, may stay.",
        request=CordonSerializer,
        responses={200: NodeSerializer},
        errors=[400, 404, 415],
    )
    def post(self, request: UserRequest, node_id: UUID) -> Response:
        return self.set_cordon(request, node_id)


class DeviceFilter(filters.FilterSet):
    pool = filters.CharFilter(field_name="node__pool__slug", label="Short name of the pool.")
    node = filters.CharFilter(field_name="node__name", label="Name of the node.")
    model = filters.CharFilter(label="Exactly this model.")
    present = filters.BooleanFilter(label="Whether the last inventory saw it.")
    healthy = filters.BooleanFilter(label="Whether it is fit for work.")
    cordoned = filters.BooleanFilter(label="Whether it has been taken out of placement.")
    checking = filters.BooleanFilter(label="Whether a check or a scrub is on it.")
    state = filters.ChoiceFilter(
        choices=[(each.value, LOOKS[each].word) for each in DeviceState],
        method="in_state",
        label="In this state, as the device's own `state` says.",
    )

    def in_state(self, found: QuerySet[Device], _: str, state: str) -> QuerySet[Device]:
        return found.filter(selectors.devices_in(DeviceState(state), timezone.now()))


class DeviceList(ListView):
    scopes = SCOPES
    serializer_class = DeviceSerializer
    filterset_class = DeviceFilter
    ordering = ("uuid",)

    def get_queryset(self) -> QuerySet[Device]:
        return selectors.devices_with_state()

    @operation("List devices", responses={200: DeviceSerializer(many=True)}, errors=[400])
    def get(self, request: UserRequest) -> Response:
        return self.list(request)


def _device(device_id: UUID) -> Any:
    device = selectors.devices_with_state().filter(pk=device_id).first()
    if device is None:
        raise NotFound("There is no such device.", next_action="Look at the list of devices.")
    return DeviceSerializer(device).data


class DeviceDetail(ApiView):
    scopes = SCOPES

    @operation("Read a device", responses={200: DeviceSerializer}, errors=[404])
    def get(self, request: UserRequest, device_id: UUID) -> Response:
        return Response(_device(device_id))


class DeviceCordon(ApiView):
    scopes = SCOPES

    @operation(
        "Take a device out of placement",
        description="For operators. What runs on it goes on. No check puts it back, an operator does.",
        request=CordonSerializer,
        responses={200: DeviceSerializer},
        errors=[400, 404, 415],
    )
    def post(self, request: UserRequest, device_id: UUID) -> Response:
        cordons.cordon_device(actor=request.user, device_id=device_id, reason=reason_of(request))
        return Response(_device(device_id))


class DeviceUncordon(ApiView):
    scopes = SCOPES

    @operation(
        "Put a device back into placement",
        description="For operators, whoever took it out. Who was asked to leave by a drain, and has not "
        "left, may stay.",
        request=CordonSerializer,
        responses={200: DeviceSerializer},
        errors=[400, 404, 415],
    )
    def post(self, request: UserRequest, device_id: UUID) -> Response:
        cordons.lift_cordon(actor=request.user, device_id=device_id, reason=reason_of(request))
        return Response(_device(device_id))


urlpatterns = [
    *routes("pools", PoolList, "pools"),
    *routes("pools/<slug:slug>", PoolDetail, "pool"),
    *routes("nodes", NodeList, "nodes"),
    *routes("nodes/<uuid:node_id>", NodeDetail, "node"),
    *routes("nodes/<uuid:node_id>/cordon", NodeCordon, "node-cordon"),
    *routes("nodes/<uuid:node_id>/uncordon", NodeUncordon, "node-uncordon"),
    *routes("devices", DeviceList, "devices"),
    *routes("devices/<uuid:device_id>", DeviceDetail, "device"),
    *routes("devices/<uuid:device_id>/cordon", DeviceCordon, "device-cordon"),
    *routes("devices/<uuid:device_id>/uncordon", DeviceUncordon, "device-uncordon"),
]
