"""Pages of notices and the bell. See templates/events/ for the contexts."""

from __future__ import annotations

from django.contrib import messages
from django.core.paginator import Paginator
from django.http import HttpResponse
from django.shortcuts import redirect, render
from django.utils.translation import gettext as _
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_http_methods, require_safe

from portal.common.events import selectors, services
from portal.common.htmx import local_path
from portal.common.typed_requests import SignedInRequest

ROWS_PER_PAGE = 50


@require_safe
@never_cache
def notifications(request: SignedInRequest) -> HttpResponse:
    """List the user's notices, newest first."""
    rows = selectors.notifications_of(request.user)
    only = "unread" if request.GET.get("only") == "unread" else ""
    context = {
        "page": Paginator(rows.filter(read_at=None) if only else rows, ROWS_PER_PAGE).get_page(
            request.GET.get("page")
        ),
        "unread": selectors.unread_count(request.user),
        "only": only,
    }
    return render(request, "events/notifications.html", context)


@require_safe
@never_cache
def bell(request: SignedInRequest) -> HttpResponse:
    """Render only the bell, for polling by open pages."""
    return render(request, "components/bell.html", {"unread": selectors.unread_count(request.user)})


@require_http_methods(["GET", "HEAD", "POST"])
def read(request: SignedInRequest, notification_id: int) -> HttpResponse:
    """Mark a notice as read and redirect to its URL. A GET, as after a new sign-in, only shows the list."""
    if request.method != "POST":
        return redirect("events:notifications")
    notice = selectors.notification_by_id(request.user, notification_id)
    services.mark_read(actor=request.user, notification_id=notification_id)
    if "stay" in request.POST or not notice.url:
        return redirect("events:notifications")
    return redirect(local_path(notice.url))


@require_http_methods(["GET", "HEAD", "POST"])
def read_all(request: SignedInRequest) -> HttpResponse:
    """Mark all notices as read. A GET, as after a new sign-in, only shows the list."""
    if request.method == "POST":
        count = services.mark_read(actor=request.user)
        messages.success(
            request,
            _("%(count)d marked as read.") % {"count": count} if count else _("No unread notices."),
        )
    return redirect("events:notifications")
