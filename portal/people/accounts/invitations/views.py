"""Page to invite many people to a team: a list, its preview by line, and the results."""

from __future__ import annotations

import hashlib
from typing import Any

from django.http import HttpResponse
from django.shortcuts import render
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_http_methods

from portal.common.errors import InvalidInput, PortalError
from portal.common.reasons.reason import Reason
from portal.common.texts import strip_nul
from portal.common.typed_requests import SignedInRequest
from portal.people.accounts import policies, selectors
from portal.people.accounts.invitations import services
from portal.people.accounts.invitations.codes import InvitationCode
from portal.people.accounts.invitations.lines import MAX_PEOPLE, MAX_TEXT, parse_list
from portal.people.accounts.invitations.services import LineResult, Outcome
from portal.people.accounts.models import Role, Team


@require_http_methods(["GET", "HEAD", "POST"])
@never_cache
def invite_many(request: SignedInRequest, slug: str) -> HttpResponse:
    """Check a list, then invite its people. Links to new accounts are shown only once."""
    team = selectors.team_by_slug(request.user, slug)
    policies.require_manage_team(request.user, team)
    if request.method != "POST":
        return _page(request, team)
    text = request.POST.get("people", "")
    role = request.POST.get("role", Role.MEMBER)
    try:
        people = parse_list(text)
        if "invite" not in request.POST:
            results = services.plan(actor=request.user, team=team, people=people, default_role=role)
            return _page(request, team, results)
        if request.POST.get("checked") != _digest(text, role):
            results = services.plan(actor=request.user, team=team, people=people, default_role=role)
            changed = InvalidInput(Reason(InvitationCode.LIST_CHANGED))
            return _page(request, team, results, changed)
        results = services.invite(actor=request.user, team=team, people=people, default_role=role)
        return _page(request, team, results, done=True)
    except PortalError as error:
        return _page(request, team, error=error)


def _page(
    request: SignedInRequest,
    team: Team,
    results: list[LineResult] | None = None,
    error: PortalError | None = None,
    *,
    done: bool = False,
) -> HttpResponse:
    text = strip_nul(request.POST.get("people", ""))[:MAX_TEXT]
    role = strip_nul(request.POST.get("role", Role.MEMBER))
    outcomes = [result.outcome for result in results or ()]
    if done:
        # What is left to do.
        text = "\n".join(
            ", ".join(filter(None, (result.line.who, result.line.role)))
            for result in results or ()
            if result.outcome == Outcome.REFUSED
        )
    context: dict[str, Any] = {
        "team": team,
        "text": text,
        "role": role,
        "roles": Role.choices,
        # Refused lines come first, because the user has to decide about them.
        "results": sorted(results or (), key=lambda result: result.outcome != Outcome.REFUSED),
        "counts": [(outcome, outcomes.count(outcome)) for outcome in Outcome if outcome in outcomes],
        "refused": outcomes.count(Outcome.REFUSED),
        "to_do": outcomes.count(Outcome.INVITED) + outcomes.count(Outcome.ADDED),
        "links": [result.link for result in results or () if result.link is not None],
        "checked": _digest(request.POST.get("people", ""), request.POST.get("role", Role.MEMBER)),
        "done": done,
        "problem": error.sentence if error is not None else "",
        "may_create": services.may_create_some(request.user),
        "max_people": MAX_PEOPLE,
    }
    status = error.status if error is not None else 200
    return render(request, "accounts/invite_many.html", context, status=status)


def _digest(text: str, role: str) -> str:
    """Return a digest of a checked list, so that an edited list is checked again."""
    return hashlib.sha256(f"{role}\n{''.join(text.split())}".encode(errors="replace")).hexdigest()[:16]
