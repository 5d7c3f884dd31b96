"""REST API of workspace activity, and of keeping idle workspaces."""

from __future__ import annotations

from typing import Any
from uuid import UUID

from drf_spectacular.utils import OpenApiParameter
from rest_framework import serializers
from rest_framework.response import Response

from portal.common.api import ApiView, StrictSerializer, UserRequest, body_of, operation, routes
from portal.common.hours import HoursField
from portal.common.scopes import Scope
from portal.reclaim import keeping, presenters
from portal.reclaim.engine.activity import SignalKind
from portal.workspaces import selectors


class KeepSerializer(StrictSerializer):
    """How long to keep a workspace, even if idle."""

    hours = HoursField(
        source="seconds",
        min_value=keeping.MIN_KEEP_S / 3600,
        max_value=keeping.MAX_KEEP_S / 3600,
        default=2 * 3600,
        help_text="Hours from now.",
    )

    examples = {"hours": 4}


class SignalSerializer(serializers.Serializer[Any]):
    """A measured value; null if not measured, which counts as active."""

    kind = serializers.ChoiceField([kind.value for kind in SignalKind], help_text="Kind of signal.")
    value = serializers.FloatField(
        allow_null=True,
        help_text=(
            "Measured value. `gpu` is in percent, `cpu` in cores, `traffic` in bytes per second through "
            "the gateway; others are counts."
        ),
    )
    threshold = serializers.FloatField(help_text="Lowest value that counts as activity.")
    active = serializers.BooleanField(help_text="Whether it counts as activity.")


CAUSES = (
    "Cause of the step: `lifetime`, `longest`, `gpu_idle`, `idle`, `schedule` or `budget`. `release` "
    "and `release_gpu_idle` only release its accelerators."
)


class HeldSerializer(serializers.Serializer[Any]):
    """A possible cause of a reclaim, in seconds."""

    cause = serializers.CharField(help_text=CAUSES)
    value_s = serializers.FloatField(help_text="Current value in seconds.")
    threshold_s = serializers.FloatField(help_text="Threshold in seconds.")


class ChangeSerializer(serializers.Serializer[Any]):
    """The signals that were active from this time until the next change; null if not observed."""

    at = serializers.DateTimeField(help_text="When this activity began.")
    active = serializers.ListField(
        child=serializers.CharField(),
        allow_null=True,
        help_text="Signals that were active from then on; null if not observed.",
    )


class ReclaimRuleSerializer(serializers.Serializer[Any]):
    """A policy value that applies to a workspace, and its source."""

    name = serializers.CharField(
        help_text=(
            "Name of the rule: `idle_s`, `gpu_idle_s`, `release_s`, `longest_s`, `notice_s`, "
            "`stop_when_spent` or `week`."
        )
    )
    value = serializers.JSONField(allow_null=True, help_text="Value of the rule; null for none.")
    set_by = serializers.CharField(
        help_text="Source of the value: `settings`, or the target of a policy, such as `flavor:a100-full`."
    )


class DiscontentSerializer(serializers.Serializer[Any]):
    """Why a workspace gets less from its placement than it should."""

    contentment = serializers.IntegerField(help_text="Performance in percent of what it should get.")
    reason = serializers.CharField(help_text="Code of the reason.")
    message = serializers.CharField(help_text="Reason, as a sentence.")
    since = serializers.DateTimeField(help_text="Start of the period.")


class WorkProgressSerializer(serializers.Serializer[Any]):
    """Progress of the work, by a metric that the job reports."""

    name = serializers.CharField()
    rate = serializers.FloatField(help_text="Average rate per second over the last 10 minutes.")
    best = serializers.FloatField(
        allow_null=True, help_text="Highest rate at the current placement within 7 days."
    )
    best_elsewhere = serializers.FloatField(
        allow_null=True,
        help_text="Highest rate at another placement with the same resources; null for none.",
    )
    best_node = serializers.CharField(help_text="Name of the node of that placement; empty for none.")
    percent = serializers.IntegerField(
        allow_null=True, help_text="Rate in percent of `best_elsewhere`. Below 80 counts as slow."
    )


class ActivitySerializer(serializers.Serializer[Any]):
    """The activity of a running workspace, and possible causes of a reclaim."""

    observed_at = serializers.DateTimeField(allow_null=True, help_text="Time of the last observation.")
    idle_s = serializers.FloatField(allow_null=True, help_text="Idle time in seconds; null if unknown.")
    gpu_idle_s = serializers.FloatField(
        allow_null=True, help_text="Idle time of its GPUs in seconds; null if unknown."
    )
    idle_limit_s = serializers.IntegerField(
        allow_null=True, help_text="Idle time in seconds after which a step is due; null for never."
    )
    kept_until = serializers.DateTimeField(
        allow_null=True, help_text="End of the protection from reclaim; null for none."
    )
    stops_at = serializers.DateTimeField(
        allow_null=True, help_text="Time of the announced step; null for none."
    )
    step = serializers.ChoiceField(
        ["release", "stop"],
        allow_null=True,
        help_text="The announced step. `release` restarts the app without accelerators.",
    )
    cause = serializers.CharField(allow_null=True, help_text=CAUSES)
    starts_at = serializers.DateTimeField(
        allow_null=True, help_text="Time of the scheduled start after a scheduled stop; null for none."
    )
    unused_gpus = serializers.IntegerField(
        help_text="Accelerators without work for at least 15 minutes while another one works."
    )
    signals = SignalSerializer(many=True, help_text="Measured signals with their thresholds.")
    held = HeldSerializer(many=True, help_text="Possible causes of a reclaim, with their thresholds.")
    history = ChangeSerializer(many=True, help_text="Activity of the last 2 days.")
    policy = ReclaimRuleSerializer(
        many=True, help_text="The limits that apply, and where each value comes from."
    )
    progress = WorkProgressSerializer(
        many=True, help_text="Progress of the job; empty if the job reports none."
    )
    discontent = DiscontentSerializer(
        allow_null=True,
        help_text="Why its placement gives it less than it should get; null if it does not, or if unknown.",
    )


class Activity(ApiView):
    """The activity of a workspace."""

    tag = "workspaces"
    operation_ids = {"get": "getWorkspaceActivity"}
    scopes = {"*": Scope.WORKSPACES_READ}

    @operation(
        "Read the activity of a workspace",
        description="Returns each signal with its threshold, the idle time and any announced stop.",
        responses={200: ActivitySerializer},
        parameters=[OpenApiParameter("workspace_id", UUID, OpenApiParameter.PATH)],
        errors=[404],
    )
    def get(self, request: UserRequest, workspace_id: UUID) -> Response:
        workspace = selectors.workspace_by_id(request.user, workspace_id)
        return Response(ActivitySerializer(presenters.activity_of(workspace)).data)


class Keep(ApiView):
    """Keeps an idle workspace."""

    tag = "workspaces"
    operation_ids = {"post": "keepWorkspace"}
    scopes = {"*": Scope.WORKSPACES_WRITE}

    @operation(
        "Keep a workspace",
        description=(
            "Protects a running workspace from idle limits for this time. Use it for jobs that neither "
            "compute nor run in a terminal or kernel. Does not change `ends_at`. Idempotent."
        ),
        request=KeepSerializer,
        responses={200: ActivitySerializer},
        parameters=[OpenApiParameter("workspace_id", UUID, OpenApiParameter.PATH)],
        errors=[400, 404, 409, 415],
    )
    def post(self, request: UserRequest, workspace_id: UUID) -> Response:
        seconds: int = body_of(request, KeepSerializer)["seconds"]
        selectors.workspace_by_id(request.user, workspace_id)
        keeping.keep_workspace(actor=request.user, workspace_id=workspace_id, seconds=seconds)
        workspace = selectors.workspace_by_id(request.user, workspace_id)
        return Response(ActivitySerializer(presenters.activity_of(workspace)).data)


urlpatterns = [
    *routes("workspaces/<uuid:workspace_id>/keep", Keep, "workspace-keep"),
    *routes("workspaces/<uuid:workspace_id>/activity", Activity, "workspace-activity"),
]
