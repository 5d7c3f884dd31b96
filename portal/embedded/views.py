"""Health checks for people, load balancers and the supervisor, and authorization of large request bodies."""

from __future__ import annotations

from dataclasses import asdict

from django.conf import settings
from django.contrib.auth.decorators import login_not_required
from django.http import HttpRequest, HttpResponse, JsonResponse
from django.shortcuts import redirect
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_safe
from rest_framework.exceptions import Throttled
from rest_framework.permissions import IsAuthenticated
from rest_framework.request import Request
from rest_framework.views import APIView

from portal.common import rate_limits
from portal.embedded import health

LARGE_BODIES = rate_limits.Limit(8, 30)
"""Rate limit for a user's large bodies. Two windows allow fewer than the front door holds at once."""


@login_not_required
@never_cache
@require_safe
def healthz(_request: HttpRequest) -> JsonResponse:
    """Return the health of all parts: 200 if all are healthy, else 503."""
    parts = health.check()
    ok = all(part.ok for part in parts)
    return JsonResponse(
        {"status": "ok" if ok else "failing", "parts": [asdict(part) for part in parts]},
        status=200 if ok else 503,
        json_dumps_params={"indent": 1, "ensure_ascii": False},
    )


@login_not_required
@never_cache
@require_safe
def live(_request: HttpRequest) -> HttpResponse:
    """Return 200 while this process answers, regardless of other processes."""
    return HttpResponse("ok\n", content_type="text/plain; charset=utf-8")


class LargeBody(APIView):
    """Authorizes a large body before the front door reads it. Returns 204, or the refusal for the client."""

    schema = None
    permission_classes = (IsAuthenticated,)

    def get(self, request: Request) -> HttpResponse:
        wait_s = rate_limits.count(f"large-bodies:{request.user.pk}", LARGE_BODIES)
        if wait_s:
            raise Throttled(wait_s)
        return HttpResponse(status=204)


@login_not_required
@never_cache
@require_safe
def large_body(request: HttpRequest) -> HttpResponse:
    """Return `LargeBody`'s response. Redirects signed-out browsers to sign-in."""
    response: HttpResponse = _LARGE_BODY(request)
    if response.status_code == 401 and "text/html" in request.headers.get("Accept", ""):
        return redirect(settings.LOGIN_URL)
    return response


_LARGE_BODY = LargeBody.as_view()
