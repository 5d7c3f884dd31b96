"""The page of a user's own security events."""

from __future__ import annotations

from django.core.paginator import Paginator
from django.http import HttpResponse
from django.shortcuts import render
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_safe

from portal.common.typed_requests import SignedInRequest
from portal.people.accounts import security_events

ROWS_PER_PAGE = 50


@require_safe
@never_cache
def security(request: SignedInRequest) -> HttpResponse:
    """Show the user's own security events. The context is documented in the template."""
    entries = Paginator(security_events.security_events_of(request.user), ROWS_PER_PAGE)
    page = entries.get_page(request.GET.get("page"))
    rows = [(event, security_events.origin_of(event, request.user)) for event in page.object_list]
    return render(request, "accounts/security.html", {"page": page, "rows": rows})
