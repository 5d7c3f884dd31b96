"""REST views of homes: unused time, next step, and archives."""

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
    """The archive that holds a home, or is being made of it."""

    id = serializers.UUIDField()
    state = serializers.CharField(help_text="As that of archives of home folders.")
    away_at = serializers.DateTimeField(
        allow_null=True, help_text="Since when it is all that there is of the home; null: not yet."
    )
    size_bytes = serializers.IntegerField(help_text="What it takes on the disk.")
    home_bytes = serializers.IntegerField(help_text="What the files in it hold.")
    bytes_done = serializers.IntegerField(help_text="How far what is under way is, before compression.")
    stream_bytes = serializers.IntegerField(help_text="Of how many, where that is known; else 0.")


class Homes(serializers.ListSerializer[Any]):
    """Reads the state of all listed homes together."""

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
        help_text="For how long it was seen not to be used; of one that is archived, for how long it is."
    )
    limit_s = serializers.SerializerMethodField(
        help_text="After how long it is archived; of one that is archived, may be deleted. Null: never."
    )
    due_at = serializers.SerializerMethodField(help_text="When that is at the earliest.")
    warned = serializers.SerializerMethodField(help_text="Whether its user has been notified.")
    deletable = serializers.SerializerMethodField(
        help_text="Whether an administrator may delete it for good now."
    )
    archive = serializers.SerializerMethodField(help_text="The archive that it is in; null: it lies there.")

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
                "help_text": "When its user last started something in the pool, or was at its files; null: "
                "not since that is kept."
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
    confirm = serializers.CharField(max_length=300, help_text="The home: short name of the team, “/”, user.")
    note = serializers.CharField(
        max_length=MAX_REASON,
        required=False,
        allow_blank=True,
        default="",
        help_text="For the audit log and its user.",
    )

    examples = {"confirm": "vision/anna"}


class HomeFilter(filters.FilterSet):
    team = filters.CharFilter(field_name="team__slug", label="Slug of the team.")
    pool = filters.CharFilter(field_name="pool__slug", label="Slug of the pool.")
    owner = filters.CharFilter(field_name="owner__username", label="Name of its owner.")
    archived = filters.BooleanFilter(
        field_name="away", lookup_expr="isnull", exclude=True, label="Whether it is in an archive alone."
    )


@documented(
    list="List home folders",
    retrieve="Read a home folder",
    of="Your own where machines keep homes apart, and all for operators and auditors.",
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
        return homes.seen_by(self.request.user)

    @operation(
        "Keep a home folder",
        description="It counts as used now: an announcement is taken back, and what archives it is given up. "
        "Of one that is archived it keeps the archive. For its user and operators; twice is success.",
        request=None,
        responses={200: HomeSerializer},
        errors=[404, 409],
    )
    @action(detail=True, methods=["post"])
    def keep(self, request: UserRequest, home_id: int) -> Response:
        return self.answer(homes.keep(actor=request.user, place_id=home_id))

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
        description="For administrators, once its archive is old enough by policy and the notice to its user "
        "is over (`deletable`). Permanent.",
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
