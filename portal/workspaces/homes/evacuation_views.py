"""The page that evacuates a node; its template is templates/workspaces/node_homes.html."""

from __future__ import annotations

from uuid import UUID

from django.contrib import messages
from django.http import HttpResponse
from django.shortcuts import redirect, render
from django.utils.translation import gettext as _
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_http_methods, require_POST

from portal.common.errors import NotAllowed, NotFound, PortalError
from portal.common.texts import strip_nul
from portal.common.typed_requests import SignedInRequest
from portal.people.accounts.policies import require_operator
from portal.workspaces.homes import evacuation_presenters as presenters
from portal.workspaces.homes import evacuations


@require_http_methods(["GET", "HEAD", "POST"])
@never_cache
def node_homes(request: SignedInRequest, node_id: UUID) -> HttpResponse:
    """Show the homes on a node and the progress of an evacuation. A POST with `to` starts one."""
    node = evacuations.node_by_id(request.user, node_id)
    if request.method != "POST":
        context = {"node": node, "view": presenters.page(request.user, node)}
        return render(request, "workspaces/node_homes.html", context)
    begin(request, node_id, strip_nul(request.POST.get("to", "")))
    return redirect("workspaces:node-homes", node_id)


def begin(request: SignedInRequest, node_id: UUID, to: str) -> None:
    """Start an evacuation, and report the result as a message. Raises `NotAllowed`, `NotFound`."""
    require_operator(request.user)
    try:
        evacuations.evacuate(actor=request.user, node_id=node_id, to=to)
    except (NotAllowed, NotFound):
        raise
    except PortalError as error:
        messages.error(request, error.sentence)
    else:
        messages.success(request, _("Moving the home folders to %(node)s.") % {"node": to})


@require_POST
def cancel(request: SignedInRequest, home_evacuation_id: UUID) -> HttpResponse:
    """Cancel an evacuation."""
    require_operator(request.user)
    evacuation = evacuations.evacuation(request.user, home_evacuation_id)
    try:
        evacuations.cancel(actor=request.user, evacuation_id=home_evacuation_id)
    except (NotAllowed, NotFound):
        raise
    except PortalError as error:
        messages.error(request, error.sentence)
    else:
        messages.success(request, _("Move cancelled. The remaining home folders stay where they are."))
    if evacuation.source is None:
        return redirect("fleet:pool", evacuation.pool.slug)
    return redirect("workspaces:node-homes", evacuation.source.pk)
