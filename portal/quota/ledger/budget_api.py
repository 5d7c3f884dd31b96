"""REST views of budgets in money."""

from __future__ import annotations

from typing import Any

from django.conf import settings
from django.db.models import QuerySet
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from portal.common import etags
from portal.common.api import (
    ReadViewSet,
    Router,
    StrictSerializer,
    UserRequest,
    body_of,
    documented,
    operation,
)
from portal.common.etags import IF_MATCH, TaggedViewSet
from portal.common.scopes import Scope
from portal.quota.ledger import budgets
from portal.quota.ledger.models import Budget
from portal.quota.limits.api.limits import SetsLimits
from portal.quota.limits.selectors import limits


class BudgetSerializer(serializers.Serializer[Any]):
    """A team's budget per month (UTC), and its spending in the current one."""

    team = serializers.CharField(source="team.slug")
    month = serializers.DateField(help_text="First day of the month.")
    currency = serializers.SerializerMethodField(help_text="Currency code (ISO 4217), such as `EUR`.")
    amount_cents = serializers.IntegerField(help_text="Budget per month, in hundredths of `currency`.")
    spent_cents = serializers.IntegerField(
        help_text="Spending in the month so far, at the prices of flavors, in hundredths of `currency`."
    )
    percent = serializers.IntegerField(help_text="Spent part of the budget, in percent.")
    blocks = serializers.BooleanField(
        help_text=(
            "Whether new paid workspaces are blocked once it is spent. Running and queued ones continue."
        )
    )
    summed_at = serializers.DateTimeField(
        allow_null=True, help_text="Time of the last hourly update of the spending; null before the first."
    )

    def get_currency(self, _row: Any) -> str:
        return str(settings.BERTH_CURRENCY)


class BudgetChangeSerializer(StrictSerializer):
    amount_cents = serializers.IntegerField(
        min_value=0,
        max_value=budgets.MAX_CENTS,
        help_text="Amount in hundredths of the currency's unit.",
    )
    blocks = serializers.BooleanField(
        default=False, help_text="Whether it blocks new workspaces once it is spent."
    )

    examples = {"amount_cents": 500_000}


@documented(
    list="List budgets",
    of="Lists those of your teams. Operators and approvers see all.",
    retrieve="Read a team's budget",
)
class BudgetViewSet(TaggedViewSet, ReadViewSet):
    observed = frozenset({"month", "percent", "spent_cents", "summed_at"})
    tag = "gpu-hours"
    operation_ids = {
        "list": "listBudgets",
        "retrieve": "getBudget",
        "update": "setBudget",
        "destroy": "deleteBudget",
    }
    queryset = Budget.objects.none()
    serializer_class = BudgetSerializer
    permission_classes = [SetsLimits]
    scopes = {"GET": Scope.QUOTAS_READ, "*": Scope.QUOTAS_WRITE}
    ordering = ("team__slug",)
    lookup_field = "slug"
    lookup_value_converter = "slug"

    def get_queryset(self) -> QuerySet[Budget]:
        return budgets.budgets_for(self.request.user)

    def get_object(self) -> budgets.BudgetStatement:
        return budgets.budget_for(self.request.user, self.kwargs["slug"])

    def list(self, request: Request, *args: Any, **kwargs: Any) -> Response:
        page = self.paginate_queryset(self.filter_queryset(self.get_queryset()))
        rows = self.get_serializer([budgets.statement_of(row) for row in page or ()], many=True)
        return self.get_paginated_response(rows.data)

    @operation(
        "Set a team's budget",
        description=(
            "For operators. Does not reset the amount spent this month. Owners are notified at 80 % "
            "and 100 %."
        ),
        request=BudgetChangeSerializer,
        responses={200: BudgetSerializer},
        parameters=[IF_MATCH],
        errors=[400, 404, 412, 415],
    )
    def update(self, request: UserRequest, slug: str) -> Response:
        team = limits.team_for(request.user, slug)
        budgets.set_budget(
            actor=request.user,
            team=team,
            expected=etags.expected_versions(request),
            **body_of(request, BudgetChangeSerializer),
        )
        return self.answer(budgets.statement(team))

    @operation(
        "Delete a team's budget",
        description="For operators.",
        responses={204: None},
        parameters=[IF_MATCH],
        errors=[404, 412],
    )
    def destroy(self, request: UserRequest, slug: str) -> Response:
        team = limits.team_for(request.user, slug)
        budgets.remove_budget(actor=request.user, team=team, expected=etags.expected_versions(request))
        return Response(status=204)


router = Router()
router.register("budgets", BudgetViewSet, basename="budget")
urlpatterns = router.urls
