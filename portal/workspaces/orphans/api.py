"""REST API of orphans, for operators and auditors."""

from __future__ import annotations

from datetime import datetime
from uuid import UUID

from django.db.models import QuerySet
from django.urls import reverse
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
from portal.fleet.inventory.api import SCOPES
from portal.people.accounts.mfa.proof import require_fresh
from portal.workspaces.orphans import selectors, services
from portal.workspaces.orphans.codes import OrphanCode
from portal.workspaces.orphans.models import Orphan, OrphanKind, OrphanState


class OrphanSerializer(serializers.ModelSerializer[Orphan]):
    """Something on a node without an owner, or recently removed."""

    pool = serializers.CharField(source="pool.slug")
    removed_at = serializers.SerializerMethodField()

    class Meta:
        model = Orphan
        fields = [
            "id", "pool", "node", "kind", "name", "detail", "size_mib", "state", "first_seen_at", "seen_at",
            "removed_at", "ended_at", "removed_by", "problem",
        ]  # fmt: skip
        read_only_fields = fields
        extra_kwargs = {
            "name": {"help_text": "What its node finds it by; of a home folder `team/user`."},
            "size_mib": {"help_text": "What it holds; nothing where that was not measured."},
            "seen_at": {"help_text": "When its node last reported it."},
            "ended_at": {"help_text": "When it was removed, or no longer found."},
            "removed_by": {"help_text": "Who asked for that, or the node that did it by itself."},
            "problem": {"help_text": "Why it could not be removed."},
        }

    def get_removed_at(self, row: Orphan) -> datetime | None:
        """When it is removed automatically, or null for never."""
        return selectors.removed_at(row)


class OrphanDeleteSerializer(StrictSerializer):
    confirm = serializers.CharField(
        max_length=200, required=False, allow_blank=True, default="", help_text="Of a home folder: its name."
    )

    examples = {"confirm": "vision/anna"}


class OrphanFilter(filters.FilterSet):
    pool = filters.CharFilter(field_name="pool__slug", label="Slug of the pool.")
    node = filters.CharFilter(label="Exactly this node.")
    kind = filters.ChoiceFilter(choices=OrphanKind.choices, label="What it is.")
    state = filters.ChoiceFilter(choices=OrphanState.choices, label="Whether it is there.")


@documented(
    list="List orphans",
    retrieve="Read an orphan",
    of="What lies on nodes without an owner, and what was removed of late; for operators and auditors, the "
    "newest first.",
)
class OrphanViewSet(ReadViewSet):
    tag = "machines"
    operation_ids = {"list": "listOrphans", "retrieve": "getOrphan", "delete_orphan": "deleteOrphan"}
    queryset = Orphan.objects.none()
    serializer_class = OrphanSerializer
    filterset_class = OrphanFilter
    scopes = SCOPES
    ordering = ("-first_seen_at", "-id")
    missing = OrphanCode.NO_SUCH_ORPHAN
    lookup_url_kwarg = "orphan_id"
    lookup_value_converter = "uuid"

    def get_queryset(self) -> QuerySet[Orphan]:
        return selectors.orphans(self.request.user)

    @operation(
        "Delete an orphan",
        description="For operators. Its node looks once more whether anybody owns it. Of a home folder "
        "`confirm` has to be its name: nothing brings it back. Idempotent.",
        request=OrphanDeleteSerializer,
        responses={202: OrphanSerializer},
        retry_after_s=10,
        errors=[400, 404, 409, 415],
    )
    @action(detail=True, methods=["post"], url_path="delete")
    def delete_orphan(self, request: UserRequest, orphan_id: UUID) -> Response:
        require_fresh(request)
        confirm = body_of(request, OrphanDeleteSerializer)["confirm"]
        orphan = services.remove(actor=request.user, orphan_id=orphan_id, confirm=confirm)
        return self.answer(orphan, status=202, Location=reverse("api:orphan-detail", args=[orphan.pk]))


router = Router()
router.register("orphans", OrphanViewSet)
urlpatterns = router.urls
