"""The view that keeps an idle workspace."""

from __future__ import annotations

from uuid import UUID

from django.contrib import messages
from django.http import HttpResponse
from django.utils.translation import gettext as _
from django.views.decorators.http import require_http_methods

from portal.common.errors import PortalError
from portal.common.typed_requests import SignedInRequest
from portal.reclaim import keeping
from portal.workspaces import selectors
from portal.workspaces.views import redirect_to_workspace


@require_http_methods(["GET", "HEAD", "POST"])
def keep_workspace(request: SignedInRequest, workspace_id: UUID) -> HttpResponse:
    """Keep a workspace for two hours. A GET, for example after a new sign-in, only shows its page."""
    workspace = selectors.workspace_by_id(request.user, workspace_id)
    if request.method != "POST":
        return redirect_to_workspace(workspace)
    try:
        keeping.keep_workspace(actor=request.user, workspace_id=workspace_id)
    except PortalError as error:
        messages.error(request, error.sentence)
    else:
        messages.success(request, _("%(name)s is kept, even while idle.") % {"name": workspace.name})
    return redirect_to_workspace(workspace)
