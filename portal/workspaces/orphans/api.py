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
            "name": {"help_text": "Name by which its node identifies it; for a home folder, `team/user`."},
            "size_mib": {"help_text": "Size in MiB; null if not measured."},
            "seen_at": {"help_text": "When its node last reported it."},
            "ended_at": {"help_text": "When it was removed, or no longer found."},
            "removed_by": {
                "help_text": (
                    "Name of the user who requested the removal, or of the node that removed it "
                    "automatically."
                )
            },
            "problem": {"help_text": "Why it could not be removed."},
        }

    def get_removed_at(self, row: Orphan) -> datetime | None:
        """Return when it is removed automatically, or null for never."""
        return selectors.automatic_removal_at(row)


class OrphanDeleteSerializer(StrictSerializer):
    confirm = serializers.CharField(
        max_length=200,
        required=False,
        allow_blank=True,
        default="",
        help_text="Name of the home folder, as confirmation. Not needed for other orphans.",
    )

    examples = {"confirm": "vision/anna"}


class OrphanFilter(filters.FilterSet):
    pool = filters.CharFilter(field_name="pool__slug", label="Slug of the pool.")
    node = filters.CharFilter(label="Only this node.")
    kind = filters.ChoiceFilter(choices=OrphanKind.choices, label="Only orphans of this kind.")
    state = filters.ChoiceFilter(choices=OrphanState.choices, label="Only orphans in this state.")


@documented(
    list="List orphans",
    retrieve="Read an orphan",
    of="For operators and auditors. Lists orphans on nodes, and those removed recently. Newest first.",
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
        description=(
            "For operators. The node first checks again that the orphan has no owner. A home folder "
            "requires its name in `confirm` and is deleted permanently. Idempotent."
        ),
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
