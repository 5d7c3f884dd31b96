"""What people do on the page of a workspace about its end."""

from __future__ import annotations

from uuid import UUID

from django.contrib import messages
from django.http import HttpResponse
from django.utils.translation import gettext as _
from django.views.decorators.http import require_http_methods

from portal.common.errors import InvalidInput, PortalError
from portal.common.formatting import format_day_time
from portal.common.reasons.codes import CommonCode
from portal.common.reasons.reason import Reason
from portal.common.texts import parse_hours
from portal.common.typed_requests import SignedInRequest
from portal.reclaim import keeping, lifetimes
from portal.workspaces import selectors
from portal.workspaces.views import to_workspace


@require_http_methods(["GET", "HEAD", "POST"])
def extend(request: SignedInRequest, workspace_id: UUID) -> HttpResponse:
    """Extend a workspace by `hours`. A GET, as after signing in anew, only shows its page."""
    workspace = selectors.workspace_by_id(request.user, workspace_id)
    if request.method != "POST":
        return to_workspace(workspace)
    try:
        seconds = parse_hours(request.POST.get("hours", ""))
        if seconds is None:
            raise InvalidInput(Reason(CommonCode.HOURS_NOT_UNDERSTOOD))
        done = lifetimes.extend(actor=request.user, workspace_id=workspace_id, seconds=seconds)
    except PortalError as error:
        messages.error(request, error.sentence)
        return to_workspace(workspace)
    ends_at = done.workspace.ends_at
    assert ends_at is not None  # what was extended has an end
    words = _("%(name)s runs until %(time)s.")
    messages.success(request, words % {"name": workspace.name, "time": format_day_time(ends_at)})
    return to_workspace(workspace)


@require_http_methods(["GET", "HEAD", "POST"])
def keep(request: SignedInRequest, workspace_id: UUID) -> HttpResponse:
    """Keep a workspace for two hours. A GET, as after signing in anew, only shows its page."""
    workspace = selectors.workspace_by_id(request.user, workspace_id)
    if request.method != "POST":
        return to_workspace(workspace)
    try:
        keeping.keep(actor=request.user, workspace_id=workspace_id)
    except PortalError as error:
        messages.error(request, error.sentence)
    else:
        messages.success(
            request, _("%(name)s is kept, even if nothing happens in it.") % {"name": workspace.name}
        )
    return to_workspace(workspace)
