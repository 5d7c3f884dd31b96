"""Health checks for people, load balancers and the supervisor."""

from __future__ import annotations

from dataclasses import asdict

from django.contrib.auth.decorators import login_not_required
from django.http import HttpRequest, HttpResponse, JsonResponse
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_safe

from portal.embedded import health


@login_not_required
@never_cache
@require_safe
def healthz(_request: HttpRequest) -> JsonResponse:
    """Return the health of every part: 200 if all are healthy, else 503."""
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
    """Return 200 while this process answers, regardless of the others."""
    return HttpResponse("ok\n", content_type="text/plain; charset=utf-8")
