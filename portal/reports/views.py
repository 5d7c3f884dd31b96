"""The endpoints for Prometheus."""

from __future__ import annotations

from collections.abc import Callable

from django.conf import settings
from django.contrib.auth.decorators import login_not_required
from django.http import HttpRequest, HttpResponse
from django.utils.crypto import constant_time_compare
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_safe

from portal.common.scopes import Scope
from portal.people.accounts.token_lookup import find_valid_token
from portal.reports import metrics as report

PLAIN = "text/plain; charset=utf-8"


@login_not_required
@require_safe
@never_cache
def metrics(request: HttpRequest) -> HttpResponse:
    """Return metrics for a token with access to pools, or a signed-in user; else 401 or 403 as plain text."""
    return _answer(request, report.exposition)


@login_not_required
@require_safe
@never_cache
def gpu_metrics(request: HttpRequest) -> HttpResponse:
    """Return GPU metrics in the form of the DCGM exporter, to the same readers."""
    return _answer(request, report.gpu_exposition)


def _answer(request: HttpRequest, exposition: Callable[[], bytes]) -> HttpResponse:
    if refused := _refusal(request):
        return refused
    return HttpResponse(exposition(), content_type=report.CONTENT_TYPE)


def _refusal(request: HttpRequest) -> HttpResponse | None:
    kind, _, secret = request.headers.get("Authorization", "").partition(" ")
    if kind.lower() != "bearer":
        return (
            None if request.user.is_authenticated else _unauthorized("Send a token: Authorization: Bearer …")
        )
    secret = secret.strip()
    own = settings.BERTH_METRICS_TOKEN
    if own and constant_time_compare(secret, own):
        return None
    authenticated = find_valid_token(secret)
    if authenticated is None:
        return _unauthorized(
            "The token is unknown, expired or revoked. Create one with the scope pools:read."
        )
    if {Scope.ALL, Scope.POOLS_READ}.isdisjoint(authenticated[1].scopes):
        return HttpResponse("The token lacks the scope “pools:read”.", status=403, content_type=PLAIN)
    return None


def _unauthorized(message: str) -> HttpResponse:
    return HttpResponse(
        f"{message}\n", status=401, content_type=PLAIN, headers={"WWW-Authenticate": 'Bearer realm="Berth"'}
    )
