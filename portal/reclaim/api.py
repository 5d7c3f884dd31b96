"""REST views: activity of workspaces, and keeping them."""

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

    kind = serializers.ChoiceField([kind.value for kind in SignalKind], help_text="What is measured.")
    value = serializers.FloatField(
        allow_null=True,
        help_text="`gpu`: percent, `cpu`: cores, `traffic`: bytes a second by the gateway, else how many.",
    )
    threshold = serializers.FloatField(help_text="Lowest value that counts as activity.")
    active = serializers.BooleanField(help_text="Whether it counts as activity.")


CAUSES = (
    "`lifetime`, `longest`, `gpu_idle`, `idle`, `schedule`, `budget`; `release` and `release_gpu_idle` take "
    "back its accelerators only."
)


class HeldSerializer(serializers.Serializer[Any]):
    """A possible cause of a reclaim, in seconds."""

    cause = serializers.CharField(help_text=CAUSES)
    value_s = serializers.FloatField(help_text="Current value in seconds.")
    threshold_s = serializers.FloatField(help_text="Threshold in seconds.")


class ChangeSerializer(serializers.Serializer[Any]):
    """The signals active from a time until the next change; null if not observed."""

    at = serializers.DateTimeField(help_text="When this activity began.")
    active = serializers.ListField(
        child=serializers.CharField(),
        allow_null=True,
        help_text="Signals that were active from then on; null if not observed.",
    )


class ReclaimRuleSerializer(serializers.Serializer[Any]):
    """A value that applies to a workspace, and its source."""

    name = serializers.CharField(
        help_text="`idle_s`, `gpu_idle_s`, `release_s`, `longest_s`, `notice_s`, `stop_when_spent` or `week`."
    )
    value = serializers.JSONField(allow_null=True, help_text="Value of the rule; null for none.")
    set_by = serializers.CharField(help_text="`settings`, or what the policy is for: `flavor:a100-full`.")


class DiscontentSerializer(serializers.Serializer[Any]):
    """Why a workspace gets less than it should at its placement."""

    contentment = serializers.IntegerField(help_text="What it gets of what it should get, in percent.")
    reason = serializers.CharField(help_text="The code of why.")
    message = serializers.CharField(help_text="Why, in a sentence.")
    since = serializers.DateTimeField(help_text="Start of the period.")


class WorkProgressSerializer(serializers.Serializer[Any]):
    """The pace of the work by a metric of the job."""

    name = serializers.CharField()
    rate = serializers.FloatField(help_text="How much was done a second within the last ten minutes.")
    best = serializers.FloatField(
        allow_null=True, help_text="The highest rate at its present place within a week."
    )
    best_elsewhere = serializers.FloatField(
        allow_null=True,
        help_text="The highest rate at another place, with the same amounts of everything; null: none.",
    )
    best_node = serializers.CharField(help_text="The node of that place; empty where there is none.")
    percent = serializers.IntegerField(
        allow_null=True, help_text="The rate in percent of the best elsewhere; below 80 it is slow."
    )


class ActivitySerializer(serializers.Serializer[Any]):
    """The activity of a running workspace, and possible causes of a reclaim."""

    observed_at = serializers.DateTimeField(allow_null=True, help_text="Time of the last observation.")
    idle_s = serializers.FloatField(allow_null=True, help_text="Seen to do nothing at all; null: not known.")
    gpu_idle_s = serializers.FloatField(allow_null=True, help_text="Seen to do nothing on its GPUs.")
    idle_limit_s = serializers.IntegerField(
        allow_null=True, help_text="After which a step is due; null: never."
    )
    kept_until = serializers.DateTimeField(
        allow_null=True, help_text="End of the protection from reclaim; null for none."
    )
    stops_at = serializers.DateTimeField(allow_null=True, help_text="Where a step has been announced: when.")
    step = serializers.ChoiceField(
        ["release", "stop"],
        allow_null=True,
        help_text="Which: `release` restarts its app without accelerators.",
    )
    cause = serializers.CharField(allow_null=True, help_text=CAUSES)
    starts_at = serializers.DateTimeField(
        allow_null=True, help_text="When it is started again, where a schedule has stopped it; null: not."
    )
    signals = SignalSerializer(many=True, help_text="Measured signals with their thresholds.")
    held = HeldSerializer(many=True, help_text="Possible causes of a reclaim, with their thresholds.")
    history = ChangeSerializer(many=True, help_text="Of the last two days.")
    policy = ReclaimRuleSerializer(
        many=True, help_text="The limits that apply, and where each value comes from."
    )
    progress = WorkProgressSerializer(many=True, help_text="Empty where the job tells nothing.")
    discontent = DiscontentSerializer(
        allow_null=True, help_text="Null where it is content with its place, or nothing is known."
    )


class Activity(ApiView):
    """The activity of a workspace."""

    tag = "workspaces"
    operation_ids = {"get": "getWorkspaceActivity"}
    scopes = {"*": Scope.WORKSPACES_READ}

    @operation(
        "Read what a workspace does",
        description="Each signal with its threshold, for how long it was seen idle, and what was announced.",
        responses={200: ActivitySerializer},
        parameters=[OpenApiParameter("workspace_id", UUID, OpenApiParameter.PATH)],
        errors=[404],
    )
    def get(self, request: UserRequest, workspace_id: UUID) -> Response:
        workspace = selectors.workspace_by_id(request.user, workspace_id)
        return Response(ActivitySerializer(presenters.activity_of(workspace)).data)


class Keep(ApiView):
    """Keeps a workspace."""

    tag = "workspaces"
    operation_ids = {"post": "keepWorkspace"}
    scopes = {"*": Scope.WORKSPACES_WRITE}

    @operation(
        "Keep a workspace",
        description=(
            "Holds no idleness against a running workspace for so long: for jobs that neither compute nor "
            "run in a terminal or kernel. Its end stays. Saying it again is success."
        ),
        request=KeepSerializer,
        responses={200: ActivitySerializer},
        parameters=[OpenApiParameter("workspace_id", UUID, OpenApiParameter.PATH)],
        errors=[400, 404, 409, 415],
    )
    def post(self, request: UserRequest, workspace_id: UUID) -> Response:
        seconds: int = body_of(request, KeepSerializer)["seconds"]
        selectors.workspace_by_id(request.user, workspace_id)
        keeping.keep(actor=request.user, workspace_id=workspace_id, seconds=seconds)
        workspace = selectors.workspace_by_id(request.user, workspace_id)
        return Response(ActivitySerializer(presenters.activity_of(workspace)).data)


urlpatterns = [
    *routes("workspaces/<uuid:workspace_id>/keep", Keep, "workspace-keep"),
    *routes("workspaces/<uuid:workspace_id>/activity", Activity, "workspace-activity"),
]
