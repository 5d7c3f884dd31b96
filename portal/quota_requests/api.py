"""Requests for more, grants, auto-approve rules and delegations over REST."""

from __future__ import annotations

from typing import Any
from uuid import UUID

from django.db.models import QuerySet
from django.urls import reverse
from django.utils import timezone
from rest_framework.response import Response

from portal.accounts import selectors as accounts
from portal.accounts.models import Delegation, Team, User
from portal.catalog import selectors as catalog
from portal.common.api import ApiView, ListView, UserRequest, filters, operation, routes
from portal.common.errors import InvalidInput, NotFound
from portal.common.scopes import Scope
from portal.quota_requests import selectors as selectors
from portal.quota_requests.models import AutoApproveRule, QuotaRequest, RequestKind, RequestStatus
from portal.quota_requests.serializers import (
    ApproveSerializer,
    AskSerializer,
    DelegateSerializer,
    DelegationSerializer,
    DenySerializer,
    GrantSerializer,
    RequestDetailSerializer,
    RequestSerializer,
    RevokeSerializer,
    RuleChangeSerializer,
    RuleCreateSerializer,
    RuleSerializer,
)
from portal.quota_requests.services import requests as services
from portal.quota_requests.services import rules
from portal.quotas.models import Grant, GrantQuerySet

ASKING = {"GET": Scope.QUOTAS_READ, "*": Scope.QUOTAS_WRITE}
DECIDING = {"GET": Scope.QUOTAS_READ, "*": Scope.QUOTAS_DECIDE}


class RequestFilter(filters.FilterSet):
    status = filters.MultipleChoiceFilter(choices=RequestStatus.choices, label="One or more states.")
    kind = filters.ChoiceFilter(choices=RequestKind.choices, label="What more is asked for.")
    team = filters.CharFilter(field_name="team__slug", label="Short name of the team.")
    requester = filters.CharFilter(field_name="requester__username", label="Name of who asked.")
    resource = filters.CharFilter(label="Exactly this resource.")


def _team(actor: User, slug: str) -> Team:
    try:
        return accounts.team_by_slug(actor, slug)
    except NotFound as error:
        raise InvalidInput(
            error.message, next_action=error.next_action, errors={"team": [error.message]}
        ) from error


class RequestList(ListView):
    scopes = ASKING
    serializer_class = RequestSerializer
    filterset_class = RequestFilter
    ordering = ("-created_at", "-id")

    def get_queryset(self) -> QuerySet[QuotaRequest]:
        if self.documenting():
            return QuotaRequest.objects.none()
        return selectors.requests_for(self.request.user)

    @operation(
        "List requests for more",
        description="Those of your teams, and all for who decides or operates; newest first.",
        responses={200: RequestSerializer(many=True)},
        errors=[400],
        operation_id="quota_requests_list",
    )
    def get(self, request: UserRequest) -> Response:
        return self.list(request)

    @operation(
        "Ask for more",
        description=(
            "For a team that you are in. What a rule allows is approved at once. With `start`, a workspace "
            "is made that waits for the approval and then starts by itself."
        ),
        request=AskSerializer,
        responses={201: RequestSerializer},
        errors=[400, 409, 415, 422],
    )
    def post(self, request: UserRequest) -> Response:
        body = AskSerializer(data=request.data)
        body.is_valid(raise_exception=True)
        given = body.validated_data
        team = _team(request.user, given["team"])
        wanted = {
            "kind": given["kind"],
            "resource": given["resource"],
            "amount": given["amount"],
            "until": given.get("until"),
            "why": given["why"],
        }
        if start := given.get("start"):
            made = services.ask_to_start(
                actor=request.user,
                team=team,
                template=catalog.template_by_slug(start["template"]),
                flavor=catalog.flavor_by_slug(start["flavor"]),
                name=start.get("name", ""),
                **wanted,
            )
        else:
            made = services.ask(actor=request.user, team=team, **wanted)
        headers = {"Location": reverse("api:quota-request", args=[made.pk])}
        return Response(_shown(request.user, made.pk), status=201, headers=headers)


def _shown(actor: User, request_id: UUID) -> Any:
    return RequestSerializer(selectors.request_by_id(actor, request_id)).data


class RequestDetail(ApiView):
    scopes = ASKING

    @operation(
        "Read a request",
        description="With evidence for who may decide it.",
        responses={200: RequestDetailSerializer},
        errors=[404],
        operation_id="quota_requests_retrieve",
    )
    def get(self, request: UserRequest, request_id: UUID) -> Response:
        found = selectors.request_by_id(request.user, request_id)
        evidence = selectors.evidence(found) if selectors.may_decide(request.user, found) else None
        return Response(RequestDetailSerializer(found, context={"evidence": evidence}).data)


class RequestApprove(ApiView):
    scopes = DECIDING

    @operation(
        "Approve a request",
        description="Whole, or less: a smaller amount, another end. 409 says who was faster.",
        request=ApproveSerializer,
        responses={200: RequestSerializer},
        errors=[400, 404, 409, 415],
    )
    def post(self, request: UserRequest, request_id: UUID) -> Response:
        body = ApproveSerializer(data=request.data)
        body.is_valid(raise_exception=True)
        selectors.request_by_id(request.user, request_id)
        services.approve(actor=request.user, request_id=request_id, **body.validated_data)
        return Response(_shown(request.user, request_id))


class RequestDeny(ApiView):
    scopes = DECIDING

    @operation(
        "Deny a request",
        description="With a reason. A workspace that waits for it is deleted.",
        request=DenySerializer,
        responses={200: RequestSerializer},
        errors=[400, 404, 409, 415],
    )
    def post(self, request: UserRequest, request_id: UUID) -> Response:
        body = DenySerializer(data=request.data)
        body.is_valid(raise_exception=True)
        selectors.request_by_id(request.user, request_id)
        services.deny(actor=request.user, request_id=request_id, reason=body.validated_data["reason"])
        return Response(_shown(request.user, request_id))


class RequestWithdraw(ApiView):
    scopes = ASKING

    @operation(
        "Withdraw a request of your own",
        description="A workspace that waits for it is deleted. Withdrawing twice is success.",
        responses={200: RequestSerializer},
        errors=[404, 409],
    )
    def post(self, request: UserRequest, request_id: UUID) -> Response:
        selectors.request_by_id(request.user, request_id)
        services.withdraw(actor=request.user, request_id=request_id)
        return Response(_shown(request.user, request_id))


class GrantFilter(filters.FilterSet):
    team = filters.CharFilter(field_name="team__slug", label="Short name of the team.")
    resource = filters.CharFilter(label="Exactly this resource.")
    user = filters.CharFilter(field_name="user__username", label="Name of the member whose cap it raises.")
    active = filters.BooleanFilter(
        method="only_active", label="Only those that count now, or only the others."
    )

    def only_active(self, grants: GrantQuerySet, name: str, value: bool) -> GrantQuerySet:
        lasting = Grant.objects.active(timezone.now()).values("pk")
        return grants.filter(pk__in=lasting) if value else grants.exclude(pk__in=lasting)


class GrantList(ListView):
    scopes = DECIDING
    serializer_class = GrantSerializer
    filterset_class = GrantFilter
    ordering = ("-starts_at", "-id")

    def get_queryset(self) -> QuerySet[Grant]:
        return Grant.objects.none() if self.documenting() else selectors.grants_for(self.request.user)

    @operation("List grants", responses={200: GrantSerializer(many=True)}, errors=[400])
    def get(self, request: UserRequest) -> Response:
        return self.list(request)


class GrantRevoke(ApiView):
    scopes = DECIDING

    @operation(
        "Take a grant back",
        description="What runs on it goes on; nothing new starts on it. Taking it back twice is success.",
        request=RevokeSerializer,
        responses={200: GrantSerializer},
        errors=[400, 404, 409, 415],
    )
    def post(self, request: UserRequest, grant_id: UUID) -> Response:
        body = RevokeSerializer(data=request.data)
        body.is_valid(raise_exception=True)
        selectors.grant_by_id(request.user, grant_id)
        services.revoke_grant(
            actor=request.user, grant_id=grant_id, reason=body.validated_data.get("reason", "")
        )
        return Response(GrantSerializer(selectors.grant_by_id(request.user, grant_id)).data)


class RuleFilter(filters.FilterSet):
    team = filters.CharFilter(field_name="team__slug", label="Short name of the team.")
    resource = filters.CharFilter(label="Exactly this resource.")
    enabled = filters.BooleanFilter(label="Only those switched on, or off.")


class RuleList(ListView):
    scopes = DECIDING
    serializer_class = RuleSerializer
    filterset_class = RuleFilter
    ordering = ("created_at", "id")

    def get_queryset(self) -> QuerySet[AutoApproveRule]:
        return AutoApproveRule.objects.none() if self.documenting() else selectors.rules(self.request.user)

    @operation("List auto-approve rules", responses={200: RuleSerializer(many=True)}, errors=[400])
    def get(self, request: UserRequest) -> Response:
        return self.list(request)

    @operation(
        "Make an auto-approve rule",
        description="For approvers.",
        request=RuleCreateSerializer,
        responses={201: RuleSerializer},
        errors=[400, 415],
    )
    def post(self, request: UserRequest) -> Response:
        rules.require_approver(request.user)
        body = RuleCreateSerializer(data=request.data)
        body.is_valid(raise_exception=True)
        given = body.validated_data
        slug = given.pop("team", None)
        rule = rules.create_rule(actor=request.user, team=_any_team(slug) if slug else None, **given)
        headers = {"Location": reverse("api:auto-approve-rule", args=[rule.pk])}
        return Response(RuleSerializer(rule).data, status=201, headers=headers)


def _any_team(slug: str) -> Team:
    """Approvers make rules for teams that they are not in."""
    team = Team.objects.filter(slug=slug).first()
    if team is None:
        sentence = f"There is no team “{slug}”."
        raise InvalidInput(sentence, next_action="Check the spelling.", errors={"team": [sentence]})
    return team


class RuleDetail(ApiView):
    scopes = DECIDING

    @operation("Read an auto-approve rule", responses={200: RuleSerializer}, errors=[404])
    def get(self, request: UserRequest, rule_id: UUID) -> Response:
        return Response(RuleSerializer(selectors.rule_by_id(request.user, rule_id)).data)

    @operation(
        "Change an auto-approve rule",
        description="For approvers. Grants that it has made stay as they are.",
        request=RuleChangeSerializer,
        responses={200: RuleSerializer},
        errors=[400, 404, 415],
    )
    def patch(self, request: UserRequest, rule_id: UUID) -> Response:
        rules.require_approver(request.user)
        body = RuleChangeSerializer(data=request.data)
        body.is_valid(raise_exception=True)
        rules.change_rule(actor=request.user, rule_id=rule_id, **body.validated_data)
        return Response(RuleSerializer(selectors.rule_by_id(request.user, rule_id)).data)

    @operation(
        "Remove an auto-approve rule",
        description="For approvers. Grants that it has made stay until they end.",
        responses={204: None},
        errors=[404],
    )
    def delete(self, request: UserRequest, rule_id: UUID) -> Response:
        rules.delete_rule(actor=request.user, rule_id=rule_id)
        return Response(status=204)


class DelegationList(ListView):
    scopes = DECIDING
    serializer_class = DelegationSerializer
    ordering = ("-starts_at", "-id")

    def get_queryset(self) -> QuerySet[Delegation]:
        return Delegation.objects.none() if self.documenting() else selectors.delegations(self.request.user)

    @operation(
        "List delegations",
        description="Those you gave or hold; all for approvers and operators.",
        responses={200: DelegationSerializer(many=True)},
        errors=[400],
    )
    def get(self, request: UserRequest) -> Response:
        return self.list(request)

    @operation(
        "Let somebody decide in your place",
        description="For approvers, who may still decide themselves.",
        request=DelegateSerializer,
        responses={201: DelegationSerializer},
        errors=[400, 409, 415],
    )
    def post(self, request: UserRequest) -> Response:
        rules.require_approver(request.user)
        body = DelegateSerializer(data=request.data)
        body.is_valid(raise_exception=True)
        made = rules.delegate(actor=request.user, **body.validated_data)
        headers = {"Location": reverse("api:delegation", args=[made.pk])}
        return Response(DelegationSerializer(made).data, status=201, headers=headers)


class DelegationDetail(ApiView):
    scopes = DECIDING

    @operation("Read a delegation", responses={200: DelegationSerializer}, errors=[404])
    def get(self, request: UserRequest, delegation_id: UUID) -> Response:
        return Response(DelegationSerializer(selectors.delegation_by_id(request.user, delegation_id)).data)

    @operation(
        "End a delegation",
        description="Now. For who gave or holds it.",
        responses={204: None},
        errors=[404],
    )
    def delete(self, request: UserRequest, delegation_id: UUID) -> Response:
        selectors.delegation_by_id(request.user, delegation_id)
        rules.take_back(actor=request.user, delegation_id=delegation_id)
        return Response(status=204)


urlpatterns = [
    *routes("quota-requests", RequestList, "quota-requests"),
    *routes("quota-requests/<uuid:request_id>", RequestDetail, "quota-request"),
    *routes("quota-requests/<uuid:request_id>/approve", RequestApprove, "quota-request-approve"),
    *routes("quota-requests/<uuid:request_id>/deny", RequestDeny, "quota-request-deny"),
    *routes("quota-requests/<uuid:request_id>/withdraw", RequestWithdraw, "quota-request-withdraw"),
    *routes("grants", GrantList, "grants"),
    *routes("grants/<uuid:grant_id>/revoke", GrantRevoke, "grant-revoke"),
    *routes("auto-approve-rules", RuleList, "auto-approve-rules"),
    *routes("auto-approve-rules/<uuid:rule_id>", RuleDetail, "auto-approve-rule"),
    *routes("delegations", DelegationList, "delegations"),
    *routes("delegations/<uuid:delegation_id>", DelegationDetail, "delegation"),
]
