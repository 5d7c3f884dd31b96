"""REST API that drains nodes and devices."""

from __future__ import annotations

from typing import Any
from uuid import UUID

from rest_framework import serializers
from rest_framework.decorators import action
from rest_framework.response import Response

from portal.common.api import ApiViewSet, Router, UserRequest, operation
from portal.fleet.inventory.api import SCOPES, note_of
from portal.fleet.inventory.serializers import CordonSerializer
from portal.scheduling import drains


class DrainSerializer(serializers.Serializer[Any]):
    """The result of a drain. To see the progress, repeat the request or list the workspaces."""

    name = serializers.CharField(help_text="Name of the drained node or device.")
    asked = serializers.IntegerField(help_text="Number of workspaces newly asked to leave by this request.")
    left = serializers.IntegerField(help_text="Number of workspaces left, including these.")
    until = serializers.DateTimeField(
        allow_null=True, help_text="Latest time at which the last of them stops."
    )
    done = serializers.BooleanField(help_text="Whether the drain is complete.")


DRAIN_DESCRIPTION = (
    "For operators. Cordons it and moves workspaces away: after the site's grace period "
    "they stop, keep their files, are queued again at their old position and start "
    "elsewhere. Repeated requests notify users once and return the number left."
)


class NodeDrainViewSet(ApiViewSet):
    tag = "gpus"
    operation_ids = {"drain": "drainNode"}
    serializer_class = DrainSerializer
    scopes = SCOPES
    lookup_url_kwarg = "node_id"
    lookup_value_converter = "uuid"

    @operation(
        "Drain a node",
        description=DRAIN_DESCRIPTION,
        request=CordonSerializer,
        responses={200: DrainSerializer},
        errors=[400, 404, 415],
    )
    @action(detail=True, methods=["post"])
    def drain(self, request: UserRequest, node_id: UUID) -> Response:
        drain = drains.drain_node(actor=request.user, node_id=node_id, reason=note_of(request))
        return self.answer(drain)


class DeviceDrainViewSet(ApiViewSet):
    tag = "gpus"
    operation_ids = {"drain": "drainDevice"}
    serializer_class = DrainSerializer
    scopes = SCOPES
    lookup_url_kwarg = "device_id"
    lookup_value_converter = "uuid"

    @operation(
        "Drain a device",
        description=DRAIN_DESCRIPTION + " A partitioned GPU is drained with all its instances.",
        request=CordonSerializer,
        responses={200: DrainSerializer},
        errors=[400, 404, 415],
    )
    @action(detail=True, methods=["post"])
    def drain(self, request: UserRequest, device_id: UUID) -> Response:
        drain = drains.drain_device(actor=request.user, device_id=device_id, reason=note_of(request))
        return self.answer(drain)


router = Router()
router.register("nodes", NodeDrainViewSet, basename="node-drain")
router.register("devices", DeviceDrainViewSet, basename="device-drain")
urlpatterns = router.urls
