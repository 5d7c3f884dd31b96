"""Token exchange endpoint, with the requests and responses of RFC 8693, and renewal of job tokens."""

from __future__ import annotations

from typing import Any, cast

from django.conf import settings
from django.utils import timezone
from django.utils.translation import override
from drf_spectacular.utils import OpenApiParameter, OpenApiResponse, extend_schema
from rest_framework import exceptions, serializers
from rest_framework.parsers import FormParser
from rest_framework.permissions import AllowAny
from rest_framework.renderers import JSONRenderer
from rest_framework.request import Request
from rest_framework.response import Response

from portal.common import idempotency
from portal.common.api import ApiView, IsSignedIn, UserRequest, operation, routes
from portal.common.htmx import public_url
from portal.common.reasons.wording import message_of
from portal.common.scopes import Scope
from portal.people.accounts.authentication import TokenAuthentication
from portal.people.accounts.models import ApiToken
from portal.people.service_accounts.codes import ExchangeCode
from portal.people.service_accounts.exchange import services
from portal.people.service_accounts.exchange.assertions import ExchangeRefused
from portal.people.service_accounts.exchange.grant import ACCESS_TOKEN, GRANT_TYPE, SUBJECT_TYPES, TOKEN_TYPES

MIN_KEY = 32
"""Minimum length of an idempotency key, which others who have the subject token must not guess."""
NO_STORE = {"Cache-Control": "no-store", "Pragma": "no-cache"}
ERRORS = {
    ExchangeCode.ISSUER_UNREACHABLE: ("temporarily_unavailable", 503),
    ExchangeCode.SEVERAL_ACCOUNTS: ("invalid_target", 400),
    ExchangeCode.SCOPE_NOT_GRANTED: ("invalid_scope", 400),
}
"""OAuth error and status by code. All others are `invalid_request`, as RFC 8693 requires."""


class OAuthError(exceptions.APIException):
    """An error in OAuth's form (RFC 6749, section 5.2)."""

    def __init__(self, error: str, description: str, *, status: int = 400, retry_after_s: int = 0) -> None:
        super().__init__(description)
        self.status_code = status
        self.error, self.description, self.retry_after_s = error, description, retry_after_s


class TokenExchangeRequestSerializer(serializers.Serializer[Any]):
    grant_type = serializers.ChoiceField([GRANT_TYPE], help_text="Grant type (RFC 8693).")
    subject_token = serializers.CharField(
        help_text="The signed JWT of an issuer that the operator has allowed."
    )
    subject_token_type = serializers.ChoiceField(
        SUBJECT_TYPES, help_text="Type of `subject_token` (RFC 8693)."
    )
    requested_token_type = serializers.ChoiceField(
        TOKEN_TYPES, required=False, help_text="Type of the requested token (RFC 8693)."
    )
    scope = serializers.CharField(
        required=False, help_text="Scopes of the new token, from those of the rule. Default: all of them."
    )
    service_account = serializers.CharField(
        required=False,
        help_text="Username of the service account. Required if rules of several accounts match.",
    )

    examples = {"subject_token": "eyJhbGciOiJSUzI1NiJ9.eyJzdWIiOiJyZXBvOm9jdG8vYXBwIn0.c2lnbmF0dXJl"}


class TokenExchangeSerializer(serializers.Serializer[Any]):
    """A Berth token, issued in exchange for a pipeline's token (RFC 8693)."""

    access_token = serializers.CharField(help_text="The token. Shown only once.")
    issued_token_type = serializers.ChoiceField(TOKEN_TYPES, help_text="Type of the issued token (RFC 8693).")
    token_type = serializers.ChoiceField(["Bearer"], help_text="How to send the token (RFC 6750).")
    expires_in = serializers.IntegerField(help_text="Seconds until it expires.")
    scope = serializers.CharField(help_text="Scopes of the token, separated by spaces.")


class OAuthErrorSerializer(serializers.Serializer[Any]):
    """An error in the form of RFC 6749."""

    error = serializers.CharField(help_text="Error code of RFC 6749 or RFC 8693.")
    error_description = serializers.CharField(help_text="Description of the error.")


KEY = OpenApiParameter(
    idempotency.HEADER,
    {"type": "string"},
    OpenApiParameter.HEADER,
    description=(
        "A random text known only to the job. Allows the request to be repeated if its response is lost. "
        f"A key of less than {MIN_KEY} characters is ignored, with `Idempotency-Key-Ignored` in the response."
    ),
)


class TokenExchange(ApiView):
    """Exchanges tokens. The subject token authenticates the request; sessions and API tokens are ignored."""

    tag = "tokens"
    operation_ids = {"post": "exchangeToken"}
    authentication_classes: list[Any] = []
    permission_classes = [AllowAny]
    parser_classes = [FormParser]
    renderer_classes = [JSONRenderer]

    @extend_schema(
        summary="Exchange a CI job's token",
        description=(
            "Token exchange by RFC 8693. Exchanges a signed JWT of GitHub Actions, GitLab CI or another "
            "allowed issuer for a short-lived token of a service account, by a trust rule of that account. "
            "The job renews the token at `token-exchange/renew` while it runs. Each JWT is accepted once. "
            "With a random `Idempotency-Key`, the request can be repeated: it returns a new secret of the "
            "same token, and the first secret becomes invalid."
        ),
        parameters=[KEY],
        request={"application/x-www-form-urlencoded": TokenExchangeRequestSerializer},
        responses={
            200: TokenExchangeSerializer,
            400: OAuthErrorSerializer,
            429: OpenApiResponse(
                OAuthErrorSerializer, ("Too many failed exchanges. Retry after `Retry-After` seconds.")
            ),
            503: OpenApiResponse(
                OAuthErrorSerializer, "The issuer does not respond. Retry after `Retry-After` seconds."
            ),
        },
        auth=[],
    )
    def post(self, request: Request) -> Response:
        body = self._parameters(request)
        short = idempotency.text_of(request) and not body["idempotency_key"]
        ignored = {idempotency.IGNORED: "short"} if short else {}
        try:
            exchanged = services.exchange(**body)
        except ExchangeRefused as refused:
            raise _error_of(refused) from refused
        return Response(
            {
                "access_token": exchanged.secret,
                "issued_token_type": ACCESS_TOKEN,
                "token_type": "Bearer",
                "expires_in": exchanged.lifetime_s,
                "scope": " ".join(exchanged.token.scopes),
            },
            headers={**NO_STORE, **ignored},
        )

    def handle_exception(self, exc: Exception) -> Response:
        if isinstance(exc, exceptions.UnsupportedMediaType | exceptions.ParseError):
            exc = OAuthError("invalid_request", "Send the parameters form-encoded.")
        if not isinstance(exc, OAuthError):
            return super().handle_exception(exc)
        headers = {**NO_STORE, **({"Retry-After": str(exc.retry_after_s)} if exc.retry_after_s else {})}
        body = {"error": exc.error, "error_description": exc.description}
        return Response(body, status=exc.status_code, headers=headers)

    def _parameters(self, request: Request) -> dict[str, Any]:
        data: Any = request.data
        for name in data:
            if len(data.getlist(name)) > 1:
                raise OAuthError("invalid_request", "A parameter was sent twice.")
        if data.get("grant_type") != GRANT_TYPE or not settings.BERTH_TOKEN_EXCHANGE_ISSUERS:
            offered = f"Only the grant type {GRANT_TYPE} is supported, and only if issuers are configured."
            raise OAuthError("unsupported_grant_type", offered)
        if not data.get("subject_token") or data.get("subject_token_type") not in SUBJECT_TYPES:
            raise OAuthError("invalid_request", f"A subject_token of type {SUBJECT_TYPES[0]} is required.")
        if data.get("requested_token_type", ACCESS_TOKEN) != ACCESS_TOKEN or "actor_token" in data:
            raise OAuthError(
                "invalid_request", "Only an access_token can be requested, and actor_token is not supported."
            )
        if any(data[name].rstrip("/") != public_url() for name in ("audience", "resource") if data.get(name)):
            raise OAuthError("invalid_target", f"Tokens are issued for {public_url()} only.")
        key = idempotency.text_of(request)
        scopes = data.get("scope", "").split()
        if any(scope not in Scope.values for scope in scopes):
            raise OAuthError("invalid_scope", "Unknown scope.")
        return {
            "subject_token": data["subject_token"],
            "account": data.get("service_account", ""),
            "scopes": scopes,
            # A key that others can guess would give them the token.
            "idempotency_key": key if len(key) >= MIN_KEY else "",
        }


_PLAIN = str.maketrans({"“": "'", "”": "'", '"': "'", "\\": "/"})
"""RFC 6749 excludes quotation marks and backslashes from descriptions."""


def _error_of(refused: ExchangeRefused) -> OAuthError:
    code = ExchangeCode(refused.reason.code)
    error, status = ERRORS.get(code, ("invalid_request", 400))
    # RFC 6749 allows only printable ASCII, so the text is always English.
    with override("en"):
        text = message_of(refused.reason).translate(_PLAIN)
    text = text.encode("ascii", "replace").decode()
    if refused.retry_after_s and status < 500:
        wait = f"Too many rejected exchanges. Try again in {refused.retry_after_s} s."
        return OAuthError(
            "temporarily_unavailable", f"{text} {wait}", status=429, retry_after_s=refused.retry_after_s
        )
    return OAuthError(error, text, status=status, retry_after_s=refused.retry_after_s)


class TokenRenewalSerializer(serializers.ModelSerializer[ApiToken]):
    """A renewed job token."""

    expires_in = serializers.SerializerMethodField(help_text="Seconds until it expires.")

    class Meta:
        model = ApiToken
        fields = ["expires_at", "expires_in", "renewable_until"]
        read_only_fields = fields

    def get_expires_in(self, token: ApiToken) -> int:
        assert token.expires_at is not None
        return max(0, round((token.expires_at - timezone.now()).total_seconds()))


class TokenRenewal(ApiView):
    """Renews the token of the request."""

    tag = "tokens"
    operation_ids = {"post": "renewToken"}
    authentication_classes = [TokenAuthentication]
    permission_classes = [IsSignedIn]

    @operation(
        "Renew a CI job's token",
        description="Extends the token of this request by the lifetime of its trust rule. Only for tokens of "
        "`token-exchange`, with any scope. Renew it after half of that time. Idempotent.",
        request=None,
        responses={200: TokenRenewalSerializer},
        errors=[409],
    )
    def post(self, request: UserRequest) -> Response:
        token = services.renew(token=cast("ApiToken", request.auth))
        return Response(TokenRenewalSerializer(token).data, headers=NO_STORE)


urlpatterns = [
    *routes("token-exchange", TokenExchange, "token-exchange"),
    *routes("token-exchange/renew", TokenRenewal, "token-renewal"),
]
