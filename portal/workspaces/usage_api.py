"""REST API of the measured use of a workspace."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any
from uuid import UUID

from django.utils import timezone
from drf_spectacular.utils import OpenApiParameter
from rest_framework import serializers
from rest_framework.response import Response

from portal.common.api import ApiView, UserRequest, operation, routes
from portal.common.errors import InvalidInput
from portal.common.plots import moment
from portal.common.reasons.reason import Reason
from portal.common.reasons.wording import next_action_of
from portal.common.scopes import Scope
from portal.fleet.inventory.codes import InventoryCode
from portal.workspaces import selectors
from portal.workspaces.usage_history import SPANS, Span, Usage, UsagePoint, usage_of


def _amount(help_text: str) -> serializers.IntegerField:
    return serializers.IntegerField(allow_null=True, help_text=help_text)


class UsagePointSerializer(serializers.Serializer[Any]):
    """Use in an interval. Null means not measured. Points without measurements are omitted."""

    start = serializers.DateTimeField(help_text="Start of the interval.")
    cpu_milli = _amount("Average CPU use in thousandths of a core.")
    cpu_max_milli = _amount("Maximum CPU use of a minute, in thousandths of a core.")
    memory_mib = _amount("Average memory of all its processes, in MiB.")
    memory_max_mib = _amount("Maximum memory of all its processes, in MiB.")
    gpu_pct = serializers.FloatField(
        allow_null=True, help_text="Average GPU utilization of all its GPUs, in percent."
    )
    gpu_max_pct = _amount("Maximum GPU utilization of any of its GPUs, in percent.")
    gpu_memory_mib = _amount("Average GPU memory in use on all its GPUs, in MiB.")
    gpu_memory_max_mib = _amount("Sum of the maximum memory in use of each of its GPUs, in MiB.")


class UsageLimitsSerializer(serializers.Serializer[Any]):
    """Limits of the workspace."""

    cpu_milli = serializers.IntegerField(help_text="Requested CPU in thousandths of a core.")
    memory_mib = serializers.IntegerField(help_text="Memory limit in MiB.")
    gpu_memory_mib = _amount(
        "Memory of all GPUs and MIG instances of its last start, in MiB; null without any, or for a share."
    )


class WorkspaceUsageSerializer(serializers.Serializer[Any]):
    """Measured use of a workspace. `step_s` is the length of each point; missing points are gaps."""

    span = serializers.ChoiceField(
        choices=[(span.value, span.value) for span in Span], help_text="Length of the period."
    )
    start = serializers.DateTimeField(help_text="Start of the period, not before the workspace was created.")
    end = serializers.DateTimeField(help_text="End of the last point.")
    step_s = serializers.IntegerField(help_text="Interval of each point, in seconds.")
    limits = UsageLimitsSerializer(help_text="Limits of the workspace.")
    points = UsagePointSerializer(many=True, help_text="Measurements, oldest first.")


SPAN = OpenApiParameter(
    "span",
    str,
    description="Period up to now: `hour`, `day`, `week`, or `all` for up to 90 days.",
    enum=[span.value for span in Span],
    default=Span.DAY.value,
)


def _row(usage: Usage, place: int, point: UsagePoint) -> dict[str, Any]:
    values = {name: None if value is None else round(value) for name, value in asdict(point).items()}
    percent = None if point.gpu_pct is None else round(point.gpu_pct, 2)
    return {**values, "gpu_pct": percent, "start": moment(usage.start_s + usage.step_s * place)}


class WorkspaceUsage(ApiView):
    """Measured use of a workspace."""

    tag = "workspaces"
    operation_ids = {"get": "getWorkspaceUsage"}
    scopes = {"*": Scope.WORKSPACES_READ}
    query_params = frozenset({"span"})

    @operation(
        "Read the CPU, memory and GPU use of a workspace over time",
        description=(
            "At most 181 points: by the minute for an hour, by 10 minutes for a day, by the hour for a week. "
            "Agents report once a minute. Whole GPUs are measured by their nodes. Simulated workspaces are "
            "not measured."
        ),
        responses={200: WorkspaceUsageSerializer},
        parameters=[OpenApiParameter("workspace_id", UUID, OpenApiParameter.PATH), SPAN],
        errors=[400, 404],
    )
    def get(self, request: UserRequest, workspace_id: UUID) -> Response:
        workspace = selectors.workspace_by_id(request.user, workspace_id)
        span = request.query_params.get("span", Span.DAY)
        if span not in SPANS:
            reason = Reason(InventoryCode.SPAN_UNKNOWN, {"known": [span.value for span in Span]})
            raise InvalidInput(reason, errors={"span": [next_action_of(reason)]})
        usage = usage_of(workspace, Span(span), timezone.now())
        body = {
            "span": usage.span,
            "start": moment(usage.start_s),
            "end": moment(usage.end_s),
            "step_s": usage.step_s,
            "limits": asdict(usage.limits),
            "points": [
                _row(usage, place, point) for place, point in enumerate(usage.points) if point.measured
            ],
        }
        return Response(WorkspaceUsageSerializer(body).data)


urlpatterns = routes("workspaces/<uuid:workspace_id>/usage", WorkspaceUsage, "workspace-usage")
