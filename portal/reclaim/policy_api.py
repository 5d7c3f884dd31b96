"""REST API of reclaim policies."""

from __future__ import annotations

from uuid import UUID

from django.db.models import QuerySet
from django.urls import reverse
from drf_spectacular.utils import OpenApiParameter
from rest_framework.decorators import action
from rest_framework.response import Response

from portal.common import etags
from portal.common.api import ReadViewSet, Router, UserRequest, body_of, documented, filters, operation
from portal.common.errors import NotFound
from portal.common.etags import IF_MATCH, TaggedViewSet
from portal.common.history import selectors as history
from portal.common.history.models import SubjectKind
from portal.common.history.serializers import RevisionSerializer
from portal.common.reasons.reason import Reason
from portal.common.scopes import Scope
from portal.reclaim import policies, previews
from portal.reclaim import policy_services as services
from portal.reclaim.codes import LifetimeCode
from portal.reclaim.models import ReclaimPolicy
from portal.reclaim.policy_serializers import (
    ReclaimPolicyCreateSerializer,
    ReclaimPolicySerializer,
    ReclaimPolicyValuesSerializer,
    ReclaimPreviewSerializer,
)

NUMBER = OpenApiParameter("number", int, OpenApiParameter.PATH, description="Number of the version, from 1.")
VERSIONS_SHOWN = 50


class PolicyFilter(filters.FilterSet):
    scope = filters.CharFilter(label="Only policies for `site`, `pool`, `template`, `flavor` or `team`.")
    team = filters.CharFilter(field_name="team__slug", label="Only the policy of this team, by slug.")


@documented(
    list="List reclaim policies",
    of="Lists policies of the site, pools, templates, flavors and your teams.",
    retrieve="Read a reclaim policy",
)
class PolicyViewSet(TaggedViewSet, ReadViewSet):
    tag = "reclaim"
    operation_ids = {
        "list": "listReclaimPolicies",
        "create": "createReclaimPolicy",
        "retrieve": "getReclaimPolicy",
        "partial_update": "updateReclaimPolicy",
        "destroy": "deleteReclaimPolicy",
        "versions": "listReclaimPolicyVersions",
        "restore": "restoreReclaimPolicyVersion",
        "preview": "previewReclaimPolicy",
    }
    queryset = ReclaimPolicy.objects.none()
    serializer_class = ReclaimPolicySerializer
    filterset_class = PolicyFilter
    scopes = {"GET": Scope.QUOTAS_READ, "*": Scope.QUOTAS_WRITE}
    ordering = ("scope", "id")
    lookup_field = "pk"
    lookup_url_kwarg = "policy_id"
    lookup_value_converter = "uuid"

    def get_queryset(self) -> QuerySet[ReclaimPolicy]:
        rows = ReclaimPolicy.objects.select_related("pool", "template", "flavor", "team")
        return policies.visible_to(self.request.user, rows)

    def get_object(self) -> ReclaimPolicy:
        row = self.get_queryset().filter(pk=self.kwargs["policy_id"]).first()
        if row is None:
            raise NotFound(Reason(LifetimeCode.POLICY_NOT_FOUND))
        return row

    @operation(
        "Create a reclaim policy",
        idempotent=True,
        description=(
            "For operators. Owners can create a policy for their team, which can only be stricter. It also "
            "applies to running workspaces, with full notice."
        ),
        request=ReclaimPolicyCreateSerializer,
        responses={201: ReclaimPolicySerializer},
        errors=[400, 409, 415],
    )
    def create(self, request: UserRequest) -> Response:
        body = dict(body_of(request, ReclaimPolicyCreateSerializer))
        row = services.create(actor=request.user, target=body.pop("for"), values=body)
        return self.answer(row, status=201, Location=reverse("api:reclaimpolicy-detail", args=[row.pk]))

    @operation(
        "Change a reclaim policy",
        description="Omitted fields stay unchanged.",
        request=ReclaimPolicyValuesSerializer(partial=True),
        responses={200: ReclaimPolicySerializer},
        parameters=[IF_MATCH],
        errors=[400, 404, 409, 412, 415],
    )
    def partial_update(self, request: UserRequest, policy_id: UUID) -> Response:
        row = self.get_object()
        policies.require_change(request.user, row.team)
        row = services.change(
            actor=request.user,
            policy_id=row.pk,
            values=body_of(request, ReclaimPolicyValuesSerializer, partial=True),
            expected=etags.expected_versions(request),
        )
        return self.answer(row)

    @operation(
        "Delete a reclaim policy",
        description="The next broader policy then applies, or else the settings of the site.",
        responses={204: None},
        parameters=[IF_MATCH],
        errors=[404, 412],
    )
    def destroy(self, request: UserRequest, policy_id: UUID) -> Response:
        services.delete(
            actor=request.user, policy_id=self.get_object().pk, expected=etags.expected_versions(request)
        )
        return Response(status=204)

    @operation(
        "List the versions of a reclaim policy",
        description="Newest first, up to 50.",
        responses={200: RevisionSerializer(many=True)},
        errors=[404],
    )
    @action(detail=True, url_path="versions", pagination_class=None, filterset_class=None)
    def versions(self, request: UserRequest, policy_id: UUID) -> Response:
        row = self.get_object()
        if not request.user.sees_all:
            policies.require_change(request.user, row.team)
        rows = list(history.revisions(SubjectKind.RECLAIM, row.pk)[: VERSIONS_SHOWN + 1])
        shown = history.revisions_with_changes(rows)[:VERSIONS_SHOWN]
        for version, changes in shown:
            version.changes = changes  # type: ignore[attr-defined]
        return Response(RevisionSerializer([version for version, _ in shown], many=True).data)

    @operation(
        "Restore a version of a reclaim policy",
        idempotent=True,
        description="Creates a new version with the values of the earlier one.",
        request=None,
        responses={200: ReclaimPolicySerializer},
        parameters=[NUMBER, IF_MATCH],
        errors=[400, 404, 409, 412],
    )
    @action(detail=True, methods=["post"], url_path="versions/<int:number>/restore")
    def restore(self, request: UserRequest, policy_id: UUID, number: int) -> Response:
        row = self.get_object()
        policies.require_change(request.user, row.team)
        row = services.restore(
            actor=request.user, policy_id=row.pk, number=number, expected=etags.expected_versions(request)
        )
        return self.answer(row)

    @operation(
        "Preview a reclaim policy",
        description=(
            "Simulates the policy over the last 30 days of recorded idle times, with the same code that "
            "stops running workspaces. Saves nothing. If the target already has a policy, omitted fields "
            "keep its values. Keeps of workspaces are taken into account; extensions and spent GPU-hours "
            "are not."
        ),
        request=ReclaimPolicyCreateSerializer,
        responses={200: ReclaimPreviewSerializer},
        errors=[400, 415],
    )
    @action(detail=False, methods=["post"], url_path="preview")
    def preview(self, request: UserRequest) -> Response:
        body = dict(body_of(request, ReclaimPolicyCreateSerializer))
        row = services.draft(actor=request.user, target=body.pop("for"), values=body)
        return Response(ReclaimPreviewSerializer(previews.preview(row)).data)


router = Router()
router.register("reclaim-policies", PolicyViewSet)
urlpatterns = router.urls
