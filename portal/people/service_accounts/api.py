"""REST API of service accounts and their tokens."""

from __future__ import annotations

from django.db.models import QuerySet
from django.urls import reverse
from rest_framework.decorators import action
from rest_framework.response import Response

from portal.common import etags
from portal.common.api import (
    ListViewSet,
    ReadViewSet,
    Router,
    UserRequest,
    body_of,
    documented,
    operation,
)
from portal.common.etags import IF_MATCH, TaggedViewSet
from portal.people.accounts import deactivation, deletion_choices, service_accounts, tokens, users
from portal.people.accounts import selectors as accounts
from portal.people.accounts.api import TEAM_SCOPES
from portal.people.accounts.mfa.proof import require_fresh
from portal.people.accounts.models import ApiToken, User
from portal.people.accounts.serializers import NewTokenSerializer, TokenCreateSerializer, TokenSerializer
from portal.people.accounts.token_api import TOKEN_SCOPES, new_token, token_of
from portal.people.accounts.user_serializers import DeactivateSerializer
from portal.people.service_accounts import selectors
from portal.people.service_accounts.serializers import (
    ServiceAccountChangeSerializer,
    ServiceAccountCreateSerializer,
    ServiceAccountSerializer,
)


@documented(
    list="List a team's service accounts",
    retrieve="Read a service account",
    of="Service accounts are for programs. They belong to the team and cannot sign in.",
    errors=[404],
)
class ServiceAccountViewSet(TaggedViewSet, ReadViewSet):
    observed = frozenset({"last_used_at", "token_count"})
    tag = "tokens"
    operation_ids = {
        "list": "listServiceAccounts",
        "create": "createServiceAccount",
        "retrieve": "getServiceAccount",
        "partial_update": "updateServiceAccount",
        "destroy": "deleteServiceAccount",
        "deactivate": "deactivateServiceAccount",
        "reactivate": "reactivateServiceAccount",
    }
    queryset = User.objects.none()
    serializer_class = ServiceAccountSerializer
    scopes = TEAM_SCOPES
    ordering = ("username",)
    lookup_field = "username"
    lookup_value_converter = "username"

    @property
    def query_params(self) -> frozenset[str]:  # type: ignore[override]
        return frozenset({"workspaces"}) if self.action == "destroy" else frozenset()

    def get_queryset(self) -> QuerySet[User]:
        return selectors.service_accounts_of_team(
            accounts.team_by_slug(self.request.user, self.kwargs["slug"])
        )

    def get_object(self) -> User:
        return selectors.service_account_by_name(
            self.request.user, self.kwargs["slug"], self.kwargs["username"]
        )

    def shown(self, user: User, *, status: int = 200, **headers: str) -> Response:
        return self.answer(self.get_queryset().get(pk=user.pk), status=status, **headers)

    @operation(
        "Create a service account",
        idempotent=True,
        description=(
            "For owners of the team and operators. The account is a member of the team and cannot sign in."
        ),
        request=ServiceAccountCreateSerializer,
        responses={201: ServiceAccountSerializer},
        errors=[400, 404, 409, 415],
    )
    def create(self, request: UserRequest, slug: str) -> Response:
        team = accounts.team_by_slug(request.user, slug)
        body = body_of(request, ServiceAccountCreateSerializer)
        account = service_accounts.create(actor=request.user, team=team, **body)
        location = reverse("api:service-account-detail", args=[slug, account.username])
        return self.shown(account, status=201, Location=location)

    @operation(
        "Change a service account",
        request=ServiceAccountChangeSerializer,
        responses={200: ServiceAccountSerializer},
        parameters=[IF_MATCH],
        errors=[400, 404, 412, 415],
    )
    def partial_update(self, request: UserRequest, slug: str, username: str) -> Response:
        account = self.get_object()
        body = body_of(request, ServiceAccountChangeSerializer)
        expected = etags.expected_versions(request)
        row = service_accounts.describe(actor=request.user, user=account, expected=expected, **body)
        return self.shown(row)

    @operation(
        "Delete a service account",
        description=(
            "Deletes its tokens and trust rules. Home folders stay, and the name cannot be reused. Denied "
            "while it has workspaces, unless `workspaces=delete`."
        ),
        responses={204: None},
        parameters=[deletion_choices.WORKSPACES],
        errors=[400, 404, 409],
    )
    def destroy(self, request: UserRequest, slug: str, username: str) -> Response:
        require_fresh(request)
        delete_workspaces = deletion_choices.is_deletion_chosen(request)
        users.delete(actor=request.user, user=self.get_object(), delete_workspaces=delete_workspaces)
        return Response(status=204)

    @operation(
        "Deactivate a service account",
        description=(
            "Revokes its tokens, disables its trust rules and stops its workspaces. Files are kept. "
            "Idempotent."
        ),
        request=DeactivateSerializer,
        responses={200: ServiceAccountSerializer},
        errors=[400, 404, 415],
    )
    @action(detail=True, methods=["post"])
    def deactivate(self, request: UserRequest, slug: str, username: str) -> Response:
        account = self.get_object()
        reason = body_of(request, DeactivateSerializer).get("note", "")
        return self.shown(deactivation.deactivate(actor=request.user, user=account, reason=reason))

    @operation(
        "Reactivate a service account",
        description="Enables its trust rules again. The account needs new tokens. Idempotent.",
        responses={200: ServiceAccountSerializer},
        errors=[404, 409],
    )
    @action(detail=True, methods=["post"])
    def reactivate(self, request: UserRequest, slug: str, username: str) -> Response:
        return self.shown(deactivation.reactivate(actor=request.user, user=self.get_object()))


@documented(
    list="List a service account's tokens",
    of="For owners of its team, operators and auditors. Use `tokens/{id}` to rotate or revoke a token.",
    errors=[404],
)
class ServiceTokenViewSet(ListViewSet):
    tag = "tokens"
    operation_ids = {"list": "listServiceAccountTokens", "create": "createServiceAccountToken"}
    queryset = ApiToken.objects.none()
    serializer_class = TokenSerializer
    scopes = TOKEN_SCOPES
    ordering = ("-created_at", "-id")

    def get_queryset(self) -> QuerySet[ApiToken]:
        return selectors.tokens_of(self.request.user, self._account())

    def _account(self) -> User:
        return selectors.service_account_by_name(
            self.request.user, self.kwargs["slug"], self.kwargs["username"]
        )

    @operation(
        "Create a token of a service account",
        idempotent=True,
        description=(
            "For owners of the team and operators. The secret is shown only once. A token cannot create a "
            "token with more scopes than its own."
        ),
        request=TokenCreateSerializer,
        responses={201: NewTokenSerializer},
        errors=[400, 404, 409, 415],
    )
    def create(self, request: UserRequest, slug: str, username: str) -> Response:
        require_fresh(request)
        account = self._account()
        body = body_of(request, TokenCreateSerializer)
        parent = token_of(request)
        created = tokens.create_token(
            actor=request.user,
            user=account,
            name=body["name"],
            scopes=body.get("scopes") or (parent.scopes if parent else tokens.widest_scopes(account)),
            expires_at=body.get("expires_at"),
            made_with=parent,
        )
        return new_token(created)


router = Router()
router.register("teams/<slug:slug>/service-accounts", ServiceAccountViewSet, basename="service-account")
router.register(
    "teams/<slug:slug>/service-accounts/<username:username>/tokens",
    ServiceTokenViewSet,
    basename="service-token",
)
urlpatterns = router.urls
