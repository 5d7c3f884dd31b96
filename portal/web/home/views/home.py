"""The home page: workspaces, a button that repeats the most recent setup, and free capacity."""

from __future__ import annotations

from typing import Any

from django.conf import settings
from django.core.paginator import Paginator
from django.http import HttpResponse
from django.shortcuts import redirect, render
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_POST, require_safe

from portal.catalog.environments.presenters import preparation
from portal.common.htmx import partial_of, requests_element
from portal.common.texts import strip_nul
from portal.common.typed_requests import SignedInRequest
from portal.fleet.inventory import selectors as inventory
from portal.people.accounts.policies import require_administrator
from portal.quota.limits.presenters import limits
from portal.web.fleet.presenters import pools
from portal.web.home.presenters import home as home_presenters
from portal.web.home.presenters.setup import setup_steps
from portal.workspaces import presenters, selectors
from portal.workspaces.lifecycle import LIVE, State

WORKSPACES_PER_PAGE = 24
SETUP_COOKIE = "berth-setup-hidden"
YEAR_S = 365 * 24 * 3600


@require_safe
@never_cache
def home(request: SignedInRequest) -> HttpResponse:
    """Show the user's workspaces, a button that repeats the most recent setup, and free capacity."""
    user = request.user
    if requests_element(request, "capacity"):
        free = {
            "capacities": pools.capacities(inventory.pools()),
            "team_quotas": limits.home_page_quotas(user),
        }
        return render(request, "home/home.html#capacity", free)
    if requests_element(request, "preparation"):
        return render(request, "home/home.html#preparation", {"preparation": preparation(user)})
    if requests_element(request, "no-team"):
        return render(request, "home/home.html#no-team", home_presenters.join_page_data(user))
    filters = {name: strip_nul(request.GET.get(name, "")).strip()[:100] for name in ("q", "state")}
    # Viewers have no workspaces.
    visible = selectors.workspaces_for(user).live() if user.only_views else selectors.own_workspaces(user)
    workspaces = selectors.with_words(visible, filters["q"])
    if filters["state"] in State.values:
        workspaces = workspaces.filter(state=filters["state"])
    page = Paginator(workspaces, WORKSPACES_PER_PAGE).get_page(request.GET.get("page"))
    cards = presenters.cards(user, page.object_list)
    total = visible.count()
    full_page = not requests_element(request, "list")
    last = selectors.last_choice(user) if full_page or not total else None
    context: dict[str, Any] = {
        "cards": cards,
        "page": page,
        "total": total,
        "had_one": bool(total) or last is not None,
        "filters": filters,
    }
    if full_page:
        context |= {
            "states": [(state.value, state.label) for state in State if state in LIVE],
            "last": home_presenters.last_choice(user, last),
            "preparation": preparation(user),
            "capacities": pools.capacities(inventory.pools()),
            "transient": any(card.counting for card in cards),
            "team_quotas": limits.home_page_quotas(user),
            **home_presenters.join_page_data(user),
        }
    computes_setup = full_page and user.administers and SETUP_COOKIE not in request.COOKIES
    if computes_setup:
        context["setup"] = setup_steps(user)
    response = render(request, partial_of(request, "home/home.html", "list"), context)
    if computes_setup and not context["setup"]:
        # All steps are done, so this browser need not request them again.
        _remember_setup(response)
    return response


@require_POST
def hide_setup(request: SignedInRequest) -> HttpResponse:
    """Hide the first steps in this browser."""
    require_administrator(request.user)
    response = redirect("home:home")
    _remember_setup(response)
    return response


def _remember_setup(response: HttpResponse) -> None:
    """Set a cookie that hides the first steps in this browser."""
    response.set_cookie(
        SETUP_COOKIE, "1", max_age=YEAR_S, samesite="Lax", secure=settings.HTTPS, httponly=True
    )
