"""Pages of home archives; the template is templates/home_files/archives.html."""

from __future__ import annotations

from uuid import UUID

from django.conf import settings
from django.contrib import messages
from django.http import HttpResponse
from django.shortcuts import redirect, render
from django.urls import reverse
from django.utils.translation import gettext as _
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_http_methods, require_POST, require_safe

from portal.common.errors import NotAllowed, NotFound, PortalError
from portal.common.texts import strip_nul
from portal.common.typed_requests import SignedInRequest
from portal.workspaces import policies, selectors
from portal.workspaces.home_files import archive_presenters as presenters
from portal.workspaces.homes import archives as home_archives
from portal.workspaces.homes import limits as home_limits
from portal.workspaces.models import Workspace


def _home_of(request: SignedInRequest, workspace_id: UUID) -> Workspace:
    workspace = selectors.workspace_by_id(request.user, workspace_id)
    policies.require_home(request.user, workspace)
    return workspace


def _archives_url(workspace: Workspace) -> str:
    return reverse("home_files:archives", args=[workspace.pk])


@require_safe
@never_cache
def archives(request: SignedInRequest, workspace_id: UUID) -> HttpResponse:
    """List the archives of a home, with a form for a new one."""
    workspace = _home_of(request, workspace_id)
    all_archives = list(home_archives.archives_of_home(request.user, workspace))
    rows = presenters.rows(workspace, all_archives)
    context = {
        "workspace": workspace,
        "rows": rows,
        "working": any(row.archive.open for row in rows),
        "put_away": any(row.archive.away_at is not None for row in rows),
        "refusal": presenters.refusal(workspace),
        "usage": home_limits.note_of(workspace),
        "most": settings.BERTH_HOME_ARCHIVES,
        "together": presenters.total_size_text(all_archives),
        "max_name": home_archives.MAX_NAME,
    }
    return render(request, "home_files/archives.html", context)


@require_POST
def make(request: SignedInRequest, workspace_id: UUID) -> HttpResponse:
    """Create an archive."""
    workspace = _home_of(request, workspace_id)
    try:
        home_archives.create(actor=request.user, workspace=workspace, name=request.POST.get("name", ""))
    except (NotAllowed, NotFound):
        raise
    except PortalError as error:
        messages.error(request, error.sentence)
    else:
        messages.success(request, _("Creating the archive. New workspaces wait until it is complete."))
    return redirect(_archives_url(workspace))


@require_http_methods(["GET", "HEAD", "POST"])
@never_cache
def restore(request: SignedInRequest, workspace_id: UUID, archive_id: UUID) -> HttpResponse:
    """Confirm, then restore a home."""
    workspace = _home_of(request, workspace_id)
    archive = home_archives.archive_of_home(request.user, workspace, archive_id)
    if request.method != "POST":
        question = presenters.restore_question(workspace, archive)
        return render(
            request, "confirm.html", {**question, "action": request.path, "back": _archives_url(workspace)}
        )
    try:
        home_archives.restore(actor=request.user, workspace=workspace, archive_id=archive_id)
    except (NotAllowed, NotFound):
        raise
    except PortalError as error:
        messages.error(request, error.sentence)
    else:
        messages.success(
            request, _("Restoring your home folder. The current one stays until this is complete.")
        )
    return redirect(_archives_url(workspace))


@require_http_methods(["GET", "HEAD", "POST"])
@never_cache
def delete(request: SignedInRequest, workspace_id: UUID, archive_id: UUID) -> HttpResponse:
    """Confirm, then delete an archive."""
    workspace = _home_of(request, workspace_id)
    archive = home_archives.archive_of_home(request.user, workspace, archive_id)
    if request.method != "POST":
        question = presenters.delete_question(archive)
        return render(
            request, "confirm.html", {**question, "action": request.path, "back": _archives_url(workspace)}
        )
    try:
        home_archives.delete(actor=request.user, workspace=workspace, archive_id=archive_id)
    except (NotAllowed, NotFound):
        raise
    except PortalError as error:
        messages.error(request, error.sentence)
    else:
        messages.success(request, _("“%(name)s” is being deleted.") % {"name": strip_nul(archive.name)})
    return redirect(_archives_url(workspace))


@require_POST
def cancel(request: SignedInRequest, workspace_id: UUID, archive_id: UUID) -> HttpResponse:
    """Cancel the running job of an archive."""
    workspace = _home_of(request, workspace_id)
    try:
        home_archives.cancel(actor=request.user, workspace=workspace, archive_id=archive_id)
    except (NotAllowed, NotFound):
        raise
    except PortalError as error:
        messages.error(request, error.sentence)
    else:
        messages.success(request, _("Cancelled. The home folder is unchanged."))
    return redirect(_archives_url(workspace))
