"""Pages of home folders, and the page that removes a machine; templates are in templates/workspaces/."""

from __future__ import annotations

from uuid import UUID

from django.contrib import messages
from django.core.paginator import Paginator
from django.http import HttpResponse
from django.shortcuts import redirect, render
from django.urls import reverse
from django.utils.translation import gettext as _
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_http_methods, require_POST, require_safe

from portal.common.errors import InvalidInput, NotAllowed, NotFound, PortalError
from portal.common.reasons.reason import Reason
from portal.common.texts import strip_nul
from portal.common.typed_requests import SignedInRequest
from portal.people.accounts.mfa.proof import require_fresh_proof
from portal.people.accounts.policies import require_operator
from portal.workspaces import machine_removal
from portal.workspaces.codes import WorkspaceCode
from portal.workspaces.homes import lost as lost_homes
from portal.workspaces.homes import moves as home_moves
from portal.workspaces.homes import presenters as home_presenters

ROWS_PER_PAGE = 50


@require_safe
@never_cache
def homes(request: SignedInRequest) -> HttpResponse:
    """List the user's home folders; `?all=1` lists all for operators and auditors."""
    everybody = request.GET.get("all") == "1" and request.user.sees_all
    rows = Paginator(home_presenters.places(request.user, everybody=everybody), ROWS_PER_PAGE)
    page = rows.get_page(request.GET.get("page"))
    lost = lost_homes.visible_lost_homes(request.user).order_by("recreated_at", "-lost_at", "pk")
    if not everybody:
        lost = lost.filter(owner=request.user)
    shown = home_presenters.rows(request.user, page.object_list)
    context = {
        "page": page,
        "rows": shown,
        "moving": any(row.move is not None and row.move.move.open for row in shown),
        "lost": [home_presenters.lost_row(request.user, home) for home in lost[:ROWS_PER_PAGE]],
        "everybody": everybody,
    }
    return render(request, "workspaces/homes.html", context)


@require_http_methods(["GET", "HEAD", "POST"])
@never_cache
def recreate(request: SignedInRequest, lost_home_id: UUID) -> HttpResponse:
    """Confirm, then allow the next start to use a new, empty home."""
    lost = lost_homes.visible_lost_homes(request.user).filter(pk=lost_home_id).first()
    if lost is None:
        raise NotFound(Reason(WorkspaceCode.NO_SUCH_HOME))
    lost_homes.require_recreate(request.user, lost)
    back = reverse("workspaces:homes")
    if request.method != "POST":
        question = home_presenters.recreate_question(lost)
        return render(request, "confirm.html", {**question, "action": request.path, "back": back})
    lost_homes.recreate(actor=request.user, lost_home_id=lost_home_id)
    messages.success(request, _("The next start creates an empty home folder."))
    return redirect(back)


@require_POST
def move(request: SignedInRequest, home_id: int) -> HttpResponse:
    """Move a home to another node."""
    place = home_presenters.places(request.user, everybody=request.user.sees_all).filter(pk=home_id).first()
    if place is None:
        raise NotFound(Reason(WorkspaceCode.NO_SUCH_HOME))
    node = strip_nul(request.POST.get("node", ""))
    try:
        home_moves.move_home(
            actor=request.user, owner=place.owner, team=place.team, pool=place.pool, node=node
        )
    except NotAllowed:
        raise
    except PortalError as error:
        messages.error(request, error.sentence)
    else:
        messages.success(request, _("Moving the home folder. New workspaces wait until this is complete."))
    return redirect(_homes_url(request, place.owner_id))


@require_POST
def cancel_move(request: SignedInRequest, home_move_id: UUID) -> HttpResponse:
    """Cancel a home move."""
    try:
        move = home_moves.cancel_move(actor=request.user, move_id=home_move_id)
    except (NotAllowed, NotFound):
        raise
    except PortalError as error:
        messages.error(request, error.sentence)
        return redirect("workspaces:homes")
    messages.success(request, _("Move cancelled. The home folder stays where it is."))
    return redirect(_homes_url(request, move.owner_id))


def _homes_url(request: SignedInRequest, owner_id: UUID) -> str:
    return reverse("workspaces:homes") + ("" if owner_id == request.user.pk else "?all=1")


@require_http_methods(["GET", "HEAD", "POST"])
@never_cache
@require_fresh_proof
def machine_remove(request: SignedInRequest, machine_id: UUID) -> HttpResponse:
    """Show what would be lost with a machine, and remove it once its name is confirmed."""
    require_operator(request.user)
    losses = machine_removal.losses_of(request.user, machine_id)
    back = reverse("machines:list", args=[losses.machine.pool.slug])
    if request.method != "POST":
        return _ask(request, losses, back)
    machine_name = losses.machine.name
    try:
        machine_removal.remove(
            actor=request.user,
            machine_id=machine_id,
            confirm=request.POST.get("confirm", "") if losses.any else machine_name,
            reason=strip_nul(request.POST.get("note", "")),
        )
    except InvalidInput as error:
        return _ask(request, losses, back, problem=error.sentence)
    except PortalError as error:
        messages.error(request, error.sentence)
    else:
        messages.success(request, _("%(node)s removed.") % {"node": machine_name})
    return redirect(back)


def _ask(
    request: SignedInRequest, losses: machine_removal.RemovalLosses, back: str, *, problem: str = ""
) -> HttpResponse:
    context = {
        **home_presenters.remove_question(losses),
        "action": request.path,
        "back": back,
        "typed_problem": problem,
    }
    return render(request, "confirm.html", context, status=400 if problem else 200)
