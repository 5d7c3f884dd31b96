"""Pages of announcements. See templates/announcements/ for the contexts."""

from __future__ import annotations

from uuid import UUID

from django.contrib import messages
from django.core.paginator import Paginator
from django.http import HttpResponse
from django.shortcuts import redirect, render
from django.urls import reverse
from django.utils.translation import gettext as _
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_http_methods

from portal.common import etags
from portal.common.errors import PortalError
from portal.common.htmx import local_path
from portal.common.typed_requests import SignedInRequest
from portal.fleet.announcements import selectors, services
from portal.fleet.announcements.forms import AnnouncementForm
from portal.fleet.announcements.models import Announcement
from portal.fleet.inventory import maintenance
from portal.people.accounts.forms import add_problems, form_status
from portal.people.accounts.policies import require_operator

ROWS_PER_PAGE = 50


@require_http_methods(["GET", "HEAD", "POST"])
@never_cache
def announcements(request: SignedInRequest) -> HttpResponse:
    """List the announcements that the reader sees, and create one."""
    if request.method == "POST":
        require_operator(request.user)
    form = AnnouncementForm(request.POST if request.method == "POST" else None)
    if request.method == "POST" and form.is_valid():
        try:
            services.create(actor=request.user, **form.service_arguments())
        except PortalError as error:
            add_problems(form, error.field_errors, error.sentence)
        else:
            messages.success(request, _("Announcement created."))
            return redirect("announcements:list")
    rows = Paginator(selectors.announcements_for(request.user), ROWS_PER_PAGE)
    context = {
        "page": rows.get_page(request.GET.get("page")),
        "site_maintenance": maintenance.current(None),
        "form": form if request.user.operates else None,
    }
    return render(request, "announcements/list.html", context, status=form_status(form))


@require_http_methods(["GET", "HEAD", "POST"])
@never_cache
def edit(request: SignedInRequest, announcement_id: UUID) -> HttpResponse:
    """Show and handle the form that changes an announcement."""
    row = _managed(request, announcement_id)
    initial = {name: getattr(row, name) for name in services.FIELDS} | {"version": etags.version_of(row)}
    form = AnnouncementForm(request.POST if request.method == "POST" else None, initial=initial)
    if request.method == "POST" and form.is_valid():
        try:
            services.change(
                actor=request.user,
                announcement=row,
                fields=form.service_arguments(),
                expected=etags.expected_versions(request),
            )
        except PortalError as error:
            add_problems(form, error.field_errors, error.sentence)
        else:
            messages.success(request, _("Announcement saved."))
            return redirect("announcements:list")
    context = {"announcement": row, "form": form}
    return render(request, "announcements/edit.html", context, status=form_status(form))


@require_http_methods(["GET", "HEAD", "POST"])
@never_cache
def end(request: SignedInRequest, announcement_id: UUID) -> HttpResponse:
    """End an announcement. A GET only shows the list."""
    row = _managed(request, announcement_id)
    if request.method == "POST":
        services.end(actor=request.user, announcement=row)
        messages.success(request, _("Announcement ended."))
    return redirect("announcements:list")


@require_http_methods(["GET", "HEAD", "POST"])
@never_cache
def delete(request: SignedInRequest, announcement_id: UUID) -> HttpResponse:
    """Ask for confirmation, then delete the announcement."""
    row = _managed(request, announcement_id)
    if request.method == "POST":
        services.delete(actor=request.user, announcement=row)
        messages.success(request, _("Announcement deleted."))
        return redirect("announcements:list")
    context = {
        "title": _("Delete this announcement?"),
        "loses": [row.text],
        "stays": [_("audit log entries")],
        "yes": _("Delete"),
        "action": request.path,
        "back": reverse("announcements:list"),
    }
    return render(request, "confirm.html", context)


@require_http_methods(["GET", "HEAD", "POST"])
@never_cache
def dismiss(request: SignedInRequest, announcement_id: UUID) -> HttpResponse:
    """Hide an announcement from the reader. A GET only goes back."""
    if request.method == "POST":
        row = selectors.announcement_by_id(request.user, announcement_id)
        services.dismiss(actor=request.user, announcement=row)
        if request.headers.get("HX-Request"):
            return HttpResponse()
    return redirect(local_path(request.POST.get("next", "")))


def _managed(request: SignedInRequest, announcement_id: UUID) -> Announcement:
    require_operator(request.user)
    return selectors.announcement_by_id(request.user, announcement_id)
