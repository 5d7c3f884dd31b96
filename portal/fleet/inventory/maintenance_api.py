"""REST API of maintenance of the site and of pools."""

from __future__ import annotations

from rest_framework import serializers
from rest_framework.response import Response

from portal.common import etags
from portal.common.api import ApiView, StrictSerializer, UserRequest, body_of, operation, routes
from portal.common.etags import IF_MATCH
from portal.common.scopes import Scope
from portal.fleet.inventory import maintenance
from portal.fleet.inventory.models import MAX_REASON, Maintenance, Pool
from portal.fleet.inventory.selectors import pool_by_slug

SET_DESCRIPTION = (
    "For operators. Replaces start, end and reason. From the start to the planned end, no new work starts: "
    "creating and starting workspaces is denied, and queued ones wait. Running work continues."
)
END_DESCRIPTION = "For operators. Ends maintenance in progress, or cancels planned maintenance."


class MaintenanceSerializer(serializers.ModelSerializer[Maintenance]):
    """Maintenance in progress or planned. Ends automatically at its planned end."""

    pool = serializers.CharField(
        source="pool.slug", allow_null=True, default=None, help_text="Slug of the pool; null for the site."
    )

    class Meta:
        model = Maintenance
        fields = ["pool", "begins_at", "ends_at", "reason", "updated_at"]
        read_only_fields = fields


class MaintenanceChangeSerializer(StrictSerializer):
    begins_at = serializers.DateTimeField(
        allow_null=True,
        default=None,
        help_text="Start. Default: now, or unchanged if already in progress.",
    )
    ends_at = serializers.DateTimeField(help_text="Planned end, up to 30 days after the start.")
    reason = serializers.CharField(max_length=MAX_REASON, help_text="Why, in words. Shown to all users.")

    examples = {"ends_at": "2026-12-01T18:00:00Z", "reason": "Replacement of a network switch."}


def _read(pool: Pool | None) -> Response:
    row = maintenance.read(pool)
    return Response(MaintenanceSerializer(row).data, headers=etags.headers_of(row))


def _set(request: UserRequest, pool: Pool | None) -> Response:
    body = body_of(request, MaintenanceChangeSerializer)
    expected = etags.expected_versions(request)
    row = maintenance.set_maintenance(actor=request.user, pool=pool, expected=expected, **body)
    return Response(MaintenanceSerializer(row).data, headers=etags.headers_of(row))


def _end(request: UserRequest, pool: Pool | None) -> Response:
    maintenance.end(actor=request.user, pool=pool, expected=etags.expected_versions(request))
    return Response(status=204)


class SiteMaintenance(ApiView):
    """Maintenance of the whole site."""

    tag = "gpus"
    operation_ids = {
        "get": "getSiteMaintenance",
        "put": "setSiteMaintenance",
        "delete": "deleteSiteMaintenance",
    }
    scopes = {"GET": Scope.POOLS_READ, "*": Scope.POOLS_WRITE}

    @operation(
        "Read the maintenance of the site",
        description="404 if none is in progress or planned.",
        responses={200: MaintenanceSerializer},
        errors=[404],
    )
    def get(self, request: UserRequest) -> Response:
        return _read(None)

    @operation(
        "Set maintenance of the site",
        description=SET_DESCRIPTION,
        request=MaintenanceChangeSerializer,
        responses={200: MaintenanceSerializer},
        parameters=[IF_MATCH],
        errors=[400, 412, 415],
    )
    def put(self, request: UserRequest) -> Response:
        return _set(request, None)

    @operation(
        "End maintenance of the site",
        description=END_DESCRIPTION,
        responses={204: None},
        parameters=[IF_MATCH],
        errors=[404, 412],
    )
    def delete(self, request: UserRequest) -> Response:
        return _end(request, None)


class PoolMaintenance(ApiView):
    """Maintenance of a pool."""

    tag = "gpus"
    operation_ids = {
        "get": "getPoolMaintenance",
        "put": "setPoolMaintenance",
        "delete": "deletePoolMaintenance",
    }
    scopes = {"GET": Scope.POOLS_READ, "*": Scope.POOLS_WRITE}

    @operation(
        "Read the maintenance of a pool",
        description="404 if none is in progress or planned. Maintenance of the site is separate.",
        responses={200: MaintenanceSerializer},
        errors=[404],
    )
    def get(self, request: UserRequest, slug: str) -> Response:
        return _read(pool_by_slug(slug))

    @operation(
        "Set maintenance of a pool",
        description=SET_DESCRIPTION,
        request=MaintenanceChangeSerializer,
        responses={200: MaintenanceSerializer},
        parameters=[IF_MATCH],
        errors=[400, 404, 412, 415],
    )
    def put(self, request: UserRequest, slug: str) -> Response:
        return _set(request, pool_by_slug(slug))

    @operation(
        "End maintenance of a pool",
        description=END_DESCRIPTION,
        responses={204: None},
        parameters=[IF_MATCH],
        errors=[404, 412],
    )
    def delete(self, request: UserRequest, slug: str) -> Response:
        return _end(request, pool_by_slug(slug))


urlpatterns = [
    *routes("maintenance", SiteMaintenance, "site-maintenance"),
    *routes("pools/<slug:slug>/maintenance", PoolMaintenance, "pool-maintenance"),
]
