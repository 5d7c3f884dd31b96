"""REST API of GPU use."""

from __future__ import annotations

from datetime import date
from typing import Any

from django.conf import settings
from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import OpenApiParameter
from rest_framework import serializers
from rest_framework.response import Response

from portal.common.api import ApiView, UserRequest, operation, routes
from portal.common.errors import InvalidInput
from portal.common.formatting import MILLI_GPU_S_PER_HOUR
from portal.common.reasons.reason import Reason
from portal.common.scopes import Scope
from portal.common.texts import strip_nul
from portal.reports import gpu_use
from portal.reports.codes import ReportCode
from portal.reports.gpu_use import Amounts
from portal.reports.models import Dimension


class GpuUseAmountsSerializer(serializers.Serializer[Any]):
    """GPU-hours. Time without measurements is neither used nor idle."""

    capacity = serializers.FloatField(help_text="GPU-hours of all devices; 0 if no devices are counted.")
    allocated = serializers.FloatField(help_text="GPU-hours allocated to workspaces.")
    used = serializers.FloatField(
        help_text="Sum of the utilisation in GPU-hours: 1 hour at 50 % counts as 0.5."
    )
    idle = serializers.FloatField(help_text="GPU-hours that were measured as idle.")
    not_measured = serializers.FloatField(help_text="GPU-hours without measurements.")
    reclaimed = serializers.FloatField(
        help_text="GPU-hours freed by automatic stops, until the next start, for up to 1 day."
    )
    waited = serializers.FloatField(help_text="GPU-hours requested by queued workspaces while they waited.")
    dark = serializers.FloatField(
        allow_null=True,
        help_text="Idle share of the measured time, from 0 to 1; null without measurements.",
    )
    not_measured_share = serializers.FloatField(
        allow_null=True,
        help_text="Share of the time without measurements, from 0 to 1. `dark` does not include it.",
    )
    cost = serializers.FloatField(
        help_text="Cost of the allocated resources at the prices of flavors, in `currency`."
    )


class GpuUseLineSerializer(serializers.Serializer[Any]):
    """One team, user, flavor, model, node (`pool/node`) or day."""

    key = serializers.CharField(
        allow_blank=True,
        help_text="Key of the line: a team, user, flavor, model, node (`pool/node`) or day.",
    )
    amounts = GpuUseAmountsSerializer(help_text="GPU-hours by how they were used.")


class GpuUseDaySerializer(serializers.Serializer[Any]):
    """A day (UTC)."""

    day = serializers.DateField(help_text="The day, such as `2026-03-01`.")
    amounts = GpuUseAmountsSerializer(
        allow_null=True, help_text="Totals of the day; null if not calculated yet."
    )


class GpuUseSerializer(serializers.Serializer[Any]):
    """GPU use from `since` to `until`, both inclusive (UTC)."""

    since = serializers.DateField(help_text="First day.")
    until = serializers.DateField(help_text="Last day (included).")
    team = serializers.CharField(allow_null=True, help_text="Slug of the requested team; null for all.")
    by = serializers.ChoiceField(
        choices=[(dimension, dimension) for dimension in gpu_use.BY], help_text="Grouping of the lines."
    )
    currency = serializers.CharField(help_text="Currency of the costs, such as `EUR`.")
    total = GpuUseAmountsSerializer(help_text="Total of all rows.")
    before = GpuUseAmountsSerializer(help_text="Totals of the preceding period of the same length.")
    days = GpuUseDaySerializer(many=True, help_text="One row for each day.")
    lines = GpuUseLineSerializer(many=True, help_text="Lines, largest use first.")
    cut = serializers.BooleanField(help_text="Whether there are more than the 1,000 lines returned.")


def amounts_json(amounts: Amounts) -> dict[str, Any]:
    """Return the amounts in GPU-hours for REST and CSV."""

    def hours(value: int) -> float:
        return round(value / MILLI_GPU_S_PER_HOUR, 3)

    def share(value: float | None) -> float | None:
        return None if value is None else round(value, 4)

    return {
        "capacity": hours(amounts.capacity),
        "allocated": hours(amounts.held),
        "used": hours(amounts.held_used),
        "idle": hours(amounts.idle),
        "not_measured": hours(amounts.missing),
        "reclaimed": hours(amounts.reclaimed),
        "waited": hours(amounts.waited),
        "dark": share(amounts.idle_share),
        "not_measured_share": share(amounts.unmeasured),
        "cost": round(amounts.money, 2),
    }


def date_of(request: UserRequest, name: str) -> date | None:
    """Return the date in a query parameter, or None without one. Raises `InvalidInput`."""
    text = request.query_params.get(name)
    try:
        return None if text is None else date.fromisoformat(text)
    except ValueError as error:
        reason = Reason(ReportCode.DAYS_OUT_OF_RANGE, {"maximum": gpu_use.MAX_DAYS})
        raise InvalidInput(reason, errors={name: [reason]}) from error


class GpuUse(ApiView):
    """GPU use of the site or a team."""

    tag = "reclaim"
    operation_ids = {"get": "getGpuUseReport"}
    scopes = {"GET": Scope.QUOTAS_READ, "*": Scope.QUOTAS_WRITE}
    query_params = frozenset({"since", "until", "team", "by"})

    @operation(
        "Report GPU use",
        description=(
            "For operators and auditors; for a team, also for its owners. Based on daily totals. Those of "
            "today and yesterday are updated every hour."
        ),
        parameters=[
            OpenApiParameter("since", OpenApiTypes.DATE, description="First day. Default: 30 days ago."),
            OpenApiParameter("until", OpenApiTypes.DATE, description="Last day. Default: today."),
            OpenApiParameter("team", str, description="Only this team, by slug."),
            OpenApiParameter(
                "by",
                str,
                enum=list(gpu_use.BY),
                default=Dimension.TEAM.value,
                description="Grouping of the lines.",
            ),
        ],
        responses={200: GpuUseSerializer},
        errors=[400, 404],
    )
    def get(self, request: UserRequest) -> Response:
        figures = gpu_use.report(
            actor=request.user,
            since=date_of(request, "since"),
            until=date_of(request, "until"),
            team=strip_nul(request.query_params.get("team", "")),
            by=request.query_params.get("by", Dimension.TEAM),
        )
        body = {
            "since": figures.since,
            "until": figures.until,
            "team": figures.team.slug if figures.team is not None else None,
            "by": figures.by,
            "currency": settings.BERTH_CURRENCY,
            "total": amounts_json(figures.total),
            "before": amounts_json(figures.before),
            "days": [
                {"day": day, "amounts": amounts_json(amounts) if amounts is not None else None}
                for day, amounts in figures.days
            ],
            "lines": [{"key": line.key, "amounts": amounts_json(line.amounts)} for line in figures.lines],
            "cut": figures.cut,
        }
        return Response(GpuUseSerializer(body).data)


urlpatterns = [
    *routes("reports/gpu-use", GpuUse, "gpu-use"),
]
