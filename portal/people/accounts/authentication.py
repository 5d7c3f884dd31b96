"""Authentication of the REST API, and scopes of tokens."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any

from django.conf import settings
from django.utils.translation import gettext as _
from rest_framework import authentication, exceptions, permissions
from rest_framework.request import Request

from portal.common import request_context
from portal.common.bearer import bearer_token
from portal.common.scopes import READING, Scope
from portal.people.accounts import limits, sessions
from portal.people.accounts.mfa.required import require_set_up
from portal.people.accounts.models import ApiToken, User
from portal.people.accounts.token_lookup import expired_token, find_valid_token

if TYPE_CHECKING:
    from rest_framework.views import APIView


class TokenAuthentication(authentication.BaseAuthentication):
    """Authenticates `Authorization: Bearer berth_…`. An invalid token gets a 401 with a next action."""

    def authenticate(self, request: Request) -> tuple[User, ApiToken] | None:
        secret = bearer_token(request.META.get("HTTP_AUTHORIZATION", ""))
        if secret is None:
            return None
        credentials = find_valid_token(secret)
        if credentials is None:
            _count_failure()
            raise exceptions.AuthenticationFailed(_why_invalid(secret))
        request_context.note_token(credentials[1].prefix)
        return credentials

    def authenticate_header(self, request: Request) -> str:
        return 'Bearer realm="Berth"'


class SessionAuthentication(authentication.SessionAuthentication):
    """Authenticates browser sessions, with CSRF protection. Raises `SecondFactorRequired` (`require_set_up`).

    Tokens are tried first, so a 401 names the bearer scheme.
    """

    def authenticate(self, request: Request) -> tuple[User, None] | None:
        credentials: tuple[User, None] | None = super().authenticate(request)
        if credentials is not None:
            require_set_up(credentials[0])
        return credentials


def _why_invalid(secret: str) -> str:
    token = expired_token(secret)
    if token is None:
        return _("This token is unknown or revoked. Create a new one on your account's token page.")
    if token.is_job_token:
        return _("The token of this CI job has expired. Exchange the job's ID token again.")
    return _("This token has expired. Create a new one on your account's token page.")


def _count_failure() -> None:
    """Count an invalid token for the client's network. Raises `Throttled` (429) above the limit.

    Valid tokens are never limited.
    """
    limit, window = settings.BERTH_TOKEN_FAILURES_PER_ADDRESS, timedelta(minutes=15)
    address = request_context.current().address
    key = f"token:{limits.network_of(address)}"
    # Check first, so that a limited client causes no writes.
    if limits.current_count(key, window=window) >= limit:
        raise exceptions.Throttled(window.total_seconds())
    if limits.count(key, window=window) == limit:
        sessions.tokens_refused(failures=limit, minutes=int(window.total_seconds() // 60))


class HasScope(permissions.IsAuthenticated):
    """Requires the scope that `scopes` of the view names for the method. Sessions have all scopes.

    `scopes = {"GET": Scope.…, "*": Scope.…}`; “*” covers methods without an entry.
    """

    def has_permission(self, request: Request, view: APIView) -> bool:
        if not super().has_permission(request, view):
            return False
        token: Any = request.auth
        if not isinstance(token, ApiToken):
            return True
        needed = scope_for(view, request.method or "GET")
        if token.owner.is_auditor and needed not in READING:
            raise exceptions.PermissionDenied(_("Tokens of auditors are read-only."))
        if Scope.ALL in token.scopes or needed in token.scopes:
            return True
        raise exceptions.PermissionDenied(_("The token lacks the scope “%(scope)s”.") % {"scope": needed})


def has_scope(request: Request, scope: str) -> bool:
    """Return whether the request may use `scope`. Sessions have all scopes."""
    token: Any = request.auth
    return not isinstance(token, ApiToken) or bool({Scope.ALL, scope} & set(token.scopes))


def require_scope(request: Request, scope: str) -> None:
    """Require a scope that only some requests to a view need. Raises `PermissionDenied`."""
    if not has_scope(request, scope):
        raise exceptions.PermissionDenied(_("The token lacks the scope “%(scope)s”.") % {"scope": scope})


def scope_for(view: APIView, method: str) -> str:
    """Return the scope that `view` requires for `method`. Safe methods share the GET entry."""
    scopes: dict[str, str] = getattr(view, "scopes", {})
    key = "GET" if method in permissions.SAFE_METHODS else method
    return scopes.get(key) or scopes["*"]
