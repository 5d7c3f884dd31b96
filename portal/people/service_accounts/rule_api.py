"""REST API of trust rules."""

from __future__ import annotations

from uuid import UUID

from django.db.models import QuerySet
from django.urls import reverse
from rest_framework.decorators import action
from rest_framework.response import Response

from portal.common.api import ReadViewSet, Router, UserRequest, body_of, documented, operation
from portal.people.accounts.mfa.proof import require_fresh
from portal.people.accounts.models import User
from portal.people.accounts.token_api import TOKEN_SCOPES, token_of
from portal.people.service_accounts import rules, selectors
from portal.people.service_accounts.codes import ExchangeCode
from portal.people.service_accounts.exchange import api as exchange
from portal.people.service_accounts.exchange.conditions import from_json
from portal.people.service_accounts.models import TrustRule
from portal.people.service_accounts.serializers import (
    ClaimsSerializer,
    RulePreviewSerializer,
    TrustRuleCreateSerializer,
    TrustRuleSerializer,
)


@documented(
    list="List a service account's trust rules",
    retrieve="Read a trust rule",
    of=(
        "For owners of its team, operators and auditors. Trust rules define which tokens of a pipeline can "
        "be exchanged for short-lived tokens of the account."
    ),
    errors=[404],
)
class TrustRuleViewSet(ReadViewSet):
    tag = "tokens"
    operation_ids = {
        "list": "listTrustRules",
        "create": "createTrustRule",
        "retrieve": "getTrustRule",
        "destroy": "deleteTrustRule",
        "check": "checkTrustRules",
    }
    queryset = TrustRule.objects.none()
    serializer_class = TrustRuleSerializer
    scopes = TOKEN_SCOPES
    ordering = ("created_at", "id")
    missing = ExchangeCode.NO_SUCH_RULE
    lookup_url_kwarg = "trust_id"
    lookup_field = "pk"
    lookup_value_converter = "uuid"

    def get_queryset(self) -> QuerySet[TrustRule]:
        return rules.rules_of(self.request.user, self._account())

    def _account(self) -> User:
        return selectors.service_account_by_name(
            self.request.user, self.kwargs["slug"], self.kwargs["username"]
        )

    @operation(
        "Create a trust rule",
        idempotent=True,
        description=(
            "For owners of the team and operators. A token cannot create a rule with more scopes than its "
            "own."
        ),
        request=TrustRuleCreateSerializer,
        responses={201: TrustRuleSerializer},
        errors=[400, 404, 409, 415],
    )
    def create(self, request: UserRequest, slug: str, username: str) -> Response:
        require_fresh(request)
        account = self._account()
        body = body_of(request, TrustRuleCreateSerializer)
        body["conditions"] = from_json(body["conditions"])
        rule = rules.create(actor=request.user, account=account, made_with=token_of(request), **body)
        location = reverse("api:trust-rule-detail", args=[slug, username, rule.pk])
        return self.answer(rule, status=201, Location=location)

    @operation(
        "Delete a trust rule", description="Takes effect immediately.", responses={204: None}, errors=[404]
    )
    def destroy(self, request: UserRequest, slug: str, username: str, trust_id: UUID) -> Response:
        rules.delete(actor=request.user, rule=self.get_object())
        return Response(status=204)

    @operation(
        "Check claims against the rules",
        description=(
            "Evaluates each rule for a token with these claims, and returns the conditions that fail."
        ),
        request=ClaimsSerializer,
        responses={200: RulePreviewSerializer(many=True)},
        errors=[400, 404, 415],
    )
    @action(detail=False, methods=["post"], pagination_class=None, scopes={"*": TOKEN_SCOPES["GET"]})
    def check(self, request: UserRequest, slug: str, username: str) -> Response:
        trust_rules = self.get_queryset()
        claims = body_of(request, ClaimsSerializer)["claims"]
        return Response(RulePreviewSerializer(rules.preview(trust_rules, claims), many=True).data)


router = Router()
router.register(
    "teams/<slug:slug>/service-accounts/<username:username>/trust-rules",
    TrustRuleViewSet,
    basename="trust-rule",
)
urlpatterns = [*router.urls, *exchange.urlpatterns]
