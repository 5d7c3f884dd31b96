"""The overview of the site, for operators, administrators and auditors."""

from __future__ import annotations

from django.http import HttpResponse
from django.shortcuts import render
from django.utils import timezone
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_safe

from portal.common.htmx import partial_of
from portal.common.typed_requests import SignedInRequest
from portal.people.accounts.policies import require_operator
from portal.web.home.presenters import overview as presenters


@require_safe
@never_cache
def overview(request: SignedInRequest) -> HttpResponse:
    """Show GPU use, waiting work and tasks for operators. Raises `NotAllowed` for members."""
    if not request.user.sees_all:
        require_operator(request.user)
    context = presenters.overview(request.user, timezone.now())
    return render(request, partial_of(request, "home/overview.html", "live"), context)
