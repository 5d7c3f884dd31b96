"""Pages that set and end the maintenance of the site or of a pool, for operators."""

from __future__ import annotations

from django.contrib import messages
from django.http import HttpResponse
from django.shortcuts import redirect, render
from django.utils.translation import gettext as _
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_http_methods

from portal.common import etags
from portal.common.errors import PortalError
from portal.common.typed_requests import SignedInRequest
from portal.fleet.inventory import maintenance, selectors
from portal.fleet.inventory.models import Maintenance, Pool
from portal.people.accounts.forms import add_problems, form_status
from portal.people.accounts.policies import require_operator
from portal.web.fleet.forms import MaintenanceForm


@require_http_methods(["GET", "HEAD", "POST"])
@never_cache
def site(request: SignedInRequest) -> HttpResponse:
    """Show and set maintenance of the whole site."""
    require_operator(request.user)
    return _page(request, None)


@require_http_methods(["GET", "HEAD", "POST"])
@never_cache
def pool(request: SignedInRequest, slug: str) -> HttpResponse:
    """Show and set maintenance of a pool."""
    require_operator(request.user)
    return _page(request, selectors.pool_by_slug(slug))


@require_http_methods(["GET", "HEAD", "POST"])
@never_cache
def end_site(request: SignedInRequest) -> HttpResponse:
    """End maintenance of the site. A GET only shows the page."""
    require_operator(request.user)
    return _end(request, None)


@require_http_methods(["GET", "HEAD", "POST"])
@never_cache
def end_pool(request: SignedInRequest, slug: str) -> HttpResponse:
    """End maintenance of a pool. A GET only shows the page."""
    require_operator(request.user)
    return _end(request, selectors.pool_by_slug(slug))


def _page(request: SignedInRequest, pool: Pool | None) -> HttpResponse:
    row = maintenance.current(pool)
    form = MaintenanceForm(request.POST if request.method == "POST" else None, initial=_initial(row))
    if request.method == "POST" and form.is_valid():
        try:
            maintenance.set_maintenance(
                actor=request.user,
                pool=pool,
                expected=etags.expected_versions(request),
                **form.service_arguments(),
            )
        except PortalError as error:
            add_problems(form, error.field_errors, error.sentence)
        else:
            messages.success(request, _("Maintenance saved."))
            return _redirect_back(pool)
    context = {"pool": pool, "maintenance": row, "form": form}
    return render(request, "fleet/maintenance.html", context, status=form_status(form))


def _initial(row: Maintenance | None) -> dict[str, object]:
    version = {"version": etags.version_of(row)}
    if row is None:
        return {**version}
    return {**version, "begins_at": row.begins_at, "ends_at": row.ends_at, "reason": row.reason}


def _end(request: SignedInRequest, pool: Pool | None) -> HttpResponse:
    if request.method == "POST":
        try:
            maintenance.end(actor=request.user, pool=pool)
        except PortalError as error:
            messages.error(request, error.sentence)
        else:
            messages.success(request, _("Maintenance ended. New workspaces can start."))
    return _redirect_back(pool)


def _redirect_back(pool: Pool | None) -> HttpResponse:
    return redirect("fleet:maintenance") if pool is None else redirect("fleet:pool-maintenance", pool.slug)
