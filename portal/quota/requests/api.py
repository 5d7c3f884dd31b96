"""REST views of requests, grants, auto-approve rules and delegations."""

from __future__ import annotations

from typing import Any
from uuid import UUID

from django.db.models import QuerySet
from django.urls import reverse
from django.utils import timezone
from rest_framework.decorators import action
from rest_framework.request import Request
from rest_framework.response import Response

from portal.common import etags, idempotency
from portal.common.api import (
    ListViewSet,
    ReadViewSet,
    Router,
    UserRequest,
    body_of,
    documented,
    filters,
    not_found_as_invalid,
    operation,
)
from portal.common.errors import InvalidInput
from portal.common.etags import IF_MATCH, TaggedViewSet
from portal.common.reasons.reason import Reason
from portal.common.scopes import Scope
from portal.people.accounts import selectors as accounts
from portal.people.accounts.authentication import HasScope, require_scope
from portal.people.accounts.codes import AccountCode
from portal.people.accounts.mfa.proof import require_fresh
from portal.people.accounts.models import Delegation, Team, User
from portal.quota.limits.models import Grant, GrantQuerySet
from portal.quota.requests import policies, selectors
from portal.quota.requests.models import AutoApproveRule, QuotaRequest, RequestKind, RequestState
from portal.quota.requests.serializers import (
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
from portal.quota.requests.services import requests as services
from portal.quota.requests.services import rules
from portal.workspaces.order_serializers import order_of

ASKING = {"GET": Scope.QUOTAS_READ, "*": Scope.QUOTAS_WRITE}
DECIDING = {"GET": Scope.QUOTAS_READ, "*": Scope.QUOTAS_DECIDE}


class WritesAsApprover(HasScope):
    """Checks permission for writes before the body, which may name invisible teams, is read."""

    def has_permission(self, request: Request, view: Any) -> bool:
        if not super().has_permission(request, view):
            return False
        if view.action in ("create", "partial_update"):
            actor: Any = request.user
            rules.require_approver(actor)
        return True


class RequestFilter(filters.FilterSet):
    state = filters.MultipleChoiceFilter(choices=RequestState.choices, label="Only requests in these states.")
    kind = filters.ChoiceFilter(choices=RequestKind.choices, label="Only requests of this kind.")
    team = filters.CharFilter(field_name="team__slug", label="Slug of the team.")
    requester = filters.CharFilter(field_name="requester__username", label="Username of the requester.")
    resource = filters.CharFilter(label="Only this resource, such as `gpu:h100`.")


def _team(actor: User, slug: str) -> Team:
    with not_found_as_invalid("team"):
        return accounts.team_by_slug(actor, slug)


class RequestViewSet(ReadViewSet):
    tag = "requests"
    operation_ids = {
        "list": "listQuotaRequests",
        "create": "createQuotaRequest",
        "retrieve": "getQuotaRequest",
        "approve": "approveQuotaRequest",
        "cancel": "cancelQuotaRequest",
        "deny": "denyQuotaRequest",
    }
    queryset = QuotaRequest.objects.none()
    serializer_class = RequestSerializer
    filterset_class = RequestFilter
    scopes = ASKING
    ordering = ("-created_at", "-id")
    lookup_url_kwarg = "request_id"
    lookup_value_converter = "uuid"

    def get_queryset(self) -> QuerySet[QuotaRequest]:
        return selectors.requests_for(self.request.user)

    def get_object(self) -> QuotaRequest:
        return selectors.request_by_id(self.request.user, self.kwargs["request_id"])

    @operation(
        "List quota requests",
        description="Lists requests of your teams. Approvers and operators see all. Newest first.",
        responses={200: RequestSerializer(many=True)},
        errors=[400],
    )
    def list(self, request: Request, *args: Any, **kwargs: Any) -> Response:
        return super().list(request, *args, **kwargs)

    @operation(
        "Request quota",
        idempotent=True,
        description=(
            "For members of the team. Requests within an auto-approve rule are approved immediately. "
            "With `start`, creates a workspace that waits for the approval and then starts. The `ask` "
            "of a preview, or of a problem with the code `needs_approval`, is a valid body."
        ),
        request=AskSerializer,
        responses={201: RequestSerializer},
        errors=[400, 409, 415, 422],
    )
    def create(self, request: UserRequest) -> Response:
        body = body_of(request, AskSerializer)
        team = _team(request.user, body["team"])
        arguments = {
            "kind": body["kind"],
            "resource": body["resource"],
            "amount": body["amount"],
            "until": body.get("until"),
            "note": body["note"],
        }
        if start := body.get("start"):
            require_scope(request, Scope.WORKSPACES_WRITE)
            order = order_of(request, team, start)
            quota_request = services.ask_to_start(
                actor=request.user, order=order, idempotency_key=idempotency.key_of(request), **arguments
            )
        else:
            quota_request = services.create_request(actor=request.user, team=team, **arguments)
        self.kwargs["request_id"] = quota_request.pk
        location = reverse("api:quota-request-detail", args=[quota_request.pk])
        return self.answer(self.get_object(), status=201, Location=location)

    @operation(
        "Read a quota request",
        description="Includes evidence for users who can decide the request.",
        responses={200: RequestDetailSerializer},
        errors=[404],
    )
    def retrieve(self, request: Request, *args: Any, **kwargs: Any) -> Response:
        quota_request = self.get_object()
        evidence = (
            selectors.evidence(quota_request)
            if selectors.may_decide(self.request.user, quota_request)
            else None
        )
        return Response(RequestDetailSerializer(quota_request, context={"evidence": evidence}).data)

    @operation(
        "Approve a quota request",
        description=(
            "For approvers. Optionally approves a smaller amount or another end. Returns 409 if someone "
            "has already decided."
        ),
        request=ApproveSerializer,
        responses={200: RequestSerializer},
        errors=[400, 404, 409, 415],
    )
    @action(detail=True, methods=["post"], scopes=DECIDING)
    def approve(self, request: UserRequest, request_id: UUID) -> Response:
        body = body_of(request, ApproveSerializer)
        if policies.is_large(self.get_object(), body.get("amount")):
            require_fresh(request)
        services.approve(actor=request.user, request_id=request_id, **body)
        return self.answer(self.get_object())

    @operation(
        "Deny a quota request",
        description="Requires a note. Deletes the workspace that waits for the request.",
        request=DenySerializer,
        responses={200: RequestSerializer},
        errors=[400, 404, 409, 415],
    )
    @action(detail=True, methods=["post"], scopes=DECIDING)
    def deny(self, request: UserRequest, request_id: UUID) -> Response:
        body = body_of(request, DenySerializer)
        self.get_object()
        services.deny(actor=request.user, request_id=request_id, note=body["note"])
        return self.answer(self.get_object())

    @operation(
        "Cancel a quota request",
        description="For the requester. Deletes the workspace that waits for the request. Idempotent.",
        responses={200: RequestSerializer},
        errors=[404, 409],
    )
    @action(detail=True, methods=["post"])
    def cancel(self, request: UserRequest, request_id: UUID) -> Response:
        self.get_object()
        services.cancel(actor=request.user, request_id=request_id)
        return self.answer(self.get_object())


class GrantFilter(filters.FilterSet):
    team = filters.CharFilter(field_name="team__slug", label="Slug of the team.")
    resource = filters.CharFilter(label="Only this resource, such as `gpu:h100`.")
    username = filters.CharFilter(
        field_name="user__username", label="Username of the member whose cap the grant raises."
    )
    active = filters.BooleanFilter(
        method="filter_active", label="Only grants in effect, or only those that are not."
    )

    def filter_active(self, grants: GrantQuerySet, name: str, value: bool) -> GrantQuerySet:
        lasting = Grant.objects.active(timezone.now()).values("pk")
        return grants.filter(pk__in=lasting) if value else grants.exclude(pk__in=lasting)


@documented(list="List grants")
class GrantViewSet(ListViewSet):
    tag = "requests"
    operation_ids = {"list": "listGrants", "revoke": "revokeGrant"}
    queryset = Grant.objects.none()
    serializer_class = GrantSerializer
    filterset_class = GrantFilter
    scopes = DECIDING
    ordering = ("-starts_at", "-id")
    lookup_url_kwarg = "grant_id"
    lookup_value_converter = "uuid"

    def get_queryset(self) -> QuerySet[Grant]:
        return selectors.grants_for(self.request.user)

    def get_object(self) -> Grant:
        return selectors.grant_by_id(self.request.user, self.kwargs["grant_id"])

    @operation(
        "Revoke a grant",
        description="Running workspaces continue. New ones cannot use the grant. Idempotent.",
        request=RevokeSerializer,
        responses={200: GrantSerializer},
        errors=[400, 404, 409, 415],
    )
    @action(detail=True, methods=["post"])
    def revoke(self, request: UserRequest, grant_id: UUID) -> Response:
        note = body_of(request, RevokeSerializer).get("note", "")
        self.get_object()
        services.revoke_grant(actor=request.user, grant_id=grant_id, note=note)
        return self.answer(self.get_object())


class RuleFilter(filters.FilterSet):
    team = filters.CharFilter(field_name="team__slug", label="Slug of the team.")
    resource = filters.CharFilter(label="Only this resource, such as `gpu:h100`.")
    enabled = filters.BooleanFilter(label="Only enabled rules, or only disabled rules.")


@documented(list="List auto-approve rules", retrieve="Read an auto-approve rule")
class RuleViewSet(TaggedViewSet, ReadViewSet):
    tag = "requests"
    operation_ids = {
        "list": "listAutoApproveRules",
        "create": "createAutoApproveRule",
        "retrieve": "getAutoApproveRule",
        "partial_update": "updateAutoApproveRule",
        "destroy": "deleteAutoApproveRule",
    }
    queryset = AutoApproveRule.objects.none()
    serializer_class = RuleSerializer
    filterset_class = RuleFilter
    permission_classes = [WritesAsApprover]
    scopes = DECIDING
    ordering = ("created_at", "id")
    lookup_url_kwarg = "rule_id"
    lookup_value_converter = "uuid"

    def get_queryset(self) -> QuerySet[AutoApproveRule]:
        return selectors.rules(self.request.user)

    def get_object(self) -> AutoApproveRule:
        return selectors.rule_by_id(self.request.user, self.kwargs["rule_id"])

    @operation(
        "Create an auto-approve rule",
        idempotent=True,
        description="For approvers.",
        request=RuleCreateSerializer,
        responses={201: RuleSerializer},
        errors=[400, 415],
    )
    def create(self, request: UserRequest) -> Response:
        body = body_of(request, RuleCreateSerializer)
        slug = body.pop("team", None)
        rule = rules.create_rule(actor=request.user, team=_any_team(slug) if slug else None, **body)
        location = reverse("api:auto-approve-rule-detail", args=[rule.pk])
        return self.answer(rule, status=201, Location=location)

    @operation(
        "Change an auto-approve rule",
        description="For approvers. Existing grants stay unchanged.",
        request=RuleChangeSerializer,
        responses={200: RuleSerializer},
        parameters=[IF_MATCH],
        errors=[400, 404, 412, 415],
    )
    def partial_update(self, request: UserRequest, rule_id: UUID) -> Response:
        body = body_of(request, RuleChangeSerializer)
        rules.change_rule(
            actor=request.user, rule_id=rule_id, expected=etags.expected_versions(request), **body
        )
        return self.answer(self.get_object())

    @operation(
        "Delete an auto-approve rule",
        description="For approvers. Existing grants stay until they expire.",
        responses={204: None},
        parameters=[IF_MATCH],
        errors=[404, 412],
    )
    def destroy(self, request: UserRequest, rule_id: UUID) -> Response:
        rules.delete_rule(actor=request.user, rule_id=rule_id, expected=etags.expected_versions(request))
        return Response(status=204)


def _any_team(slug: str) -> Team:
    """Return any team by slug: approvers create rules for teams that they are not in."""
    team = Team.objects.filter(slug=slug).first()
    if team is None:
        reason = Reason(AccountCode.NO_SUCH_TEAM, {"slug": slug})
        raise InvalidInput(reason, errors={"team": [reason]})
    return team


@documented(
    list="List delegations",
    of="Lists delegations from you or to you. Approvers and operators see all.",
    retrieve="Read a delegation",
)
class DelegationViewSet(ReadViewSet):
    tag = "requests"
    operation_ids = {
        "list": "listDelegations",
        "create": "createDelegation",
        "retrieve": "getDelegation",
        "revoke": "revokeDelegation",
    }
    queryset = Delegation.objects.none()
    serializer_class = DelegationSerializer
    permission_classes = [WritesAsApprover]
    scopes = DECIDING
    ordering = ("-starts_at", "-id")
    lookup_url_kwarg = "delegation_id"
    lookup_value_converter = "uuid"

    def get_queryset(self) -> QuerySet[Delegation]:
        return selectors.delegations(self.request.user)

    def get_object(self) -> Delegation:
        return selectors.delegation_by_id(self.request.user, self.kwargs["delegation_id"])

    @operation(
        "Create a delegation",
        idempotent=True,
        description="For approvers. Delegates decide in addition to the approver.",
        request=DelegateSerializer,
        responses={201: DelegationSerializer},
        errors=[400, 409, 415],
    )
    def create(self, request: UserRequest) -> Response:
        delegation = rules.delegate(actor=request.user, **body_of(request, DelegateSerializer))
        location = reverse("api:delegation-detail", args=[delegation.pk])
        return self.answer(delegation, status=201, Location=location)

    @operation(
        "Revoke a delegation",
        description=(
            "For the approver and the delegate. Takes effect immediately. Past decisions stay valid."
        ),
        request=None,
        responses={204: None},
        errors=[404],
    )
    @action(detail=True, methods=["post"])
    def revoke(self, request: UserRequest, delegation_id: UUID) -> Response:
        self.get_object()
        rules.end_delegation(actor=request.user, delegation_id=delegation_id)
        return Response(status=204)


router = Router()
router.register("quota-requests", RequestViewSet, basename="quota-request")
router.register("grants", GrantViewSet)
router.register("auto-approve-rules", RuleViewSet, basename="auto-approve-rule")
router.register("delegations", DelegationViewSet)
urlpatterns = router.urls
