"""Pages of the quota matrix: edit in place, preview the effects, save (ADR 0153)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from django.contrib import messages
from django.http import HttpResponse, QueryDict
from django.shortcuts import redirect, render
from django.urls import reverse
from django.utils.translation import ngettext
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_http_methods

from portal.common.errors import InvalidInput, PortalError, PreconditionFailed
from portal.common.formatting import format_input
from portal.common.reasons.reason import Reason
from portal.common.texts import strip_nul
from portal.common.typed_requests import SignedInRequest
from portal.people.accounts.models import Team
from portal.quota.limits import policies
from portal.quota.limits.codes import QuotaCode
from portal.quota.limits.forms import parse_amount_or_none
from portal.quota.limits.presenters.quota_matrix import (
    MAX_COLUMNS,
    NO_QUOTA,
    entry_key,
    field_name,
    matrix_of,
)
from portal.quota.limits.services import quota_changes
from portal.quota.limits.services.quota_changes import QuotaChange


@dataclass(frozen=True, slots=True)
class Entries:
    """Entered values that differ from the quota that the user saw, by `entry_key`."""

    changes: list[QuotaChange]
    entered: Mapping[str, str]
    problems: Mapping[str, str]


@require_http_methods(["GET", "HEAD", "POST"])
@never_cache
def matrix(request: SignedInRequest) -> HttpResponse:
    """Show quotas of the teams that the actor may see. Operators preview and save changes."""
    if request.method != "POST":
        return _matrix(request)
    policies.require_set_limits(request.user)
    entries = None
    try:
        entries = _entries(request.POST)
        if entries.problems:
            return _matrix(request, entries, status=400)
        if "edit" in request.POST:
            return _matrix(request, entries)
        return _save(request, entries) if "save" in request.POST else _preview(request, entries)
    except InvalidInput as error:
        return _matrix(request, entries, problem=error, status=400)


def _matrix(
    request: SignedInRequest,
    entries: Entries | None = None,
    *,
    problem: PortalError | None = None,
    status: int = 200,
) -> HttpResponse:
    context = {
        "matrix": matrix_of(
            request.user,
            request.GET,
            entered=entries.entered if entries else None,
            problems=entries.problems if entries else None,
        ),
        "may_set": policies.may_set_limits(request.user),
        "may_see_limits": request.user.sees_all,
        "problem": problem.sentence if problem is not None else "",
        "max_columns": MAX_COLUMNS,
        "max_changes": quota_changes.MAX_CHANGES,
    }
    return render(request, "quotas/matrix.html", context, status=status)


def _preview(request: SignedInRequest, entries: Entries, *, error: PortalError | None = None) -> HttpResponse:
    effects, overtaken = quota_changes.preview(actor=request.user, changes=entries.changes)
    # The fields hold the quotas that this page shows, including changes by other users.
    fields = [
        (
            field_name(effect.team, effect.resource, effect.quota_before),
            entries.entered[entry_key(effect.team, effect.resource)],
        )
        for effect in effects.changes
    ]
    context: dict[str, Any] = {
        "effects": effects,
        "fields": fields,
        "overtaken": overtaken,
        "problem": error.message if error is not None else "",
        "back": _address(request),
    }
    return render(request, "quotas/matrix_preview.html", context, status=error.status if error else 200)


def _save(request: SignedInRequest, entries: Entries) -> HttpResponse:
    try:
        result = quota_changes.change_quotas(actor=request.user, changes=entries.changes)
    except PreconditionFailed as error:
        return _preview(request, entries, error=error)
    text = ngettext("%(count)s quota saved.", "%(count)s quotas saved.", result.changed)
    messages.success(request, text % {"count": result.changed})
    return redirect(_address(request))


def _address(request: SignedInRequest) -> str:
    """Return the URL of the matrix with its search, columns and page."""
    query = request.GET.urlencode()
    return reverse("quotas:matrix") + (f"?{query}" if query else "")


def _entries(data: QueryDict) -> Entries:
    """Parse the fields `q/<team>/<resource>/<quota seen>`. Raises `InvalidInput` if the form is damaged."""
    entered: dict[str, str] = {}
    problems: dict[str, str] = {}
    parsed: list[tuple[str, str, int | None, int | None]] = []
    for name, value in data.items():
        prefix, *place = strip_nul(name).split("/")
        if prefix != "q" or len(place) != 3:
            continue
        slug, resource, seen = place[0], place[1], _seen_quota(place[2])
        text = strip_nul(str(value)).strip()
        if text == format_input(resource, seen):
            continue
        key = entry_key(slug, resource)
        entered[key] = text
        try:
            quota = parse_amount_or_none(text, resource, "quota")
        except InvalidInput as error:
            problems[key] = error.field_errors["quota"][0]
        else:
            parsed.append((slug, resource, quota, seen))
    teams = {team.slug: team for team in Team.objects.filter(slug__in={slug for slug, *_rest in parsed})}
    changes = [
        QuotaChange(teams[slug], resource, quota, seen, checked=True)
        for slug, resource, quota, seen in parsed
        if slug in teams
    ]
    if len(changes) < len(parsed):
        raise InvalidInput(Reason(QuotaCode.ROW_GONE))
    if not entered:
        raise InvalidInput(Reason(QuotaCode.NO_CHANGES))
    return Entries(changes, entered, problems)


def _seen_quota(text: str) -> int | None:
    """Return the quota that the user saw, in base units. Raises `InvalidInput` for other text."""
    if text == NO_QUOTA:
        return None
    if not (text.isascii() and text.isdigit() and len(text) <= 16):
        raise InvalidInput(Reason(QuotaCode.NO_SUCH_FORM))
    return int(text)
