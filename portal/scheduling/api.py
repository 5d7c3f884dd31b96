"""The queue over REST."""

from __future__ import annotations

from typing import Any

from django.db.models import QuerySet
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from portal.catalog import selectors as catalog
from portal.catalog.policies import require_use
from portal.catalog.rules import Finding
from portal.catalog.selectors import deprecations
from portal.common.api import (
    ApiView,
    ListViewSet,
    Router,
    UserRequest,
    body_of,
    documented,
    filters,
    operation,
    routes,
)
from portal.common.reasons.wording import message_of, reason_of
from portal.common.scopes import Scope
from portal.scheduling import admission, home_offers, offers, selectors
from portal.scheduling.serializers import AdmissionPreviewSerializer, PreviewSerializer, verdict_data
from portal.workspaces import policies
from portal.workspaces.api import team_named
from portal.workspaces.models import Workspace
from portal.workspaces.order import require_choices
from portal.workspaces.order_serializers import start_of
from portal.workspaces.software import choose_software, deprecation_of, find_environment


class QueueEntrySerializer(serializers.Serializer[Any]):
    """A queued workspace. Fields that identify it are null if you cannot see it."""

    position = serializers.IntegerField(
        allow_null=True, help_text="Position in the queue, from 1; null if it waits for approval."
    )
    workspace = serializers.UUIDField(allow_null=True, help_text="Id of the workspace.")
    name = serializers.CharField(allow_null=True)
    owner = serializers.CharField(allow_null=True)
    own = serializers.BooleanField(help_text="Whether it is yours.")
    team = serializers.CharField()
    flavor = serializers.CharField(
        allow_null=True,
        help_text="Slug of the flavor; null if the flavor is only for other teams and you cannot see it.",
    )
    simulated = serializers.BooleanField()
    outcome = serializers.CharField(
        allow_blank=True, help_text="`queued` or `needs_approval`; empty if not decided yet."
    )
    message = serializers.CharField(help_text="Reason for the wait, as a sentence.")
    resource = serializers.CharField(
        allow_blank=True, help_text="Resource that it waits for; empty for none."
    )
    rule = serializers.CharField(
        allow_blank=True, help_text="Rule that it waits for; empty if it waits for capacity."
    )
    requested_at = serializers.DateTimeField(help_text="When it was requested.")
    eta = serializers.DateTimeField(allow_null=True, help_text="Estimated start; null if unknown.")
    eta_basis = serializers.CharField(allow_blank=True, help_text="Basis of the estimate.")
    member_order = serializers.CharField(
        allow_blank=True,
        help_text=(
            "How the use of the team's members changes the position, as a sentence. Empty if it does not, or "
            "if you cannot see the workspace."
        ),
    )
    next_flavor = serializers.CharField(
        allow_blank=True,
        help_text=(
            "On which of its flavors it is expected to start, and why. Empty if it lists one, or if you "
            "cannot see the workspace."
        ),
    )
    preemptible = serializers.BooleanField(help_text="Whether the workspace can be preempted.")


class QueueFilter(filters.FilterSet):
    team = filters.CharFilter(field_name="team__slug", label="Slug of the team.")
    resource = filters.CharFilter(
        field_name="queue_entry__blocker__resource", label="Only workspaces that wait for this resource."
    )
    reason = filters.CharFilter(
        method="filter_reason",
        label="Only workspaces with this reason code, or `needs_approval` for those above a limit.",
    )

    def filter_reason(self, queryset: QuerySet[Workspace], _name: str, value: str) -> QuerySet[Workspace]:
        return selectors.filtered(queryset, reason=value)


@documented(
    list="List the queue",
    of="Oldest first, over all pools. `position` is the scheduling order.",
)
class QueueViewSet(ListViewSet):
    tag = "queue"
    operation_ids = {"list": "listQueue"}
    queryset = Workspace.objects.none()
    serializer_class = QueueEntrySerializer
    filterset_class = QueueFilter
    scopes = {"*": Scope.QUOTAS_READ}
    ordering = ("requested_at", "id")

    def get_queryset(self) -> QuerySet[Workspace]:
        return selectors.waiting()

    def list(self, request: Request, *args: Any, **kwargs: Any) -> Response:
        page = self.paginate_queryset(self.filter_queryset(self.get_queryset()))
        rows = [_data(entry) for entry in selectors.entries(self.request.user, page or [])]
        return self.get_paginated_response(self.get_serializer(rows, many=True).data)


def _data(entry: selectors.QueueRow) -> dict[str, Any]:
    row, queued = entry.workspace, entry.workspace.queue_entry
    basis = reason_of(queued.eta_basis)
    return {
        "position": queued.position,
        "workspace": row.pk if entry.visible else None,
        "name": row.name if entry.visible else None,
        "owner": row.owner.username if entry.visible else None,
        "own": entry.own,
        "team": row.team.slug,
        "flavor": row.flavor.slug if entry.flavor_seen else None,
        "simulated": row.simulated,
        "outcome": queued.outcome,
        "message": entry.blocker_text,
        "resource": queued.blocker.get("resource", ""),
        "rule": queued.blocker.get("rule", ""),
        "requested_at": row.requested_at,
        "eta": queued.eta_at,
        "eta_basis": message_of(basis) if basis else "",
        "member_order": entry.member_order_text,
        "next_flavor": entry.next_flavor,
        "preemptible": row.preemptible,
    }


class HandedOverSerializer(serializers.Serializer[Any]):
    """A workspace that waits at an engine. Fields that identify it are null if you cannot see it."""

    pool = serializers.CharField(help_text="Slug of the pool whose engine places workspaces itself.")
    position = serializers.IntegerField(
        allow_null=True, help_text="Position in the engine's queue, from 1; null if unknown."
    )
    workspace = serializers.UUIDField(allow_null=True, help_text="Id of the workspace.")
    name = serializers.CharField(allow_null=True)
    owner = serializers.CharField(allow_null=True)
    own = serializers.BooleanField(help_text="Whether it is yours.")
    team = serializers.CharField()
    simulated = serializers.BooleanField()
    code = serializers.CharField(
        allow_blank=True, help_text="Code of the engine's reason, such as `priority`; empty for none."
    )
    message = serializers.CharField(
        allow_blank=True,
        help_text="The engine's reason in words. Empty for none, or if you cannot see the workspace.",
    )
    requested_at = serializers.DateTimeField(help_text="When it was requested.")
    since = serializers.DateTimeField(
        allow_null=True, help_text="When it joined the engine's queue, or was queued there again."
    )
    starts_at = serializers.DateTimeField(
        allow_null=True, help_text="Start expected by the engine; null if unknown or overdue."
    )
    seen_at = serializers.DateTimeField(help_text="When the engine reported this.")


class HandedOverFilter(filters.FilterSet):
    team = filters.CharFilter(field_name="team__slug", label="Slug of the team.")
    pool = filters.CharFilter(field_name="pool__slug", label="Slug of the pool.")


@documented(
    list="List workspaces that wait at engines",
    of="Oldest first. The portal has handed them over to engines that place workspaces themselves.",
)
class HandedOverViewSet(ListViewSet):
    tag = "queue"
    operation_ids = {"list": "listHandedOver"}
    queryset = Workspace.objects.none()
    serializer_class = HandedOverSerializer
    filterset_class = HandedOverFilter
    scopes = {"*": Scope.QUOTAS_READ}
    ordering = ("requested_at", "id")

    def get_queryset(self) -> QuerySet[Workspace]:
        return selectors.handed_over()

    def list(self, request: Request, *args: Any, **kwargs: Any) -> Response:
        page = self.paginate_queryset(self.filter_queryset(self.get_queryset()))
        rows = [_handed_over_data(row) for row in selectors.handed_over_rows(self.request.user, page or [])]
        return self.get_paginated_response(self.get_serializer(rows, many=True).data)


def _handed_over_data(entry: selectors.HandedOverRow) -> dict[str, Any]:
    row, wait = entry.workspace, entry.wait
    return {
        "pool": row.pool.slug if row.pool is not None else "",
        "position": wait.position,
        "workspace": row.pk if entry.visible else None,
        "name": row.name if entry.visible else None,
        "owner": row.owner.username if entry.visible else None,
        "own": entry.own,
        "team": row.team.slug,
        "simulated": row.simulated,
        "code": wait.code,
        "message": entry.message,
        "requested_at": row.requested_at,
        "since": entry.since,
        "starts_at": wait.starts_at,
        "seen_at": wait.seen_at,
    }


class AdmissionPreview(ApiView):
    """Preview of a request. Nothing is stored."""

    tag = "queue"
    operation_ids = {"post": "previewAdmission"}
    scopes = {"*": Scope.CATALOG_READ}

    @operation(
        "Preview a request",
        description="Uses the same code as the creation, so the result is the same. Creates nothing.",
        request=PreviewSerializer,
        responses={200: AdmissionPreviewSerializer},
        errors=[400, 409, 415],
    )
    def post(self, request: UserRequest) -> Response:
        body = body_of(request, PreviewSerializer)
        team = team_named(request.user, body.get("team", ""))
        policies.require_create(request.user, team)
        expected_s = body.get("expected_s")
        template = catalog.template_by_slug(request.user, body["template"])
        flavors = [catalog.flavor_by_slug(request.user, slug) for slug in body["flavors"]]
        flavor, start_within_s = flavors[0], body["start_within_min"] * 60
        for listed in flavors:
            require_use(team, template, listed)
        require_choices(flavors, start_within_s)
        software = choose_software(
            template, team, find_environment(request.user, body.get("environment", ""))
        )
        flavor_offers = offers.flavor_offers(
            template,
            team,
            request.user,
            expected_s=expected_s,
            environment=software.digest,
            flavors=offers.shortlist(offers.choosable_flavors(request.user, team), flavor.slug),
            move_home=body["move_home"],
        )
        verdict = next(offer.verdict for offer in flavor_offers if offer.flavor == flavor)
        common: dict[str, Any] = {
            "template": template,
            "team": team,
            "actor": request.user,
            "expected_s": expected_s,
            "environment": software.digest,
        }
        if len(flavors) > 1:
            verdict = admission.assess_choices(
                **common, flavors=flavors, start_within_s=start_within_s, move_home=body["move_home"]
            )
        without_gpus = None
        if body["start_without_gpu"]:
            without_gpus = admission.verdict_without_gpus(
                verdict, **common, flavor=flavor, move_home=body["move_home"]
            )
        with_home = home_offers.verdict_with_home_move(verdict, **common, flavor=flavor)
        nearest = [offer.flavor.slug for offer in offers.alternatives(flavor_offers, flavor)]
        warnings = deprecations(template, flavor)
        if software.environment is not None and (warned := deprecation_of(software.environment)) is not None:
            warnings.append(Finding("environment", warned))
        data = {
            **verdict_data(without_gpus or verdict, alternatives=nearest),
            "warnings": warnings,
            "without_gpu": without_gpus is not None,
            "home_move_offer": with_home.home_move if with_home is not None else None,
        }
        if data["ask"]:
            data["ask"]["start"] = start_of(request)
        return Response(AdmissionPreviewSerializer(data).data)


router = Router()
router.register("queue/handed-over", HandedOverViewSet, basename="queue-handed-over")
router.register("queue", QueueViewSet, basename="queue")
urlpatterns = [*router.urls, *routes("admission/preview", AdmissionPreview, "admission-preview")]
