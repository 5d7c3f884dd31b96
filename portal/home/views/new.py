"""The page that asks for a new workspace."""

from __future__ import annotations

from urllib.parse import urlencode

from django.http import HttpResponse
from django.shortcuts import redirect, render
from django.urls import reverse
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_http_methods

from portal.accounts import selectors as accounts
from portal.catalog import selectors as catalog
from portal.common.errors import InvalidInput, PortalError
from portal.common.htmx import wants
from portal.common.reasons.codes import CommonCode
from portal.common.reasons.reason import Reason
from portal.common.requests import SignedInRequest
from portal.common.texts import storable
from portal.home.presenters import new_workspace
from portal.workspaces import services
from portal.workspaces.views import to_workspace


@require_http_methods(["GET", "HEAD", "POST"])
@never_cache
def new(request: SignedInRequest) -> HttpResponse:
    """Choose what, how big and for whom; the form asks for verdicts as it changes, and starts."""
    data = request.POST if request.method == "POST" else request.GET
    chosen = {name: data.get(name, "") for name in ("template", "flavor", "team")}
    error: PortalError | None = None
    if request.method == "POST" and "ask" in data:
        return _to_ask(request, chosen, data.get("name", ""))
    if request.method == "POST" and "check" not in data:
        try:
            return _create(request, chosen, data.get("name", ""))
        except PortalError as refused:
            error = refused
    choice = new_workspace.choice(request.user, **chosen)
    suggested = ""
    if choice.team and choice.template:
        suggested = services.free_name(actor=request.user, team=choice.team, template=choice.template)
    name = data.get("name", "")
    # A name that the person has not touched follows the choice of template and team.
    rename = name in ("", data.get("suggested", ""))
    context = {
        "choice": choice,
        "name": suggested if rename else name,
        "suggested": suggested,
        "hours": storable(data.get("hours", ""))[:6],
    }
    if wants(request, "choice"):
        return render(request, "home/new.html#choice", context | {"oob": True, "rename": rename})
    problems = error.field_errors if error else {}
    context |= {
        "teams": accounts.own_teams(request.user),
        "name_problems": problems.get("name", []),
        "error": error,
    }
    return render(request, "home/new.html", context, status=error.status if error else 200)


def _create(request: SignedInRequest, chosen: dict[str, str], name: str) -> HttpResponse:
    for field in ("template", "flavor", "team"):
        if not chosen[field]:
            raise InvalidInput(Reason(CommonCode.FIRST_CHOICE_MISSING, {"field": field}))
    workspace = services.create(
        actor=request.user,
        team=accounts.team_by_slug(request.user, chosen["team"]),
        template=catalog.template_by_slug(chosen["template"]),
        flavor=catalog.flavor_by_slug(chosen["flavor"]),
        name=name,
        expected_s=_seconds(request.POST.get("hours", "")),
    )
    return to_workspace(workspace, opening=True)


def _seconds(hours: str) -> int | None:
    """What was typed as hours, in seconds; None for nothing. Raises `InvalidInput`."""
    text = storable(hours).strip().replace(",", ".")
    if not text:
        return None
    try:
        return round(float(text) * 3600)
    except (ValueError, OverflowError):
        raise InvalidInput(Reason(CommonCode.HOURS_NOT_UNDERSTOOD)) from None


def _to_ask(request: SignedInRequest, chosen: dict[str, str], name: str) -> HttpResponse:
    """On to the form that asks for what is missing; it makes the workspace, which waits for the answer."""
    verdict = new_workspace.choice(request.user, **chosen).verdict
    query = {**chosen, "name": name}
    if verdict is not None and verdict.ask is not None:
        query |= {
            "kind": verdict.ask.kind,
            "resource": verdict.ask.resource,
            "amount": str(verdict.ask.amount),
        }
    return redirect(f"{reverse('quota_requests:ask')}?{urlencode(query)}")
