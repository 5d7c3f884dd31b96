"""REST API of API tokens."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from django.db.models import QuerySet
from django.urls import reverse
from django.utils import timezone
from drf_spectacular.utils import extend_schema_field
from rest_framework.decorators import action
from rest_framework.response import Response

from portal.common.api import ReadViewSet, Router, UserRequest, body_of, documented, filters, operation
from portal.common.scopes import Scope
from portal.people.accounts import selectors, tokens
from portal.people.accounts.codes import AccountCode
from portal.people.accounts.mfa.proof import require_fresh
from portal.people.accounts.models import AccountKind, ApiToken, ApiTokenQuerySet
from portal.people.accounts.serializers import (
    NewTokenSerializer,
    TokenCreateSerializer,
    TokenRotateSerializer,
    TokenSerializer,
)

TOKEN_SCOPES = {"GET": Scope.TOKENS_READ, "*": Scope.TOKENS_WRITE}
NO_STORE = {"Cache-Control": "no-store"}
MAX_DAYS = 3650
DAYS = {"type": "number", "minimum": 0, "maximum": MAX_DAYS}
WHOSE = [("mine", "Your own tokens."), ("all", "All tokens that you can see.")]


class TokenFilter(filters.FilterSet):
    whose = filters.ChoiceFilter(
        choices=WHOSE,
        method="filter_owner",
        label=(
            "`all` lists all tokens that you can see: those of service accounts of teams that you own, and "
            "for operators those of everyone. Default: `mine`, unless `owner`, `team` or `kind` is set."
        ),
    )
    owner = filters.CharFilter(field_name="owner__username", label="Username of the owner.")
    team = filters.CharFilter(
        field_name="owner__memberships__team__slug", label="Only those of members of this team, by slug."
    )
    kind = filters.ChoiceFilter(
        choices=AccountKind.choices,
        method="filter_kind",
        label="Only tokens of people, or only those of service accounts.",
    )
    unused_days = filters.NumberFilter(
        min_value=0,
        max_value=MAX_DAYS,
        method="filter_unused",
        label="Only tokens that were not used for this number of days.",
    )
    expires_days = filters.NumberFilter(
        min_value=0,
        max_value=MAX_DAYS,
        method="filter_expiring",
        label="Only tokens that expire within this number of days, or have expired.",
    )

    def filter_owner(self, queryset: ApiTokenQuerySet, _name: str, _value: str) -> QuerySet[ApiToken]:
        # Evaluated with the other parameters in the view.
        return queryset

    def filter_kind(self, queryset: ApiTokenQuerySet, _name: str, value: str) -> QuerySet[ApiToken]:
        return queryset.filter(owner__owning_team__isnull=value == AccountKind.PERSON)

    @extend_schema_field({**DAYS, "description": "Only tokens that were not used for this number of days."})
    def filter_unused(self, queryset: ApiTokenQuerySet, _name: str, value: Any) -> QuerySet[ApiToken]:
        return selectors.tokens_unused_since(queryset, _days(-float(value)))

    @extend_schema_field(
        {**DAYS, "description": "Only tokens that expire within this number of days, or have expired."}
    )
    def filter_expiring(self, queryset: ApiTokenQuerySet, _name: str, value: Any) -> QuerySet[ApiToken]:
        return queryset.ending_by(_days(float(value)))


def _days(days: float) -> datetime:
    return timezone.now() + timedelta(days=days)


@documented(
    list="List tokens",
    retrieve="Read a token",
    of="Lists your own tokens. `whose`, `owner`, `team` and `kind` select others that you can see.",
)
class TokenViewSet(ReadViewSet):
    tag = "tokens"
    operation_ids = {
        "list": "listTokens",
        "create": "createToken",
        "retrieve": "getToken",
        "revoke": "revokeToken",
        "rotate": "rotateToken",
    }
    queryset = ApiToken.objects.none()
    serializer_class = TokenSerializer
    filterset_class = TokenFilter
    scopes = TOKEN_SCOPES
    ordering = ("-created_at", "-id")
    missing = AccountCode.NO_SUCH_TOKEN
    lookup_url_kwarg = "token_id"
    lookup_value_converter = "uuid"

    def get_queryset(self) -> QuerySet[ApiToken]:
        params = self.request.query_params
        others = params.get("whose") == "all" or (
            "whose" not in params and any(name in params for name in ("owner", "team", "kind"))
        )
        if self.action == "list" and not others:
            return selectors.tokens_of(self.request.user)
        return selectors.tokens_for(self.request.user)

    @operation(
        "Create a token",
        idempotent=True,
        description=(
            "The secret is shown only once. A token cannot create a token with more scopes than its own."
        ),
        request=TokenCreateSerializer,
        responses={201: NewTokenSerializer},
        errors=[400, 415],
    )
    def create(self, request: UserRequest) -> Response:
        require_fresh(request)
        body = body_of(request, TokenCreateSerializer)
        parent = token_of(request)
        created = tokens.create_token(
            actor=request.user,
            user=request.user,
            name=body["name"],
            scopes=body.get("scopes") or (parent.scopes if parent else tokens.widest_scopes(request.user)),
            expires_at=body.get("expires_at"),
            made_with=parent,
        )
        return new_token(created)

    @operation(
        "Rotate a token",
        idempotent=True,
        description=(
            "Returns a new token with the same scopes and lifetime. Its secret is shown only once. The old "
            "token stays valid for `overlap_hours`, then expires."
        ),
        request=TokenRotateSerializer,
        responses={201: NewTokenSerializer},
        errors=[400, 404, 409, 415],
    )
    @action(detail=True, methods=["post"])
    def rotate(self, request: UserRequest, token_id: UUID) -> Response:
        require_fresh(request)
        body = body_of(request, TokenRotateSerializer)
        created = tokens.rotate_token(
            actor=request.user,
            token_id=token_id,
            overlap_hours=body["overlap_hours"],
            made_with=token_of(request),
        )
        return new_token(created)

    @operation(
        "Revoke a token",
        description=(
            "Takes effect immediately. For the owner, owners of the team of a service account, and "
            "operators. Idempotent."
        ),
        responses={204: None},
        errors=[404],
    )
    @action(detail=True, methods=["post"])
    def revoke(self, request: UserRequest, token_id: UUID) -> Response:
        tokens.revoke_token(actor=request.user, token_id=token_id)
        return Response(status=204)


def token_of(request: UserRequest) -> ApiToken | None:
    """Return the token of the request, or None for a session."""
    return request.auth if isinstance(request.auth, ApiToken) else None


def new_token(created: tokens.NewToken) -> Response:
    """Return the response with the secret, shown only once."""
    data = NewTokenSerializer(created.token, context={"secret": created.secret}).data
    location = reverse("api:token-detail", args=[created.token.pk])
    return Response(data, status=201, headers={**NO_STORE, "Location": location})


router = Router()
router.register("tokens", TokenViewSet, basename="token")
urlpatterns = router.urls
