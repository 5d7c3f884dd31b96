"""Bulk actions on selected workspaces, in two steps: a preview that changes nothing, then the results.

Both are plain forms. Their URLs contain the filters of the list, to which the pages link back.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any
from uuid import UUID, uuid4

from django.contrib import messages
from django.http import HttpResponse
from django.shortcuts import redirect, render
from django.urls import reverse
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_http_methods

from portal.common.errors import InvalidInput, PortalError
from portal.common.reasons.codes import CommonCode
from portal.common.reasons.reason import Reason
from portal.common.texts import parse_hours, strip_nul
from portal.common.typed_requests import SignedInRequest
from portal.scheduling import bulk_acts, operator_moves
from portal.scheduling.bulk_acts import Act, Terms
from portal.web.workspace_list import presenters
from portal.web.workspace_list.codes import SelectionCode
from portal.web.workspace_list.selectors import selection_of
from portal.workspaces import extending, owner_messages
from portal.workspaces.bulk import MAX_AT_ONCE
from portal.workspaces.codes import WorkspaceCode

MAX_NONCE_LENGTH = 64


@require_http_methods(["GET", "HEAD", "POST"])
@never_cache
def act(request: SignedInRequest) -> HttpResponse:
    """Preview or confirm an action. A GET, for example after a new sign-in, only shows the list."""
    back = f"{reverse('workspace_list:list')}?{request.GET.urlencode()}"
    if request.method != "POST":
        return redirect(back)
    try:
        chosen = Act(request.POST.get("act", ""))
    except ValueError:
        raise InvalidInput(Reason(CommonCode.CHOOSE_WHAT_TO_DO)) from None
    bulk_acts.require_act(request.user, chosen)
    if "confirm" in request.POST:
        return _confirm(request, chosen, back)
    ids = _selected(request)
    if not ids:
        messages.error(request, InvalidInput(Reason(SelectionCode.NOTHING)).sentence)
        return redirect(back)
    return _preview(request, chosen, ids, back)


def _preview(
    request: SignedInRequest, act: Act, ids: list[UUID], back: str, error: PortalError | None = None
) -> HttpResponse:
    hours = strip_nul(request.POST.get("hours", ""))[:6] or f"{extending.OFFERED_S / 3600:g}"
    terms = _terms(request)
    try:
        terms = replace(terms, seconds=_seconds(hours))
    except InvalidInput as refused:
        error = refused
    plan = bulk_acts.plan(request.user, act, ids, terms)
    takes_all = bool(request.POST.get("all"))
    context: dict[str, Any] = {
        "act": act,
        "plan": plan,
        "hours": hours,
        "text": terms.text,
        "node": terms.node,
        "nodes": presenters.target_nodes([*plan.done, *plan.refused]) if act == Act.MOVE else None,
        "max_text": operator_moves.MAX_REASON if act == Act.MOVE else owner_messages.MAX_TEXT,
        "problem": error.sentence if error is not None else "",
        "once": strip_nul(request.POST.get("once", ""))[:MAX_NONCE_LENGTH] or uuid4().hex,
        "more": takes_all and selection_of(request.user, request.GET).count() > len(ids),
        "max_at_once": MAX_AT_ONCE,
        "back": back,
    }
    return render(request, "workspace_list/preview.html", context, status=error.status if error else 200)


def _confirm(request: SignedInRequest, act: Act, back: str) -> HttpResponse:
    seen = _seen(request)
    try:
        terms = _terms(request)
        if act == Act.EXTEND:
            terms = replace(terms, seconds=_seconds(request.POST.get("hours", "")))
        once = strip_nul(request.POST.get("once", ""))[:MAX_NONCE_LENGTH] or uuid4().hex
        lines = bulk_acts.perform(request.user, act, seen, terms, form_id=once)
    except PortalError as error:
        # Nothing was done. Show the form again, with the reason and the entered values.
        return _preview(request, act, list(seen), back, error)
    context = {
        "act": act,
        "lines": sorted(lines, key=lambda line: line.ok),
        "done": sum(line.ok for line in lines),
        "refused": sum(not line.ok for line in lines),
        "back": back,
    }
    return render(request, "workspace_list/results.html", context)


def _terms(request: SignedInRequest) -> Terms:
    """Return the text and node in the form. Hours are parsed only for an extension."""
    return Terms(
        text=strip_nul(request.POST.get("text", "")),
        node=strip_nul(request.POST.get("node", "")).strip()[: operator_moves.MAX_NODE],
    )


def _seconds(hours: str) -> int:
    seconds = parse_hours(hours)
    if seconds is None:
        raise InvalidInput(Reason(CommonCode.HOURS_NOT_UNDERSTOOD))
    return seconds


def _selected(request: SignedInRequest) -> list[UUID]:
    """Return the ids of the selected rows, or of the first rows that match the filters.

    Raises `InvalidInput` for invalid ids, and for more than `MAX_AT_ONCE`.
    """
    if request.POST.get("all"):
        return selection_of(request.user, request.GET).first(MAX_AT_ONCE)
    return list({**_seen(request), **_seen(request, "refused")})


def _seen(request: SignedInRequest, field: str = "workspace") -> dict[UUID, str]:
    """Return the workspaces in the form with their fingerprints, or "" for no fingerprint."""
    seen: dict[UUID, str] = {}
    for choice in request.POST.getlist(field):
        key, _dot, fingerprint = choice.partition(".")
        try:
            seen[UUID(key)] = fingerprint
        except ValueError:
            raise InvalidInput(Reason(WorkspaceCode.NOT_VISIBLE)) from None
    if len(seen) > MAX_AT_ONCE:
        raise InvalidInput(Reason(SelectionCode.TOO_MANY, {"maximum": MAX_AT_ONCE}))
    return seen
