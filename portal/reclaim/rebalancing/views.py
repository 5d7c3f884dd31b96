"""Pages of proposals to move running work. Their contexts are documented in templates/reclaim/."""

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

from portal.common.errors import NotAllowed, NotFound, PortalError
from portal.common.htmx import partial_of
from portal.common.typed_requests import SignedInRequest
from portal.fleet.inventory.models import RebalancingPolicy
from portal.people.accounts.policies import require_operator
from portal.reclaim.rebalancing import policies, presenters, selectors, services

ROWS_PER_PAGE = 50
DECIDED_SHOWN = 20


@require_safe
@never_cache
def listing(request: SignedInRequest) -> HttpResponse:
    """Show open proposals, recent decisions, and workspaces with low scores."""
    page = Paginator(selectors.open_proposals(request.user), ROWS_PER_PAGE).get_page(request.GET.get("page"))
    discontent = selectors.discontent(request.user)
    context = {
        "page": page,
        "rows": presenters.rows(list(page.object_list)),
        "decided": presenters.rows(list(selectors.decided_proposals(request.user)[:DECIDED_SHOWN])),
        "discontent": presenters.discontent_rows(list(discontent[:ROWS_PER_PAGE])),
        "discontent_count": discontent.count(),
        "automatic": policies.names_of_pools_with(RebalancingPolicy.AUTOMATIC),
        "off": policies.names_of_pools_with(RebalancingPolicy.OFF),
        "may": request.user.operates,
    }
    return render(request, partial_of(request, "reclaim/rebalancing.html", "live"), context)


@require_http_methods(["GET", "HEAD", "POST"])
@never_cache
def apply(request: SignedInRequest, proposal_id: UUID) -> HttpResponse:
    """Confirm, then apply a proposal. The page shows which work is interrupted."""
    require_operator(request.user)
    (row,) = presenters.rows([selectors.proposal(request.user, proposal_id)])
    back = reverse("reclaim:rebalancing")
    if request.method != "POST":
        question = {**presenters.question(row), "action": request.path, "back": back}
        return render(request, "confirm.html", question)
    try:
        services.apply(actor=request.user, proposal_id=proposal_id)
    except (NotAllowed, NotFound):
        raise
    except PortalError as error:
        messages.error(request, error.sentence)
    else:
        messages.success(request, _("%(names)s: move started, users notified.") % {"names": row.names})
    return redirect(back)


@require_http_methods(["GET", "HEAD", "POST"])
def dismiss(request: SignedInRequest, proposal_id: UUID) -> HttpResponse:
    """Dismiss a proposal for a day, or cancel its moves. A GET only shows the list."""
    require_operator(request.user)
    selectors.proposal(request.user, proposal_id)
    if request.method == "POST":
        try:
            services.dismiss(actor=request.user, proposal_id=proposal_id)
        except (NotAllowed, NotFound):
            raise
        except PortalError as error:
            messages.error(request, error.sentence)
        else:
            messages.success(request, _("Dismissed. Not proposed again for 1 day."))
    return redirect("reclaim:rebalancing")
