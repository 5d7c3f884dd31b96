"""Completes slugs: options for the fields of `portal.common.completion`."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from django.db.models import Q
from django.http import HttpResponse
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_safe

from portal.catalog import policies, selectors
from portal.catalog.environments import selectors as environments
from portal.common.completion import MAX_OPTIONS, Option, options_html
from portal.common.texts import strip_nul
from portal.common.typed_requests import SignedInRequest
from portal.people.accounts.models import User
from portal.people.accounts.selectors import team_by_slug, teams_for
from portal.web.catalog.environments import options_of

MAX_QUERY = 100


@require_safe
@never_cache
def completions(request: SignedInRequest, kind: str) -> HttpResponse:
    """Return options for the text in `q` or in the field named by htmx.

    `team` limits environments to those that its workspaces can use, or the site's if empty; without `team`,
    all visible environments are offered. `copy` limits entries to those whose full definition the user may
    read.
    """
    field = (request.htmx.trigger_name if request.htmx else None) or "q"
    query = strip_nul(request.GET.get(field, ""))[:MAX_QUERY]
    params = {name: strip_nul(request.GET[name]) for name in ("team", "copy") if name in request.GET}
    return HttpResponse(options_html(list(_options(request.user, kind, query, params))))


def _options(actor: User, kind: str, query: str, params: dict[str, str]) -> Iterable[Option]:
    if kind == "environment":
        slug = params.get("team")
        team = team_by_slug(actor, slug) if slug else None
        visible = (
            environments.usable_by(actor, team) if slug is not None else environments.environments_for(actor)
        )
        return options_of(environments.search(visible, query)[:MAX_OPTIONS])
    if kind == "team":
        teams = teams_for(actor)
        for term in query.split()[:8]:
            teams = teams.filter(Q(name__icontains=term) | Q(slug__icontains=term))
        return teams.values_list("slug", "name")[:MAX_OPTIONS]
    rows: Any = selectors.templates_for(actor) if kind == "template" else selectors.flavors_for(actor)
    if kind == "template" and "copy" in params:
        rows = policies.templates_with_visible_command(actor, rows)
    templates = selectors.search(rows.filter(enabled=True).order_by("position", "slug"), query)
    return [(template.slug, template.name) for template in templates[:MAX_OPTIONS]]
