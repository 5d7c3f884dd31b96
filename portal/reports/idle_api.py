"""REST API of idle GPU time."""

from __future__ import annotations

from typing import Any

from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import OpenApiParameter
from rest_framework import serializers
from rest_framework.response import Response

from portal.common.api import ApiView, UserRequest, operation, routes
from portal.common.formatting import MILLI_GPU_S_PER_HOUR
from portal.common.scopes import Scope
from portal.common.texts import strip_nul
from portal.reclaim.engine.idle_time import KeptReason
from portal.reports import idle_gpus
from portal.reports.api import date_of
from portal.reports.idle_gpus import IdleAmounts

KEPT_REASONS = [(reason.value, reason.value) for reason in KeptReason]


class KeptTimeSerializer(serializers.Serializer[Any]):
    """Idle GPU-hours that were not reclaimed, and the reason."""

    reason = serializers.ChoiceField(
        KEPT_REASONS,
        help_text=(
            "`kept`: a user kept the workspace. `other_work`: something else was active. `no_limit`: no "
            "idle limit applies. `below_limit`: the limit or the end of the notice was not reached."
        ),
    )
    gpu_hours = serializers.FloatField(help_text="GPU-hours.")


class GivenBackSerializer(serializers.Serializer[Any]):
    """GPU-hours that Berth has freed, and the reason."""

    reason = serializers.CharField(help_text="Reason code of the stop or release, such as `ends_by_idle`.")
    gpu_hours = serializers.FloatField(help_text="GPU-hours until the next start, for up to 1 day.")


class IdleAmountsSerializer(serializers.Serializer[Any]):
    """GPU-hours of workspaces with accelerators."""

    allocated = serializers.FloatField(help_text="GPU-hours allocated to workspaces.")
    idle = serializers.FloatField(
        help_text="GPU-hours in idle periods of at least 10 minutes with all GPUs of a workspace at 0 %."
    )
    kept = KeptTimeSerializer(many=True, help_text="`idle` by the reason why the GPUs were kept.")
    given_back = serializers.FloatField(help_text="GPU-hours freed by automatic stops and releases.")
    given_back_by = GivenBackSerializer(many=True, help_text="`given_back` by reason.")
    would_give_back = serializers.FloatField(
        help_text="GPU-hours that the current policies would have freed in addition."
    )


class IdleLineSerializer(serializers.Serializer[Any]):
    """Idle GPU time of one team."""

    team = serializers.CharField(help_text="Slug of the team.")
    amounts = IdleAmountsSerializer(help_text="GPU-hours of the team.")


class IdleGpusSerializer(serializers.Serializer[Any]):
    """Idle GPU time from `since` to `until`, both inclusive (UTC)."""

    since = serializers.DateField(help_text="First day.")
    until = serializers.DateField(help_text="Last day (included).")
    recorded_since = serializers.DateTimeField(
        allow_null=True, help_text="When recording of idle periods began; null: not yet."
    )
    team = serializers.CharField(allow_null=True, help_text="Slug of the requested team; null for all.")
    total = IdleAmountsSerializer(help_text="Total of all teams.")
    lines = IdleLineSerializer(many=True, help_text="Teams, most idle time first.")
    cut = serializers.BooleanField(help_text="Whether there are more than the 1,000 lines returned.")


def hours(amount: float) -> float:
    """Return GPU-hours from thousandths of GPU-seconds."""
    return round(amount / MILLI_GPU_S_PER_HOUR, 3)


def idle_json(amounts: IdleAmounts) -> dict[str, Any]:
    """Return the amounts for REST, in GPU-hours."""
    return {
        "allocated": hours(amounts.held),
        "idle": hours(amounts.idle),
        "kept": [{"reason": name, "gpu_hours": hours(value)} for name, value in amounts.kept.items()],
        "given_back": hours(amounts.returned),
        "given_back_by": [
            {"reason": name, "gpu_hours": hours(value)} for name, value in amounts.given_back.items()
        ],
        "would_give_back": hours(amounts.would_give_back),
    }


class IdleGpus(ApiView):
    """Idle GPU time by team and reason."""

    tag = "reclaim"
    operation_ids = {"get": "getIdleGpusReport"}
    scopes = {"GET": Scope.QUOTAS_READ, "*": Scope.QUOTAS_WRITE}
    query_params = frozenset({"since", "until", "team"})

    @operation(
        "Report idle GPUs",
        description=(
            "For operators and auditors; for a team, also for its owners. Returns idle GPU-hours by team: "
            "why they were kept, what Berth reclaimed, and what the current policies would also reclaim."
        ),
        parameters=[
            OpenApiParameter("since", OpenApiTypes.DATE, description="First day. Default: 30 days ago."),
            OpenApiParameter("until", OpenApiTypes.DATE, description="Last day. Default: today."),
            OpenApiParameter("team", str, description="Only this team, by slug."),
        ],
        responses={200: IdleGpusSerializer},
        errors=[400, 404],
    )
    def get(self, request: UserRequest) -> Response:
        figures = idle_gpus.report(
            actor=request.user,
            since=date_of(request, "since"),
            until=date_of(request, "until"),
            team=strip_nul(request.query_params.get("team", "")),
        )
        body = {
            "since": figures.since,
            "until": figures.until,
            "recorded_since": figures.recorded_since,
            "team": figures.team.slug if figures.team is not None else None,
            "total": idle_json(figures.total),
            "lines": [{"team": line.team, "amounts": idle_json(line.amounts)} for line in figures.lines],
            "cut": figures.cut,
        }
        return Response(IdleGpusSerializer(body).data)


urlpatterns = [
    *routes("reports/idle-gpus", IdleGpus, "idle-gpus"),
]
