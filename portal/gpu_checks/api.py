"""REST API of GPU checks and resets, and the schema of reports."""

from __future__ import annotations

from typing import Any
from uuid import UUID

from django.db.models import QuerySet
from django.http import HttpResponse
from django.urls import reverse
from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import OpenApiExample
from rest_framework import serializers
from rest_framework.decorators import action
from rest_framework.renderers import JSONRenderer
from rest_framework.request import Request
from rest_framework.response import Response

from portal.common import etags
from portal.common.api import (
    ApiView,
    ApiViewSet,
    ReadViewSet,
    Router,
    StrictSerializer,
    UserRequest,
    body_of,
    documented,
    filters,
    operation,
    routes,
)
from portal.common.errors import NotFound
from portal.common.etags import IF_MATCH
from portal.common.events import live, stream
from portal.common.scopes import Scope
from portal.fleet.inventory.models import CheckLevel, Device, Pool
from portal.fleet.inventory.selectors import pool_by_slug
from portal.gpu_checks import joint, pairs, resets, runs, selectors, settings
from portal.gpu_checks.kinds.proofs import PROOFS, proof_of
from portal.gpu_checks.models import CheckCause, CheckKind, CheckVerdict, GpuCheckRun, RunState
from portal.people.accounts import selectors as accounts
from portal.people.accounts.models import ApiToken
from provisioning.gpu.check.report import schema

REQUESTABLE_KINDS = [(kind.value, kind.label) for kind in PROOFS]
"""Kinds that clients can request. Only starts request changes of MIG layouts."""
SCOPES = {"GET": Scope.POOLS_READ, "*": Scope.POOLS_WRITE}


class ProgressSerializer(serializers.Serializer[Any]):
    """Progress of a run. `phase` is `prepare`, `start`, `beat`, `result` or `end`; empty before it starts."""

    phase = serializers.CharField(
        default="", help_text="`prepare`, `start`, `beat`, `result` or `end`; empty before it starts."
    )
    test = serializers.CharField(default="", help_text="Current test.")
    done = serializers.IntegerField(default=0, help_text="Amount of work done, out of `total`.")
    total = serializers.IntegerField(default=0, help_text="Total amount of work.")
    elapsed_ms = serializers.IntegerField(default=0, help_text="Elapsed time in milliseconds.")
    text = serializers.CharField(default="", help_text="Current activity, in words.")


class GpuCheckSerializer(serializers.ModelSerializer[GpuCheckRun]):
    """A check, scrub or reset of one device. With `simulated`, device and result are simulated."""

    device = serializers.UUIDField(source="device_id", help_text="Id of the accelerator.")
    uuid = serializers.CharField(source="device.uuid", help_text="UUID of the accelerator, from its driver.")
    node = serializers.CharField(source="device.node.name")
    pool = serializers.CharField(source="device.node.pool.slug")
    kind = serializers.ChoiceField(
        CheckKind.choices, help_text="Kind of operation: check, scrub, reset or another one."
    )
    level = serializers.ChoiceField(CheckLevel.choices, help_text="Level of the check.")
    cause = serializers.ChoiceField(CheckCause.choices, help_text="Cause of the run.")
    state = serializers.ChoiceField(RunState.choices)
    verdict = serializers.ChoiceField(
        CheckVerdict.choices, allow_blank=True, help_text="Verdict of the run; empty until it is done."
    )
    recovery = serializers.CharField(
        allow_blank=True,
        help_text="What returns the device to service, with the same values as `recovery` of devices.",
    )
    requester = serializers.CharField(
        source="requester.username", default=None, allow_null=True, help_text="Username of the requester."
    )
    partner = serializers.UUIDField(
        source="partner_id",
        allow_null=True,
        help_text=(
            "Id of the run on the other node, for a check of a link between two nodes; null for others."
        ),
    )
    partner_node = serializers.CharField(
        source="partner.device.node.name", default=None, allow_null=True, help_text="Name of the other node."
    )
    peers = serializers.SlugRelatedField[Device](
        slug_field="uuid",
        many=True,
        read_only=True,
        help_text=("UUIDs of other devices that the run reserves: to measure links, or to load all at once."),
    )
    progress = ProgressSerializer(help_text="Progress of the run; `phase` is empty before it starts.")
    measures = serializers.JSONField(help_text="Measured values by name, with unit and minimum.")

    class Meta:
        model = GpuCheckRun
        fields = [
            *("id", "device", "uuid", "node", "pool", "kind", "level", "cause", "state", "verdict"),
            *(
                "recovery",
                "summary",
                "simulated",
                "requester",
                "created_at",
                "started_at",
                "finished_at",
            ),
            *("peers", "partner", "partner_node", "progress", "measures"),
        ]
        read_only_fields = fields


class GpuCheckDetailSerializer(GpuCheckSerializer):
    """A run with its report (schema: `/schemas/gpu-check`), which is empty until the run is done."""

    report = serializers.JSONField(help_text="The check's report. Its schema is at `/schemas/gpu-check`.")

    class Meta(GpuCheckSerializer.Meta):
        fields = [*GpuCheckSerializer.Meta.fields, "report"]
        read_only_fields = fields


class GpuCheckCreateSerializer(StrictSerializer):
    device = serializers.CharField(max_length=80, help_text="Id of the device, or its UUID (`GPU-…`).")
    level = serializers.ChoiceField(
        CheckLevel.choices, default=CheckLevel.QUICK, help_text="Level of the check."
    )
    kind = serializers.ChoiceField(
        REQUESTABLE_KINDS, default=CheckKind.CHECK, help_text="Kind of check to run."
    )

    examples = {"device": "GPU-6f3c1f1e-8c0f-4d0c-9a77-2f6d2c1f0b11"}


class GpuCheckFilter(filters.FilterSet):
    device = filters.UUIDFilter(field_name="device_id", label="Id of the device.")
    uuid = filters.CharFilter(field_name="device__uuid", label="UUID of the device.")
    pool = filters.CharFilter(field_name="device__node__pool__slug", label="Slug of the pool.")
    node = filters.CharFilter(field_name="device__node__name", label="Name of the node.")
    kind = filters.ChoiceFilter(choices=CheckKind.choices, label="Only runs of this kind.")
    cause = filters.ChoiceFilter(choices=CheckCause.choices, label="Only runs with this cause.")
    state = filters.ChoiceFilter(choices=RunState.choices, label="Only those in this state.")
    verdict = filters.ChoiceFilter(choices=CheckVerdict.choices, label="Only runs with this verdict.")


def _version(run: GpuCheckRun) -> int:
    """Return a version in milliseconds that changes with each update, for `Last-Event-ID`."""
    if run.finished_at is not None:
        return int(run.finished_at.timestamp() * 1000)
    at = run.lease_expires_at or run.created_at
    return int(at.timestamp() * 1000)


@documented(list="List GPU checks")
class GpuCheckViewSet(ReadViewSet):
    tag = "gpus"
    operation_ids = {
        "list": "listGpuChecks",
        "create": "runGpuCheck",
        "retrieve": "getGpuCheck",
        "cancel": "cancelGpuCheck",
        "stream": "followGpuCheck",
    }
    queryset = GpuCheckRun.objects.none()
    serializer_class = GpuCheckSerializer
    filterset_class = GpuCheckFilter
    scopes = SCOPES
    ordering = ("-created_at", "id")
    lookup_url_kwarg = "check_id"
    lookup_value_converter = "uuid"

    def get_queryset(self) -> QuerySet[GpuCheckRun]:
        return selectors.checks().prefetch_related("peers").defer("report")

    def get_object(self) -> GpuCheckRun:
        return selectors.check_by_id(self.kwargs["check_id"])

    @operation("Read a GPU check", responses={200: GpuCheckDetailSerializer}, errors=[404])
    def retrieve(self, request: Request, *args: Any, **kwargs: Any) -> Response:
        return Response(GpuCheckDetailSerializer(self.get_object()).data)

    @operation(
        "Check or scrub a device",
        idempotent=True,
        description=(
            "For operators. No workspace is placed on the device until the run has ended. If the same run "
            "is already in progress, returns that one."
        ),
        request=GpuCheckCreateSerializer,
        responses={202: GpuCheckSerializer},
        retry_after_s=5,
        errors=[400, 404, 409, 415, 422],
        examples=[
            OpenApiExample("A quick check", {"device": "GPU-8f6d7c1e-…", "level": "quick"}, request_only=True)
        ],
    )
    def create(self, request: UserRequest) -> Response:
        body = body_of(request, GpuCheckCreateSerializer)
        device = selectors.device_by_name(body["device"])
        proof = proof_of(body["kind"])
        run = proof.request(actor=request.user, device_id=device.pk, level=body["level"])
        location = reverse("api:gpu-check-detail", args=[run.pk])
        return self.answer(selectors.check_by_id(run.pk), status=202, Location=location)

    @operation(
        "Cancel a queued GPU check",
        description="For operators. A running check cannot be cancelled.",
        request=None,
        responses={200: GpuCheckSerializer},
        errors=[404, 409],
    )
    @action(detail=True, methods=["post"])
    def cancel(self, request: UserRequest, check_id: UUID) -> Response:
        runs.cancel_check(actor=request.user, run_id=check_id)
        return self.answer(self.get_object())

    @operation(
        "Follow a GPU check",
        description=(
            "Server-sent events: the current state of the check, then each change. The stream ends with "
            "the check, or after some minutes: reconnect to continue."
        ),
        responses={(200, stream.MEDIA_TYPE): OpenApiTypes.STR},
        errors=[404, 429],
    )
    @action(detail=True, renderer_classes=[stream.EventStreamRenderer, JSONRenderer])
    def stream(self, request: UserRequest, check_id: UUID) -> Any:
        selectors.check_by_id(check_id)
        user = request.user
        token = request.auth if isinstance(request.auth, ApiToken) else None

        def read(seen: int) -> stream.Batch:
            if not accounts.still_valid(user, token):
                return stream.Batch(over=True)
            try:
                run = selectors.check_by_id(check_id)
            except NotFound:
                return stream.Batch(over=True)
            version = _version(run)
            data: Any = GpuCheckSerializer(run).data
            changes = [] if version == seen else [{**data, "check": data["id"], "id": version}]
            return stream.Batch(changes, over=not run.open)

        return stream.response(live.check_channel(check_id), read, after=0, user_id=user.pk)


class DeviceResetViewSet(ApiViewSet):
    tag = "gpus"
    operation_ids = {"reset": "resetDevice"}
    serializer_class = GpuCheckSerializer
    scopes = SCOPES
    lookup_url_kwarg = "device_id"
    lookup_value_converter = "uuid"

    @operation(
        "Reset a GPU",
        idempotent=True,
        description=(
            "For operators. Resets the GPU with the vendor's tool on its node. The GPU must be "
            "unallocated, and either cordoned or recommended for a reset by its last check. Charts, error "
            "monitoring and other checks of the node pause during the reset. Returns a GPU check of the "
            "kind `reset`. Its `verdict` is `pass` after a reset, `inconclusive` if the reset was refused "
            "and nothing changed, and `fail` or `hung` if the node needs a reboot. A check follows "
            "immediately and can lift the cordon. If a reset is already in progress, returns that one. "
            "Simulated GPUs are not reset; `summary` says so."
        ),
        request=None,
        responses={202: GpuCheckSerializer},
        retry_after_s=5,
        errors=[404, 409],
    )
    @action(detail=True, methods=["post"])
    def reset(self, request: UserRequest, device_id: UUID) -> Response:
        run = resets.request_reset(actor=request.user, device_id=device_id)
        location = reverse("api:gpu-check-detail", args=[run.pk])
        return self.answer(selectors.check_by_id(run.pk), status=202, Location=location)


class LinkCheckCreateSerializer(StrictSerializer):
    with_node = serializers.UUIDField(help_text="Id of the other node, which must be in the same pool.")

    examples = {"with_node": "6f1c2a52-0f57-4f0e-8d4c-3b1f5a7e9c21"}


class NodeCheckViewSet(ApiViewSet):
    tag = "gpus"
    operation_ids = {"check_link": "checkNodeLink", "check_joint": "checkNodeGpus"}
    serializer_class = GpuCheckSerializer
    scopes = SCOPES
    lookup_url_kwarg = "node_id"
    lookup_value_converter = "uuid"

    @operation(
        "Check the link to another node",
        idempotent=True,
        description=(
            "For operators. Both nodes need RDMA. The check holds one idle whole GPU of each node that has "
            "passed a check. It runs NCCL all-reduce operations over RDMA only, compares the results bit "
            "by bit on both nodes and reports the bandwidth as `between_nodes_gb_s` in `measures`. Returns "
            "the run on the first node, of the kind `pair`; `partner` is the run on the other node. Wrong "
            "results or a slow link are `degraded`, no connection is `inconclusive`. Neither takes a "
            "device out of service. Once both runs have ended, both have the worse verdict. If the same "
            "check is already in progress, returns that one."
        ),
        request=LinkCheckCreateSerializer,
        responses={202: GpuCheckSerializer},
        retry_after_s=5,
        errors=[400, 404, 409, 415],
    )
    @action(detail=True, methods=["post"], url_path="check-link")
    def check_link(self, request: UserRequest, node_id: UUID) -> Response:
        body = body_of(request, LinkCheckCreateSerializer)
        run = pairs.request_link_check(actor=request.user, node_id=node_id, with_node_id=body["with_node"])
        return self._accepted(run)

    @operation(
        "Check all GPUs of a node at once",
        idempotent=True,
        description=(
            "For operators. No workspace may use a GPU of the node. All its whole GPUs in service multiply "
            "matrices for 2 minutes, first each alone, then all at once. Each is compared with itself, and "
            "its results are checked bit by bit. Returns a run of the kind `joint` on the first GPU; "
            "`peers` lists the others, and `report` has the figures of each. A GPU below 85 % of its own "
            "speed is `degraded`: power or cooling of the node may be the cause. A GPU with wrong results "
            "is cordoned. If such a check is already in progress, returns that one."
        ),
        request=None,
        responses={202: GpuCheckSerializer},
        retry_after_s=5,
        errors=[404, 409],
    )
    @action(detail=True, methods=["post"], url_path="check-joint")
    def check_joint(self, request: UserRequest, node_id: UUID) -> Response:
        return self._accepted(joint.request_joint_check(actor=request.user, node_id=node_id))

    def _accepted(self, run: GpuCheckRun) -> Response:
        location = reverse("api:gpu-check-detail", args=[run.pk])
        return self.answer(selectors.check_by_id(run.pk), status=202, Location=location)


class GpuCheckSchema(ApiView):
    """The JSON Schema of reports."""

    tag = "gpus"
    operation_ids = {"get": "getGpuCheckSchema"}
    scopes = SCOPES

    @operation(
        "Read the JSON Schema of GPU check reports",
        responses={(200, "application/schema+json"): OpenApiTypes.OBJECT},
    )
    def get(self, request: UserRequest) -> HttpResponse:
        return Response(schema(), content_type="application/schema+json")


def _hours(help_text: str) -> serializers.IntegerField:
    return serializers.IntegerField(
        min_value=0, max_value=settings.MAX_HOURS, required=False, help_text=help_text
    )


class PoolChecksSerializer(StrictSerializer):
    """Settings for automatic checks of a pool's devices. 0 hours means never."""

    check_every_hours = _hours("Interval between checks of a free device, in hours; 0 for never.")
    check_level = serializers.ChoiceField(
        CheckLevel.choices, required=False, help_text="Level of the scheduled checks."
    )
    hand_out_max_age_hours = _hours(
        (
            "Maximum age, in hours, of the last passed check before a device is allocated. An older one "
            "triggers a check; 0 for never."
        ),
    )
    check_required = serializers.BooleanField(
        required=False, help_text="Whether to keep a device out of service if its check could not run."
    )
    scrub_required = serializers.BooleanField(
        required=False, help_text="Whether to keep a device out of service if its scrub could not run."
    )
    mig_repartition = serializers.BooleanField(
        required=False,
        help_text=(
            "Whether to destroy idle MIG instances and create others that a start needs. Requires the "
            "capability `repartition` of the pool's driver."
        ),
    )

    examples = {"check_every_hours": 24}


class PoolChecks(ApiView):
    """The check settings of a pool."""

    tag = "gpus"
    operation_ids = {"get": "getPoolChecks", "put": "setPoolChecks"}
    scopes = SCOPES

    @operation("Read a pool's check settings", responses={200: PoolChecksSerializer}, errors=[404])
    def get(self, request: UserRequest, slug: str) -> Response:
        return _checks(pool_by_slug(slug))

    @operation(
        "Set a pool's check settings",
        description=(
            "For operators. Replaces all settings. Omitted fields get their defaults: 168 hours, "
            "`standard`, 24 hours, check and scrub required, no repartition."
        ),
        request=PoolChecksSerializer,
        responses={200: PoolChecksSerializer},
        parameters=[IF_MATCH],
        errors=[400, 404, 412, 415],
    )
    def put(self, request: UserRequest, slug: str) -> Response:
        body = settings.DEFAULTS | body_of(request, PoolChecksSerializer)
        expected = etags.expected_versions(request)
        return _checks(settings.set_checks(actor=request.user, slug=slug, expected=expected, **body))


def _checks(pool: Pool) -> Response:
    headers = etags.headers_of(pool, *settings.values_of(pool))
    return Response(PoolChecksSerializer(pool).data, headers=headers)


router = Router()
router.register("gpu-checks", GpuCheckViewSet, basename="gpu-check")
router.register("devices", DeviceResetViewSet, basename="device-reset")
router.register("nodes", NodeCheckViewSet, basename="node-check")
urlpatterns = [
    *routes("pools/<slug:slug>/checks", PoolChecks, "pool-checks"),
    *router.urls,
    *routes("schemas/gpu-check", GpuCheckSchema, "gpu-check-schema"),
]
