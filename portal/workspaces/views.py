"""Pages of workspaces; templates are in templates/workspaces/."""

from __future__ import annotations

from urllib.parse import urlencode
from uuid import UUID

from asgiref.sync import sync_to_async
from django.conf import settings
from django.contrib import messages
from django.contrib.auth.decorators import login_not_required
from django.http import HttpRequest, HttpResponse, HttpResponseBase
from django.shortcuts import redirect, render
from django.urls import reverse
from django.utils.translation import gettext as _
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_GET, require_http_methods, require_safe

from portal.common import downloads
from portal.common.errors import InvalidInput, NotFound, PortalError
from portal.common.events import live, stream
from portal.common.formatting import format_day_time
from portal.common.htmx import local_path, partial_of, requests_element
from portal.common.reasons.codes import CommonCode
from portal.common.reasons.reason import Reason
from portal.common.texts import parse_hours
from portal.common.typed_requests import SignedInRequest
from portal.workspaces import extending, policies, presenters, selectors, services, usage_history
from portal.workspaces.gateway import publishing
from portal.workspaces.lifecycle import State
from portal.workspaces.models import Workspace

WORKSPACES_PER_PAGE = 24
EVENTS_SHOWN = 50
LOG_LINES = 200


def redirect_to_workspace(workspace: Workspace, *, opening: bool = False) -> HttpResponse:
    url = reverse("workspaces:detail", args=[workspace.pk])
    return redirect(f"{url}?open=1" if opening and not workspace.simulated else url)


@require_safe
@never_cache
def detail(request: SignedInRequest, workspace_id: UUID) -> HttpResponse:
    """Show one workspace. With `?open=1` its app opens as soon as it is ready."""
    workspace = selectors.workspace_by_id(request.user, workspace_id)
    opening = request.GET.get("open") == "1"
    view = presenters.detail(request.user, workspace, opening=opening)
    if requests_element(request, "activity"):
        return render(request, "workspaces/detail.html#activity", {"workspace": workspace, "view": view})
    entries = list(selectors.events_of(workspace).order_by("-pk")[: EVENTS_SHOWN + 1])
    context = {
        "workspace": workspace,
        "view": view,
        "events": presenters.event_rows(entries[:EVENTS_SHOWN]),
        "more_events": len(entries) > EVENTS_SHOWN,
        "opening": opening,
        "heartbeat_s": settings.HEARTBEAT_S,
        "span": usage_history.span_of(request.GET.get("span", "")),
        "log": None,
    }
    return render(request, partial_of(request, "workspaces/detail.html", "live", "log"), context)


@require_safe
@never_cache
def log(request: SignedInRequest, workspace_id: UUID) -> HttpResponse:
    """Show the last lines of the log, from the node."""
    workspace = selectors.workspace_by_id(request.user, workspace_id)
    text, problem = "", ""
    try:
        text = services.read_logs(workspace=workspace, tail_lines=LOG_LINES)
    except PortalError as error:
        problem = error.sentence
    context = {
        "workspace": workspace,
        "view": presenters.detail(request.user, workspace, opening=False),
        "log": text,
        "log_problem": problem,
    }
    page = "workspaces/detail.html#log" if requests_element(request, "log") else "workspaces/log.html"
    return render(request, page, context)


@require_safe
@never_cache
def download_log(request: SignedInRequest, workspace_id: UUID) -> HttpResponse:
    """Send the last `MAX_LOG_LINES` lines of the log as a file."""
    workspace = selectors.workspace_by_id(request.user, workspace_id)
    text = services.read_logs(workspace=workspace, tail_lines=services.MAX_LOG_LINES)
    return downloads.text_file(text, f"{workspace.name}.log")


@require_http_methods(["GET", "HEAD", "POST"])
def start(request: SignedInRequest, workspace_id: UUID) -> HttpResponse:
    """Start a stopped workspace, or retry a failed one; its app opens when ready.

    A GET, as after a new sign-in, only shows its page.
    """
    workspace = selectors.workspace_by_id(request.user, workspace_id)
    if request.method != "POST":
        return redirect_to_workspace(workspace)
    try:
        workspace = services.start(actor=request.user, workspace_id=workspace_id)
    except PortalError as error:
        return _redirect_with_error(request, workspace, error)
    return redirect_to_workspace(workspace, opening=workspace.owner_id == request.user.pk)


@require_http_methods(["GET", "HEAD", "POST"])
def extend(request: SignedInRequest, workspace_id: UUID) -> HttpResponse:
    """Extend a workspace by `hours`. A GET, as after a new sign-in, only shows its page."""
    workspace = selectors.workspace_by_id(request.user, workspace_id)
    if request.method != "POST":
        return redirect_to_workspace(workspace)
    try:
        seconds = parse_hours(request.POST.get("hours", ""))
        if seconds is None:
            raise InvalidInput(Reason(CommonCode.HOURS_NOT_UNDERSTOOD))
        done = extending.extend(actor=request.user, workspace_id=workspace_id, seconds=seconds)
    except PortalError as error:
        return _redirect_with_error(request, workspace, error)
    ends_at = done.workspace.ends_at
    assert ends_at is not None  # an extended workspace has an end
    text = _("%(name)s runs until %(time)s.")
    messages.success(request, text % {"name": workspace.name, "time": format_day_time(ends_at)})
    return redirect_to_workspace(workspace)


@require_http_methods(["GET", "HEAD", "POST"])
@never_cache
def stop(request: SignedInRequest, workspace_id: UUID) -> HttpResponse:
    """Confirm, then stop a workspace."""
    workspace = selectors.workspace_by_id(request.user, workspace_id)
    if request.method != "POST":
        policies.require_operate(request.user, workspace)
        return render(request, "workspaces/stop.html", {"workspace": workspace})
    try:
        services.stop(actor=request.user, workspace_id=workspace_id)
    except PortalError as error:
        return _redirect_with_error(request, workspace, error)
    if request.POST.get("next") == "home":
        return redirect("home:home")
    return redirect_to_workspace(workspace)


@require_http_methods(["GET", "HEAD", "POST"])
@never_cache
def delete(request: SignedInRequest, workspace_id: UUID) -> HttpResponse:
    """Confirm, then delete a workspace."""
    workspace = selectors.workspace_by_id(request.user, workspace_id)
    if request.method != "POST":
        policies.require_operate(request.user, workspace)
        return render(request, "workspaces/delete.html", {"workspace": workspace})
    try:
        services.delete(actor=request.user, workspace_id=workspace_id)
    except PortalError as error:
        return _redirect_with_error(request, workspace, error)
    messages.success(
        request, _("%(name)s is being deleted. Your home folder is kept.") % {"name": workspace.name}
    )
    return redirect("home:home")


def _redirect_with_error(request: SignedInRequest, workspace: Workspace, error: PortalError) -> HttpResponse:
    messages.error(request, error.sentence)
    return redirect_to_workspace(workspace)


@require_GET
@never_cache
def open_workspace(request: SignedInRequest, workspace_id: UUID) -> HttpResponse:
    """Redirect into the workspace with a one-time ticket, or to its page if it is not running.

    The portal's CSP restricts forms to its own origin, and Chromium applies that to their redirects. After a
    sign-in form, only a link or script on a page can navigate to another origin. `Sec-Fetch-Site` is `none`
    for a typed address.
    """
    workspace = selectors.workspace_by_id(request.user, workspace_id)
    if workspace.state != State.RUNNING:
        return redirect_to_workspace(workspace, opening=workspace.state in presenters.STARTING)
    ticket = publishing.issue_ticket(actor=request.user, workspace=workspace)
    path = local_path(request.GET.get("next", ""), default=workspace.template.open_path)
    url = f"{workspace.origin}/.berth/enter?{urlencode({'ticket': ticket, 'next': path})}"
    if request.headers.get("Sec-Fetch-Site", "none") == "none":
        return redirect(url)
    page = render(request, "workspaces/opening.html", {"workspace": workspace, "url": url})
    page["Refresh"] = f"0; url={url}"
    return page


@login_not_required
@require_GET
async def events(request: HttpRequest) -> HttpResponseBase:
    """Send `changed` when one of the user's workspaces changes, and `measured` after each observation.

    Answers 401, not a redirect, without a session.
    """
    user = await request.auser()
    if not user.is_authenticated or user.must_set_up_mfa:
        return HttpResponse(status=401)
    return stream.changes(live.user_channel(user.pk), user_id=user.pk, measured=True)


@login_not_required
@require_GET
async def workspace_events(request: HttpRequest, workspace_id: UUID) -> HttpResponseBase:
    """Send `changed` when this workspace changes. Answers 401, not a redirect, without a session."""
    user = await request.auser()
    if not user.is_authenticated or user.must_set_up_mfa:
        return HttpResponse(status=401)
    try:
        await sync_to_async(selectors.workspace_by_id)(user, workspace_id)
    except NotFound:
        return HttpResponse(status=404)
    return stream.changes(live.workspace_channel(workspace_id), user_id=user.pk)
