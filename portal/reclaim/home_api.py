"""REST API of homes: unused time, next step, and archives."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from django.db.models import QuerySet
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
from portal.common.scopes import Scope
from portal.people.accounts.mfa.proof import require_fresh
from portal.reclaim import home_presenters, homes
from portal.reclaim.home_presenters import HomeLine
from portal.workspaces.codes import WorkspaceCode
from portal.workspaces.homes.away import MAX_REASON
from portal.workspaces.models import HomePlace


class HomeArchivedSerializer(serializers.Serializer[Any]):
    """The archive of a home, complete or in progress."""

    id = serializers.UUIDField()
    state = serializers.CharField(help_text="State, with the same values as for archives of home folders.")
    away_at = serializers.DateTimeField(
        allow_null=True, help_text="Time since when only the archive exists; null if the home still exists."
    )
    size_bytes = serializers.IntegerField(help_text="Size of the archive on disk, in bytes.")
    home_bytes = serializers.IntegerField(help_text="Total size of the files in it, in bytes.")
    bytes_done = serializers.IntegerField(
        help_text="Progress of the current operation, in bytes before compression."
    )
    stream_bytes = serializers.IntegerField(help_text="Total bytes before compression; 0 if unknown.")


class Homes(serializers.ListSerializer[Any]):
    """List serializer that reads the state of all homes together."""

    def to_representation(self, data: Any) -> Any:
        rows = list(data)
        context: Any = self.context
        context["lines"] = home_presenters.lines(context["request"].user, rows)
        return super().to_representation(rows)


class HomeSerializer(serializers.ModelSerializer[HomePlace]):
    """A home folder on the machine that holds it."""

    owner = serializers.CharField(source="owner.username")
    team = serializers.CharField(source="team.slug")
    pool = serializers.CharField(source="pool.slug")
    node = serializers.CharField(source="node.name")
    unused_s = serializers.SerializerMethodField(
        help_text="Unused time in seconds or, for an archived home, time since it was archived."
    )
    limit_s = serializers.SerializerMethodField(
        help_text=(
            "Seconds after which the home is archived or, if archived, can be deleted; null for never."
        )
    )
    due_at = serializers.SerializerMethodField(
        help_text="Earliest time at which that happens; null for never."
    )
    warned = serializers.SerializerMethodField(help_text="Whether the owner has been notified.")
    deletable = serializers.SerializerMethodField(
        help_text="Whether an administrator can delete it permanently now."
    )
    archive = serializers.SerializerMethodField(
        help_text="Archive of the home; null if the home is not archived."
    )

    class Meta:
        model = HomePlace
        list_serializer_class = Homes
        fields = [
            "id", "owner", "team", "pool", "node", "used_at", "unused_s", "limit_s", "due_at", "warned",
            "deletable", "archive",
        ]  # fmt: skip
        read_only_fields = fields
        extra_kwargs = {
            "used_at": {
                "help_text": (
                    "Last time that the owner started a workspace in the pool or accessed the files; null "
                    "if not recorded."
                )
            }
        }

    def _line(self, home: HomePlace) -> HomeLine | None:
        context: Any = self.context
        lines = context.get("lines")
        if lines is None:
            lines = context["lines"] = home_presenters.lines(context["request"].user, [home])
        line: HomeLine | None = lines.get(home.pk)
        return line

    def get_unused_s(self, home: HomePlace) -> int | None:
        line = self._line(home)
        return round(line.used_s) if line is not None else None

    def get_limit_s(self, home: HomePlace) -> int | None:
        line = self._line(home)
        return line.limit_s if line is not None else None

    def get_due_at(self, home: HomePlace) -> datetime | None:
        line = self._line(home)
        return line.due_at if line is not None else None

    def get_warned(self, home: HomePlace) -> bool:
        line = self._line(home)
        return line is not None and line.warned

    def get_deletable(self, home: HomePlace) -> bool:
        line = self._line(home)
        return line is not None and line.deletable

    @extend_schema_field(HomeArchivedSerializer(allow_null=True))
    def get_archive(self, home: HomePlace) -> dict[str, Any] | None:
        line = self._line(home)
        if line is None or line.archive is None:
            return None
        return dict(HomeArchivedSerializer(line.archive).data)


class HomeDeleteSerializer(StrictSerializer):
    confirm = serializers.CharField(max_length=300, help_text="Home to delete, as `team/user`.")
    note = serializers.CharField(
        max_length=MAX_REASON,
        required=False,
        allow_blank=True,
        default="",
        help_text="Note for the audit log and the owner.",
    )

    examples = {"confirm": "vision/anna"}


class HomeFilter(filters.FilterSet):
    team = filters.CharFilter(field_name="team__slug", label="Slug of the team.")
    pool = filters.CharFilter(field_name="pool__slug", label="Slug of the pool.")
    owner = filters.CharFilter(field_name="owner__username", label="Username of the owner.")
    archived = filters.BooleanFilter(
        field_name="away",
        lookup_expr="isnull",
        exclude=True,
        label="Whether the home exists only as an archive.",
    )


@documented(
    list="List home folders",
    retrieve="Read a home folder",
    of=(
        "Lists your own homes in pools where each machine has its own homes. Operators and auditors see all."
    ),
)
class HomeViewSet(ReadViewSet):
    tag = "reclaim"
    operation_ids = {
        "list": "listHomes",
        "retrieve": "getHome",
        "delete_home": "deleteHome",
        "keep": "keepHome",
        "restore": "restoreHome",
    }
    queryset = HomePlace.objects.none()
    serializer_class = HomeSerializer
    filterset_class = HomeFilter
    scopes = {"GET": Scope.WORKSPACES_READ, "*": Scope.WORKSPACES_WRITE}
    ordering = ("id",)
    missing = WorkspaceCode.NO_SUCH_HOME
    lookup_field = "pk"
    lookup_url_kwarg = "home_id"
    lookup_value_converter = "int"

    def get_queryset(self) -> QuerySet[HomePlace]:
        return homes.visible_homes(self.request.user)

    @operation(
        "Keep a home folder",
        description=(
            "For the owner and operators. Counts as use of the home: cancels an announced or running "
            "archival. If the home is already archived, protects the archive from deletion. Idempotent."
        ),
        request=None,
        responses={200: HomeSerializer},
        errors=[404, 409],
    )
    @action(detail=True, methods=["post"])
    def keep(self, request: UserRequest, home_id: int) -> Response:
        return self.answer(homes.keep_home(actor=request.user, place_id=home_id))

    @operation(
        "Restore an archived home folder",
        description=(
            "For its user and operators. New workspaces wait. Idempotent. Starting a workspace "
            "also restores it."
        ),
        request=None,
        responses={200: HomeSerializer},
        retry_after_s=5,
        errors=[404, 409],
    )
    @action(detail=True, methods=["post"])
    def restore(self, request: UserRequest, home_id: int) -> Response:
        return self.answer(homes.restore(actor=request.user, place_id=home_id))

    @operation(
        "Delete an archived home folder",
        description=(
            "For administrators. Requires `deletable`: the archive has reached the age set by policy, and "
            "the user's notice period has ended. Permanent."
        ),
        request=HomeDeleteSerializer,
        responses={204: None},
        errors=[400, 404, 409, 415],
    )
    @action(detail=True, methods=["post"], url_path="delete")
    def delete_home(self, request: UserRequest, home_id: int) -> Response:
        require_fresh(request)
        body = body_of(request, HomeDeleteSerializer)
        homes.delete(actor=request.user, place_id=home_id, confirm=body["confirm"], reason=body["note"])
        return Response(status=204)


router = Router()
router.register("homes", HomeViewSet, basename="home")
urlpatterns = router.urls
