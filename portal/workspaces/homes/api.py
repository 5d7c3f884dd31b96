"""REST API of lost home folders, and of what users lose when a machine is removed."""

from __future__ import annotations

from uuid import UUID

from django.db.models import QuerySet
from rest_framework import serializers
from rest_framework.decorators import action
from rest_framework.response import Response

from portal.common.api import (
    ApiViewSet,
    ListViewSet,
    Router,
    StrictSerializer,
    UserRequest,
    body_of,
    documented,
    filters,
    operation,
)
from portal.common.scopes import Scope
from portal.fleet.inventory.api import SCOPES as POOL_SCOPES
from portal.fleet.machines.services import MAX_REASON
from portal.people.accounts.mfa.proof import require_fresh
from portal.workspaces import machine_removal
from portal.workspaces.homes import lost as lost_homes
from portal.workspaces.models import LostHome

SCOPES = {"GET": Scope.WORKSPACES_READ, "*": Scope.WORKSPACES_WRITE}


class LostHomeSerializer(serializers.ModelSerializer[LostHome]):
    """A home folder on a machine that was removed."""

    owner = serializers.CharField(source="owner.username")
    team = serializers.CharField(source="team.slug")
    pool = serializers.CharField(source="pool.slug")

    class Meta:
        model = LostHome
        fields = ["id", "owner", "team", "pool", "node", "used_mib", "lost_at", "recreated_at"]
        read_only_fields = fields
        extra_kwargs = {
            "node": {"help_text": "Name of the removed machine."},
            "used_mib": {"help_text": "Size at the last measurement, in MiB."},
            "recreated_at": {
                "help_text": (
                    "Time at which a new, empty home was requested; null if not yet. Until then, the "
                    "owner's workspaces there do not start."
                )
            },
        }


class LostHomeFilter(filters.FilterSet):
    team = filters.CharFilter(field_name="team__slug", label="Slug of the team.")
    pool = filters.CharFilter(field_name="pool__slug", label="Slug of the pool.")
    owner = filters.CharFilter(field_name="owner__username", label="Username of the owner.")
    open = filters.BooleanFilter(
        field_name="recreated_at",
        lookup_expr="isnull",
        label="Whether the home has not been recreated yet.",
    )


@documented(
    list="List home folders on removed machines",
    of="Lists your own lost homes. Operators and auditors see all. Newest first.",
)
class LostHomeViewSet(ListViewSet):
    tag = "machines"
    operation_ids = {"list": "listLostHomes", "recreate": "recreateLostHome"}
    queryset = LostHome.objects.none()
    serializer_class = LostHomeSerializer
    filterset_class = LostHomeFilter
    scopes = SCOPES
    ordering = ("-lost_at", "-id")
    lookup_url_kwarg = "lost_home_id"
    lookup_value_converter = "uuid"

    def get_queryset(self) -> QuerySet[LostHome]:
        return lost_homes.visible_lost_homes(self.request.user)

    @operation(
        "Recreate a lost home folder",
        description=(
            "For the owner and operators. Creates a new, empty home. Workspaces that wait for it start "
            "automatically. Idempotent."
        ),
        request=None,
        responses={200: LostHomeSerializer},
        errors=[404],
    )
    @action(detail=True, methods=["post"])
    def recreate(self, request: UserRequest, lost_home_id: UUID) -> Response:
        return self.answer(lost_homes.recreate(actor=request.user, lost_home_id=lost_home_id))


class LossesSerializer(serializers.Serializer[machine_removal.RemovalLosses]):
    """What users lose when a machine is deleted. Workspaces may still be running there."""

    machine = serializers.CharField(
        source="machine.name", help_text="Name of the machine: the value for `confirm`."
    )
    workspaces = serializers.ListField(
        child=serializers.CharField(),
        help_text="Workspaces that end as lost, as `team/user/name`; up to 500.",
    )
    workspace_count = serializers.IntegerField(help_text="Number of workspaces.")
    homes = serializers.ListField(
        child=serializers.CharField(), help_text="Homes that exist only there, as `team/user`; up to 500."
    )
    home_count = serializers.IntegerField(help_text="Number of home folders.")
    archive_count = serializers.IntegerField(help_text="Number of archives of home folders that are lost.")
    archived = serializers.ListField(
        child=serializers.CharField(),
        help_text="Homes in `homes` that have an archive on another machine.",
    )
    devices = serializers.IntegerField(help_text="Number of devices that are deleted from the inventory.")


class MachineDeleteSerializer(StrictSerializer):
    confirm = serializers.CharField(max_length=120, help_text="Name of the machine, as confirmation.")
    note = serializers.CharField(
        max_length=MAX_REASON,
        required=False,
        allow_blank=True,
        default="",
        help_text="Note for the audit log.",
    )

    examples = {"confirm": "node-2"}


class MachineLossViewSet(ApiViewSet):
    tag = "machines"
    operation_ids = {"delete_with_losses": "deleteMachineWithLosses", "losses": "getMachineLosses"}
    serializer_class = LossesSerializer
    scopes = POOL_SCOPES
    lookup_url_kwarg = "machine_id"
    lookup_value_converter = "uuid"

    @operation(
        "List the losses from deleting a machine",
        description="For operators and auditors.",
        responses={200: LossesSerializer},
        errors=[404],
    )
    @action(detail=True, methods=["get"])
    def losses(self, request: UserRequest, machine_id: UUID) -> Response:
        return self.answer(machine_removal.losses_of(request.user, machine_id))

    @operation(
        "Delete a machine with its workspaces and homes",
        description=(
            "For operators. The machine must have left or be revoked. Its workspaces end as lost. Users "
            "can recreate homes that exist only there. Files on the disk of the machine are not deleted."
        ),
        request=MachineDeleteSerializer,
        responses={204: None},
        errors=[400, 404, 409, 415, 503],
    )
    @action(detail=True, methods=["post"], url_path="delete")
    def delete_with_losses(self, request: UserRequest, machine_id: UUID) -> Response:
        require_fresh(request)
        values = body_of(request, MachineDeleteSerializer)
        machine_removal.remove(
            actor=request.user, machine_id=machine_id, confirm=values["confirm"], reason=values["note"]
        )
        return Response(status=204)


router = Router()
router.register("lost-homes", LostHomeViewSet, basename="lost-home")
router.register("machines", MachineLossViewSet, basename="machine-loss")
urlpatterns = router.urls
