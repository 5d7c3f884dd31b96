"""Pages of the files of a home; templates are in templates/home_files/."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any
from uuid import UUID

from django.contrib import messages
from django.http import HttpResponse
from django.shortcuts import redirect, render
from django.urls import reverse
from django.utils.translation import gettext as _
from django.utils.translation import ngettext
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_GET, require_http_methods, require_safe

from portal.common.errors import PortalError
from portal.common.texts import strip_nul
from portal.common.typed_requests import SignedInRequest
from portal.workspaces import policies, selectors
from portal.workspaces.home_files import services
from portal.workspaces.homes import limits as home_limits
from portal.workspaces.models import Workspace

MAX_PAGE = 100_000


@dataclass(frozen=True, slots=True)
class Crumb:
    name: str
    path: str


def _home_of(request: SignedInRequest, workspace_id: UUID) -> Workspace:
    workspace = selectors.workspace_by_id(request.user, workspace_id)
    policies.require_home(request.user, workspace)
    return workspace


def _path(request: SignedInRequest) -> str:
    data = request.POST if request.method == "POST" else request.GET
    return strip_nul(data.get("path", ""))


def _crumbs(path: str) -> list[Crumb]:
    parts = path.split("/") if path else []
    return [Crumb(services.name_of(part), "/".join(parts[: count + 1])) for count, part in enumerate(parts)]


def _parent(path: str) -> str:
    return path.rpartition("/")[0]


def _context(workspace: Workspace, path: str) -> dict[str, Any]:
    return {
        "workspace": workspace,
        "path": path,
        "name": services.name_of(path),
        "crumbs": _crumbs(path),
        "back": services.page_url(workspace, path),
    }


@require_safe
@never_cache
def file_list(request: SignedInRequest, workspace_id: UUID) -> HttpResponse:
    """List one page of a folder."""
    workspace = _home_of(request, workspace_id)
    path = _path(request)
    _report_upload(request)
    number = request.GET.get("page", "1")
    page = min(MAX_PAGE, max(1, int(number))) if number.isascii() and number.isdecimal() else 1
    context = {**_context(workspace, path), "usage": home_limits.note_of(workspace), "page": page}
    try:
        listing = services.listing(
            actor=request.user, workspace=workspace, path=path, offset=(page - 1) * services.PAGE
        )
    except PortalError as error:
        context["problem"] = error.sentence
        return render(request, "home_files/list.html", context)
    pages = max(1, -(-listing.total // services.PAGE))
    context |= {
        "listing": listing,
        "pages": pages,
        "before": page - 1,
        "after": page + 1 if page < pages else 0,
        "refusals": services.refusals(),
        "origin": services.page_origin(),
    }
    shown = render(request, "home_files/list.html", context)
    shown._csp_update = {"connect-src": [workspace.origin]}  # type: ignore[attr-defined]
    return shown


def _report_upload(request: SignedInRequest) -> None:
    """Show the result of an upload as a message, from the query string of the redirect."""
    saved, refused = request.GET.get("saved", ""), request.GET.get("refused", "")
    if saved.isascii() and saved.isdecimal() and len(saved) < 6 and int(saved):
        count = int(saved)
        text = ngettext("%(count)d file uploaded.", "%(count)d files uploaded.", count)
        messages.success(request, text % {"count": count})
    if refused:
        messages.error(request, services.refusal(refused[:40], request.GET.get("about", "")[:300]).sentence)


@require_GET
@never_cache
def download(request: SignedInRequest, workspace_id: UUID) -> HttpResponse:
    """Redirect to the single-use URL of a file."""
    workspace = _home_of(request, workspace_id)
    path = _path(request)
    try:
        url = services.download_url(
            actor=request.user, workspace=workspace, path=path, form=request.GET.get("as", "file")
        )
    except PortalError as error:
        return _redirect_with_error(request, workspace, _parent(path), error)
    return redirect(url)


@require_safe
@never_cache
def upload(request: SignedInRequest, workspace_id: UUID) -> HttpResponse:
    """Show a form that uploads files to the file server."""
    workspace = _home_of(request, workspace_id)
    path = _path(request)
    replace = request.GET.get("replace") == "1"
    try:
        url = services.upload_form_url(actor=request.user, workspace=workspace, path=path, replace=replace)
    except PortalError as error:
        return _redirect_with_error(request, workspace, path, error)
    context = {**_context(workspace, path), "url": url, "replace": replace}
    page = render(request, "home_files/upload.html", {**context, "usage": home_limits.note_of(workspace)})
    page._csp_update = {"form-action": [workspace.origin]}  # type: ignore[attr-defined]
    return page


@require_http_methods(["GET", "HEAD", "POST"])
@never_cache
def make_folder(request: SignedInRequest, workspace_id: UUID) -> HttpResponse:
    """Create a folder in the current one."""
    workspace = _home_of(request, workspace_id)
    path = _path(request)
    if request.method == "POST":
        new_path = services.join_path(path, strip_nul(request.POST.get("name", "")))
        try:
            services.make_folder(actor=request.user, workspace=workspace, path=new_path)
        except PortalError as error:
            return _redirect_with_error(request, workspace, path, error)
        messages.success(request, _("Folder created."))
    return redirect(services.page_url(workspace, path))


@require_http_methods(["GET", "HEAD", "POST"])
@never_cache
def rename(request: SignedInRequest, workspace_id: UUID) -> HttpResponse:
    """Rename a file or folder."""
    workspace = _home_of(request, workspace_id)
    path = _path(request)
    if request.method == "POST":
        to = services.join_path(_parent(path), strip_nul(request.POST.get("name", "")))
        try:
            services.rename(actor=request.user, workspace=workspace, path=path, to=to)
        except PortalError as error:
            return _redirect_with_error(request, workspace, _parent(path), error)
        messages.success(request, _("Renamed."))
        return redirect(services.page_url(workspace, _parent(path)))
    context = {**_context(workspace, path), "back": services.page_url(workspace, _parent(path))}
    return render(request, "home_files/rename.html", context)


@require_http_methods(["GET", "HEAD", "POST"])
@never_cache
def delete(request: SignedInRequest, workspace_id: UUID) -> HttpResponse:
    """Confirm, then delete a file or folder."""
    workspace = _home_of(request, workspace_id)
    path = _path(request)
    back = services.page_url(workspace, _parent(path))
    if request.method == "POST":
        try:
            services.delete(actor=request.user, workspace=workspace, paths=[path])
        except PortalError as error:
            return _redirect_with_error(request, workspace, _parent(path), error)
        messages.success(request, _("“%(name)s” deleted.") % {"name": services.name_of(path)})
        return redirect(back)
    params = {"name": services.name_of(path)}
    url = reverse("home_files:delete", args=[workspace.pk])
    context = {
        "title": _("Delete “%(name)s”?") % params,
        "loses": [_("“%(name)s” and all its contents, permanently") % params],
        "stays": [_("all other files"), _("the workspace")],
        "yes": _("Delete"),
        "action": url,
        "hidden": {"path": path},
        "back": back,
    }
    return render(request, "confirm.html", context)


def _redirect_with_error(
    request: SignedInRequest, workspace: Workspace, path: str, error: PortalError
) -> HttpResponse:
    messages.error(request, error.sentence)
    return redirect(services.page_url(workspace, path))
