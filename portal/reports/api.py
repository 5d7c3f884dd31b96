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

    capacity = serializers.FloatField(help_text="Of all devices; 0 if no devices are counted.")
    allocated = serializers.FloatField(help_text="Held by workspaces.")
    used = serializers.FloatField(help_text="Of these, utilisation added up: an hour at 50 % is half of one.")
    idle = serializers.FloatField(help_text="Of these, measured and not used.")
    not_measured = serializers.FloatField(help_text="Of these, not measured.")
    reclaimed = serializers.FloatField(help_text="Freed by stops of Berth's, until the next start or a day.")
    waited = serializers.FloatField(help_text="Asked for and waited for.")
    dark = serializers.FloatField(
        allow_null=True, help_text="The share without work, 0 to 1, of what was measured; null: nothing was."
    )
    not_measured_share = serializers.FloatField(
        allow_null=True, help_text="The share, 0 to 1, about which `dark` says nothing."
    )
    cost = serializers.FloatField(help_text="What was held, at the prices of flavors, in `currency`.")


class GpuUseLineSerializer(serializers.Serializer[Any]):
    """One team, user, flavor, model, node (`pool/node`) or day."""

    key = serializers.CharField(
        allow_blank=True,
        help_text="Key of the line: a team, user, flavor, model, node (`pool/node`) or day.",
    )
    amounts = GpuUseAmountsSerializer(help_text="GPU-hours by how they were used.")


class GpuUseDaySerializer(serializers.Serializer[Any]):
    """A day (UTC)."""

    day = serializers.DateField(help_text="The day, as `2026-03-01`.")
    amounts = GpuUseAmountsSerializer(allow_null=True, help_text="null: it has not been added up.")


class GpuUseSerializer(serializers.Serializer[Any]):
    """GPU use from `since` to `until`, both inclusive (UTC)."""

    since = serializers.DateField(help_text="First day.")
    until = serializers.DateField(help_text="Last day (included).")
    team = serializers.CharField(
        allow_null=True, help_text="Short name of the team that was asked for; null for all."
    )
    by = serializers.ChoiceField(
        choices=[(dimension, dimension) for dimension in gpu_use.BY], help_text="What each line is about."
    )
    currency = serializers.CharField(help_text="Of costs, as `EUR`.")
    total = GpuUseAmountsSerializer(help_text="Total of all rows.")
    before = GpuUseAmountsSerializer(help_text="As many days before these.")
    days = GpuUseDaySerializer(many=True, help_text="One row for each day.")
    lines = GpuUseLineSerializer(many=True, help_text="Those that held most first.")
    cut = serializers.BooleanField(help_text="There are more than these 1,000.")


def amounts_json(amounts: Amounts) -> dict[str, Any]:
    """Return figures in GPU-hours for REST and CSV."""

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
        "dark": share(amounts.dark),
        "not_measured_share": share(amounts.unmeasured),
        "cost": round(amounts.money, 2),
    }


def _date(request: UserRequest, name: str) -> date | None:
    text = request.query_params.get(name)
    try:
        return None if text is None else date.fromisoformat(text)
    except ValueError as error:
        reason = Reason(ReportCode.DAYS_OUT_OF_RANGE, {"maximum": gpu_use.MAX_DAYS})
        raise InvalidInput(reason, errors={name: [reason]}) from error


class GpuUse(ApiView):
    """Sums of GPU use."""

    tag = "reclaim"
    operation_ids = {"get": "getGpuUseReport"}
    scopes = {"GET": Scope.QUOTAS_READ, "*": Scope.QUOTAS_WRITE}
    query_params = frozenset({"since", "until", "team", "by"})

    @operation(
        "Report GPU use",
        description="Of the site for operators and auditors; of a team for its owners too. Based on totals "
        "by day. Those of today and yesterday are updated once an hour.",
        parameters=[
            OpenApiParameter(
                "since", OpenApiTypes.DATE, description="First day; 30 days where it is left out."
            ),
            OpenApiParameter("until", OpenApiTypes.DATE, description="Last day; today where it is left out."),
            OpenApiParameter("team", str, description="Of this team alone."),
            OpenApiParameter(
                "by",
                str,
                enum=list(gpu_use.BY),
                default=Dimension.TEAM.value,
                description="What each line of a day is about.",
            ),
        ],
        responses={200: GpuUseSerializer},
        errors=[400, 404],
    )
    def get(self, request: UserRequest) -> Response:
        figures = gpu_use.report(
            actor=request.user,
            since=_date(request, "since"),
            until=_date(request, "until"),
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
