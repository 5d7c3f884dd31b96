"""Pages of orphans; templates are in templates/orphans/."""

from __future__ import annotations

from uuid import UUID

from django.contrib import messages
from django.core.paginator import Paginator
from django.http import HttpResponse
from django.shortcuts import redirect, render
from django.urls import reverse
from django.utils.translation import gettext as _
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_http_methods, require_safe

from portal.common.errors import InvalidInput, PortalError
from portal.common.htmx import partial_of
from portal.common.typed_requests import SignedInRequest
from portal.people.accounts.mfa.proof import require_fresh_proof
from portal.people.accounts.policies import require_operator
from portal.workspaces.orphans import presenters, selectors, services

ROWS_PER_PAGE = 50
ENDED_SHOWN = 20


@require_safe
@never_cache
def listing(request: SignedInRequest) -> HttpResponse:
    """List orphans with their removal times, and those that ended recently."""
    page = Paginator(selectors.present_orphans(request.user), ROWS_PER_PAGE).get_page(request.GET.get("page"))
    context = {
        "page": page,
        "rows": [presenters.row(orphan) for orphan in page.object_list],
        "ended": [presenters.row(orphan) for orphan in selectors.ended_orphans(request.user)[:ENDED_SHOWN]],
        "policy": presenters.policy(),
        "may": request.user.operates,
    }
    return render(request, partial_of(request, "orphans/list.html", "live"), context)


@require_http_methods(["GET", "HEAD", "POST"])
def refresh(request: SignedInRequest) -> HttpResponse:
    """Ask all nodes for a new listing. A GET only shows the list."""
    require_operator(request.user)
    if request.method == "POST":
        services.request_inventories(actor=request.user)
        messages.success(request, _("Checking the nodes. Results appear here within seconds."))
    return redirect("orphans:list")


@require_http_methods(["GET", "HEAD", "POST"])
@never_cache
@require_fresh_proof
def delete(request: SignedInRequest, orphan_id: UUID) -> HttpResponse:
    """Confirm, then remove an orphan. A home requires its name."""
    require_operator(request.user)
    orphan = selectors.orphan(request.user, orphan_id)
    back = reverse("orphans:list")
    question = {**presenters.remove_question(orphan), "action": request.path, "back": back}
    if request.method != "POST":
        return render(request, "confirm.html", question)
    try:
        services.remove(actor=request.user, orphan_id=orphan_id, confirm=request.POST.get("confirm", ""))
    except InvalidInput as error:
        return render(request, "confirm.html", {**question, "typed_problem": error.sentence}, status=400)
    except PortalError as error:
        messages.error(request, error.sentence)
    else:
        messages.success(request, _("%(name)s is being deleted.") % {"name": orphan.name})
    return redirect(back)
