"""The page of booking permissions (context: templates/reservations/permissions.html)."""

from __future__ import annotations

from uuid import UUID

from django.contrib import messages
from django.http import HttpResponse
from django.shortcuts import redirect, render
from django.utils.translation import gettext as _
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_http_methods

from portal.common.errors import PortalError
from portal.common.texts import strip_nul
from portal.common.typed_requests import SignedInRequest
from portal.people.accounts import approvers
from portal.people.accounts.models import Team
from portal.quota.limits import policies
from portal.quota.limits.selectors import limits
from portal.quota.reservations import permissions as services

MAX_TEAMS = 500


@require_http_methods(["GET", "HEAD", "POST"])
@never_cache
def permissions(request: SignedInRequest) -> HttpResponse:
    """Show booking permissions to approvers and operators; approvers create them."""
    if not policies.sees_every_team(request.user):
        policies.require_book(request.user)
    error: PortalError | None = None
    data = request.POST
    entered = {name: strip_nul(data.get(name, "")).strip()[:64] for name in ("username", "team")}
    if request.method == "POST":
        services.require_grant(request.user)
        try:
            team = limits.team_for(request.user, entered["team"]) if entered["team"] else None
            permission = services.permit_booking(actor=request.user, username=entered["username"], team=team)
        except PortalError as refused:
            error = refused
        else:
            named = {"username": permission.user.username, "teams": services.teams_of(permission)}
            messages.success(request, _("%(username)s can book without approval for %(teams)s.") % named)
            return redirect("reservations:permissions")
    context = {
        "rows": [(row, services.teams_of(row)) for row in services.permissions_for(request.user)[:MAX_TEAMS]],
        "may_change": approvers.is_approver(request.user),
        "teams": list(Team.objects.order_by("name")[:MAX_TEAMS]),
        "given": entered,
        "error": error,
    }
    return render(request, "reservations/permissions.html", context, status=error.status if error else 200)


@require_http_methods(["GET", "HEAD", "POST"])
def end(request: SignedInRequest, permission_id: UUID) -> HttpResponse:
    """Revoke a permission. A GET, as after signing in again, only shows the list."""
    if request.method == "POST":
        services.end(actor=request.user, permission_id=permission_id)
        messages.success(request, _("Permission revoked. Existing reservations stay."))
    return redirect(
        "reservations:permissions" if policies.sees_every_team(request.user) else "reservations:calendar"
    )
