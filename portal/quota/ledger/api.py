"""REST views of GPU-hours."""

from __future__ import annotations

from typing import Any

from django.db.models import QuerySet
from drf_spectacular.utils import OpenApiExample
from rest_framework import serializers
from rest_framework.decorators import action
from rest_framework.request import Request
from rest_framework.response import Response

from portal.common import etags
from portal.common.api import (
    ApiView,
    ListViewSet,
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
from portal.common.etags import IF_MATCH, TaggedViewSet
from portal.common.scopes import Scope
from portal.people.accounts.authentication import HasScope
from portal.quota.ledger import selectors, services
from portal.quota.ledger.models import EntryKind, LedgerAccount, LedgerEntry, Period
from portal.quota.ledger.own_use import own_use
from portal.quota.limits.api.limits import SetsLimits
from portal.quota.limits.selectors import limits

SCOPES = {"GET": Scope.QUOTAS_READ, "*": Scope.QUOTAS_WRITE}
UNIT = "Amount in weighted milli-GPU-seconds (1 GPU-hour is 3,600,000)."


class LedgerSerializer(serializers.Serializer[Any]):
    """A team's current ledger."""

    team = serializers.CharField(source="team.slug")
    period = serializers.ChoiceField(Period.choices, help_text="Refill period of the credit.")
    period_ends_at = serializers.DateTimeField(help_text="When the credit is refilled next.")
    quota = serializers.IntegerField(help_text=UNIT)
    credit = serializers.IntegerField(help_text="Credit for this period, in weighted milli-GPU-seconds.")
    spent = serializers.IntegerField(help_text="Credit spent in this period, in weighted milli-GPU-seconds.")
    balance = serializers.IntegerField(
        help_text=(
            "Remaining credit, in weighted milli-GPU-seconds. Can fall slightly below 0, by up to one "
            "accounting interval."
        )
    )
    unbilled = serializers.IntegerField(
        help_text="Amount used after the credit was spent, in weighted milli-GPU-seconds."
    )
    per_hour = serializers.IntegerField(help_text="Current spending per hour, in weighted milli-GPU-seconds.")
    lasts_until = serializers.DateTimeField(
        allow_null=True, help_text="Time at which the credit is spent at the current rate; null for never."
    )
    percent = serializers.IntegerField(help_text="Spent part of the credit, in percent.")


class LedgerChangeSerializer(StrictSerializer):
    quota = serializers.IntegerField(min_value=0, help_text=UNIT)
    period = serializers.ChoiceField(
        choices=Period.choices, default=Period.MONTH, help_text="Refill period of the credit."
    )

    examples = {"quota": 8000}


class CreditSerializer(StrictSerializer):
    amount = serializers.IntegerField(help_text=f"{UNIT} Negative takes back, down to no credit.")
    note = serializers.CharField(required=False, allow_blank=True, default="", max_length=200)


class LedgerEntrySerializer(serializers.ModelSerializer[LedgerEntry]):
    """A ledger entry of a team."""

    team = serializers.CharField(source="account.team.slug")
    kind = serializers.ChoiceField(EntryKind.choices, help_text="Kind of entry.")
    actor = serializers.CharField(source="actor_label", help_text="Display name of the actor.")

    class Meta:
        model = LedgerEntry
        fields = ["id", "at", "team", "kind", "amount", "balance", "actor", "note"]
        read_only_fields = fields


@documented(
    list="List ledgers",
    of="Lists those of your teams. Operators and approvers see all.",
    retrieve="Read a team's ledger",
)
class LedgerViewSet(TaggedViewSet, ReadViewSet):
    observed = frozenset(
        {"balance", "lasts_until", "per_hour", "percent", "period_ends_at", "spent", "unbilled"}
    )
    tag = "gpu-hours"
    operation_ids = {
        "list": "listLedgers",
        "retrieve": "getLedger",
        "update": "setLedger",
        "destroy": "deleteLedger",
        "credits": "creditLedger",
    }
    queryset = LedgerAccount.objects.none()
    serializer_class = LedgerSerializer
    permission_classes = [SetsLimits]
    scopes = SCOPES
    ordering = ("team__slug",)
    lookup_field = "slug"
    lookup_value_converter = "slug"

    def get_queryset(self) -> QuerySet[LedgerAccount]:
        return selectors.ledgers_for(self.request.user)

    def get_object(self) -> selectors.Statement:
        return selectors.statement_for(self.request.user, self.kwargs["slug"])

    def list(self, request: Request, *args: Any, **kwargs: Any) -> Response:
        page = self.paginate_queryset(self.filter_queryset(self.get_queryset()))
        statements = [selectors.statement(row.team) for row in page or ()]
        rows = self.get_serializer([statement for statement in statements if statement], many=True)
        return self.get_paginated_response(rows.data)

    @operation(
        "Set a team's ledger",
        description="For operators. The new amount applies from now on. Spent hours stay spent.",
        request=LedgerChangeSerializer,
        responses={200: LedgerSerializer},
        parameters=[IF_MATCH],
        errors=[400, 404, 412, 415],
        examples=[
            OpenApiExample(
                "100 hours every 30 days", {"quota": 360_000_000, "period": "month"}, request_only=True
            )
        ],
    )
    def update(self, request: UserRequest, slug: str) -> Response:
        team = limits.team_for(request.user, slug)
        services.set_ledger(
            actor=request.user,
            team=team,
            expected=etags.expected_versions(request),
            **body_of(request, LedgerChangeSerializer),
        )
        return self.answer(selectors.statement(team))

    @operation(
        "Delete a team's ledger",
        description="For operators. GPU-hours of the team are no longer limited.",
        responses={204: None},
        parameters=[IF_MATCH],
        errors=[404, 412],
    )
    def destroy(self, request: UserRequest, slug: str) -> Response:
        team = limits.team_for(request.user, slug)
        services.close_ledger(actor=request.user, team=team, expected=etags.expected_versions(request))
        return Response(status=204)

    @operation(
        "Credit GPU-hours",
        idempotent=True,
        description=(
            "For operators and approvers. A negative amount removes credit. Credit does not expire."
        ),
        request=CreditSerializer,
        responses={200: LedgerSerializer},
        errors=[400, 404, 415],
    )
    @action(
        detail=True,
        methods=["post"],
        scopes={"*": Scope.QUOTAS_DECIDE},
        permission_classes=[HasScope],
    )
    def credits(self, request: UserRequest, slug: str) -> Response:
        team = limits.team_for(request.user, slug)
        services.credit(actor=request.user, team=team, **body_of(request, CreditSerializer))
        return self.answer(selectors.statement(team))


class EntryFilter(filters.FilterSet):
    team = filters.CharFilter(field_name="account__team__slug", label="Slug of the team.")
    kind = filters.ChoiceFilter(choices=EntryKind.choices, label="Kind of entry.")


@documented(
    list="List ledger entries",
    of="Newest first. Spending has one entry per team and hour.",
)
class EntryViewSet(ListViewSet):
    tag = "gpu-hours"
    operation_ids = {"list": "listLedgerEntries"}
    queryset = LedgerEntry.objects.none()
    serializer_class = LedgerEntrySerializer
    filterset_class = EntryFilter
    scopes = SCOPES
    ordering = ("-at", "-id")

    def get_queryset(self) -> QuerySet[LedgerEntry]:
        return selectors.entries_for(self.request.user)


class OwnDaySerializer(serializers.Serializer[Any]):
    """A day (UTC) of your own GPU use."""

    day = serializers.DateField(help_text="Day in UTC.")
    amount = serializers.IntegerField(help_text=UNIT)


class OwnUseSerializer(serializers.Serializer[Any]):
    """Your own GPU use in the last 7 days."""

    days = OwnDaySerializer(many=True, help_text="Oldest first. The last day is today, up to now.")
    total = serializers.IntegerField(help_text=UNIT)


class OwnUseView(ApiView):
    """GPU-hours of the user's own workspaces."""

    tag = "gpu-hours"
    operation_ids = {"get": "getMyGpuHours"}
    scopes = SCOPES

    @operation(
        "Read your GPU-hours",
        description="GPU-hours of your workspaces in all teams by day, at today's rates.",
        responses={200: OwnUseSerializer},
    )
    def get(self, request: UserRequest) -> Response:
        use = own_use(request.user)
        days = [{"day": day, "amount": amount} for day, amount in use.days]
        return Response(OwnUseSerializer({"days": days, "total": use.total}).data)


router = Router()
router.register("ledgers", LedgerViewSet, basename="ledger")
router.register("ledger-entries", EntryViewSet, basename="ledger-entry")
urlpatterns = [*routes("me/gpu-hours", OwnUseView, "me-gpu-hours"), *router.urls]
