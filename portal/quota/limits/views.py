"""Member caps on a team's page, and the page of all limits (templates/quotas/limits.html)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from django.contrib import messages
from django.db import transaction
from django.http import HttpResponse, QueryDict
from django.shortcuts import redirect, render
from django.urls import reverse
from django.utils.translation import gettext as _
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_http_methods

from portal.common import etags
from portal.common.errors import InvalidInput, NotFound, PortalError
from portal.common.formatting import format_resource, format_resource_amount, format_thousandths
from portal.common.htmx import requests_element
from portal.common.reasons.reason import Reason
from portal.common.texts import strip_nul
from portal.common.typed_requests import SignedInRequest
from portal.people.accounts import selectors as accounts
from portal.people.accounts.codes import AccountCode
from portal.people.accounts.models import Team, User
from portal.quota.limits import policies
from portal.quota.limits.codes import QuotaCode
from portal.quota.limits.forms import parse_amount, parse_amount_or_none, parse_number
from portal.quota.limits.models import Cohort
from portal.quota.limits.presenters.limit_board import LimitBoard, board_of
from portal.quota.limits.selectors.limits import share_of
from portal.quota.limits.services import cohorts, limits
from portal.quota.limits.services.limits import LimitWrite
from portal.quota.limits.types import Fungibility

WEIGHT = 1000
PLACE_VERSION = "place_version"
"""Form field with the version of a row's place in the tree (a team's share, a cohort)."""


@require_http_methods(["GET", "HEAD", "POST"])
def team_caps(request: SignedInRequest, slug: str) -> HttpResponse:
    """Set or delete a member's cap. A GET, as after signing in again, only shows the team."""
    if request.method != "POST":
        return redirect("home:team", slug)
    team = accounts.team_by_slug(request.user, slug)
    policies.require_set_member_caps(request.user, team)
    username = strip_nul(request.POST.get("username", ""))
    member = username or _("each member")
    expected = etags.expected_versions(request)
    try:
        user = User.objects.filter(username=username).first() if username else None
        if username and user is None:
            raise InvalidInput(Reason(AccountCode.NO_SUCH_USER, {"username": username}))
        resource = limits.clean_resource(strip_nul(request.POST.get("resource", "")))
        if request.POST.get("remove"):
            done = limits.remove_member_cap(
                actor=request.user, team=team, user=user, resource=resource, expected=expected
            )
            text = _("Cap for %(who)s removed.") % {"who": member}
        else:
            amount = parse_amount(request.POST.get("amount", ""), resource, "amount")
            done = limits.set_member_cap(
                actor=request.user,
                team=team,
                user=user,
                resource=resource,
                amount=amount,
                expected=expected,
            )
            text = _("Cap for %(who)s set to %(amount)s.") % {
                "who": member,
                "amount": format_resource_amount(resource, amount),
            }
    except PortalError as error:
        messages.error(request, error.sentence, extra_tags="caps")
    else:
        messages.success(request, text, extra_tags="caps")
        for note in done.notes:
            messages.warning(request, note, extra_tags="caps")
    return redirect(f"{reverse('home:team', args=[slug])}#caps")


@require_http_methods(["GET", "HEAD", "POST"])
@never_cache
def board(request: SignedInRequest) -> HttpResponse:
    """Show and edit the tree for one resource, with site limits and rates. For operators."""
    if request.method != "POST":
        policies.require_see_limits(request.user)
        return _render(request, board_of(request.GET))
    policies.require_set_limits(request.user)
    data = request.POST
    try:
        with transaction.atomic():
            done, text = _execute(request.user, data)
    except PortalError as error:
        # Preserve the input of the row in edit.
        shown = board_of(data, problem=error.sentence, typed=data)
        return _render(request, shown, status=200 if requests_element(request, "board") else 400)
    if not requests_element(request, "board"):
        (messages.success if done.changed else messages.info)(request, text)
        for note in done.notes:
            messages.warning(request, note)
        return redirect(f"{reverse('quotas:limits')}?{_query_string(data)}")
    after = QueryDict(mutable=True)
    after["resource"] = data.get("resource", "")
    after["q"] = data.get("q", "")
    return _render(request, board_of(after, message=text, notes=done.notes, saved=data.get("row", "")))


def _query_string(data: QueryDict) -> str:
    """Return the query with resource and search, without the edited row."""
    query = QueryDict(mutable=True)
    for name in ("resource", "q"):
        if value := data.get(name, ""):
            query[name] = strip_nul(value)
    return query.urlencode()


def _render(request: SignedInRequest, shown: LimitBoard, status: int = 200) -> HttpResponse:
    name = "quotas/limits.html#board" if requests_element(request, "board") else "quotas/limits.html"
    context = {"board": shown, "may_set": policies.may_set_limits(request.user)}
    return render(request, name, context, status=status)


# --- form actions ------------------------------------------------------------------------------------


def _execute(actor: User, data: QueryDict) -> tuple[LimitWrite, str]:
    """Execute the form's action. Returns the change and its message."""
    actions: dict[str, Callable[[User, QueryDict], tuple[LimitWrite, str]]] = {
        "save": _save,
        "remove": _remove,
        "create-cohort": _create_cohort,
        "delete-cohort": _delete_cohort,
        "site": _site,
        "rate": _rate,
    }
    act = actions.get(data.get("action", ""))
    if act is None:
        raise InvalidInput(Reason(QuotaCode.NO_SUCH_FORM))
    return act(actor, data)


def _resource(data: QueryDict) -> str:
    return limits.clean_resource(strip_nul(data.get("resource", "")))


def _row(data: QueryDict) -> Team | Cohort:
    kind, _, slug = strip_nul(data.get("row", "")).partition(":")
    model: Any = {"team": Team, "cohort": Cohort}.get(kind)
    match = model.objects.filter(slug=slug).first() if model else None
    if match is None:
        raise NotFound(Reason(QuotaCode.ROW_GONE))
    row: Team | Cohort = match
    return row


def _owner(row: Team | Cohort) -> dict[str, Any]:
    return {"team": row} if isinstance(row, Team) else {"cohort": row}


def _cohort(slug: str) -> Cohort | None:
    if not slug:
        return None
    cohort = Cohort.objects.filter(slug=strip_nul(slug)).first()
    if cohort is None:
        raise NotFound(Reason(QuotaCode.COHORT_GONE))
    return cohort


def _save(actor: User, data: QueryDict) -> tuple[LimitWrite, str]:
    """Save the quota of a row and its place in the tree, all or nothing."""
    row, resource = _row(data), _resource(data)
    weight = parse_number(data.get("weight", "1"), WEIGHT, "weight")
    parent = _cohort(data.get("cohort", ""))
    before = _place(row)
    expected, placed = (
        etags.versions_expected_in_form(data),
        etags.versions_expected_in_form(data, PLACE_VERSION),
    )
    if isinstance(row, Team):
        cohorts.set_share(
            actor=actor,
            team=row,
            cohort=parent,
            weight_milli=weight,
            reclaim=data.get("reclaim") == "on",
            expected=placed,
        )
    else:
        row = cohorts.change_cohort(
            actor=actor,
            cohort=row,
            name=data.get("name", row.name),
            parent=parent,
            weight_milli=weight,
            fungibility=Fungibility(data.get("borrow_first") == "on", data.get("preempt_first") == "on"),
            expected=placed,
        )
    moved = before != _place(row)
    quota = parse_amount_or_none(data.get("quota", ""), resource, "quota")
    borrowing = parse_amount_or_none(data.get("borrowing_limit", ""), resource, "borrowing_limit")
    lending = parse_amount_or_none(data.get("lending_limit", ""), resource, "lending_limit")
    label = format_resource(resource)
    if quota is None and borrowing is None and lending is None:
        done = limits.remove_quota(actor=actor, **_owner(row), resource=resource, expected=expected)
        text = _("%(row)s has no quota of %(resource)s.") % {"row": row.name, "resource": label}
        return LimitWrite(done.changed or moved, done.reasons), text if done.changed else _move_message(
            row, moved
        )
    done = limits.set_quota(
        actor=actor,
        **_owner(row),
        resource=resource,
        quota=quota or 0,
        borrowing_limit=borrowing,
        lending_limit=lending,
        expected=expected,
    )
    amount = format_resource_amount(resource, quota or 0)
    text = _("Quota of %(row)s set to %(amount)s.") % {"row": row.name, "amount": amount}
    return LimitWrite(done.changed or moved, done.reasons), text if done.changed else _move_message(
        row, moved
    )


def _move_message(row: Team | Cohort, moved: bool) -> str:
    text = _("%(row)s saved.") if moved else _("%(row)s unchanged.")
    return text % {"row": row.name}


def _place(row: Team | Cohort) -> tuple[Any, ...]:
    if isinstance(row, Cohort):
        return row.version_state
    share = share_of(row)
    return share.cohort_id, share.weight_milli, share.reclaim


def _remove(actor: User, data: QueryDict) -> tuple[LimitWrite, str]:
    row, resource = _row(data), _resource(data)
    done = limits.remove_quota(
        actor=actor, **_owner(row), resource=resource, expected=etags.versions_expected_in_form(data)
    )
    label = format_resource(resource)
    return done, _("%(row)s has no quota of %(resource)s.") % {"row": row.name, "resource": label}


def _create_cohort(actor: User, data: QueryDict) -> tuple[LimitWrite, str]:
    cohort = cohorts.create_cohort(
        actor=actor,
        slug=data.get("slug", "").strip(),
        name=data.get("name", ""),
        parent=_cohort(data.get("cohort", "")),
    )
    text = _("Cohort %(name)s created. Edit teams to add them to it.")
    return LimitWrite(True), text % {"name": cohort.name}


def _delete_cohort(actor: User, data: QueryDict) -> tuple[LimitWrite, str]:
    row = _row(data)
    if isinstance(row, Team):
        raise InvalidInput(Reason(QuotaCode.ONLY_COHORTS_DELETED))
    cohorts.delete_cohort(
        actor=actor, cohort=row, expected=etags.versions_expected_in_form(data, PLACE_VERSION)
    )
    return LimitWrite(True), _("Cohort %(name)s deleted.") % {"name": row.name}


def _site(actor: User, data: QueryDict) -> tuple[LimitWrite, str]:
    resource, expected = _resource(data), etags.versions_expected_in_form(data)
    amount = parse_amount_or_none(data.get("amount", ""), resource, "amount")
    if amount is None:
        done = limits.remove_site_limit(actor=actor, resource=resource, expected=expected)
        text = _("Site limit of %(resource)s removed.")
        return done, text % {"resource": format_resource(resource)}
    done = limits.set_site_limit(actor=actor, resource=resource, amount=amount, expected=expected)
    text = _("Site limit set to %(amount)s.")
    return done, text % {"amount": format_resource_amount(resource, amount)}


def _rate(actor: User, data: QueryDict) -> tuple[LimitWrite, str]:
    resource, expected = _resource(data), etags.versions_expected_in_form(data)
    label = format_resource(resource)
    entered = data.get("rate", "")
    if not entered.strip():
        done = limits.remove_rate(actor=actor, resource=resource, expected=expected)
        return done, _("Rate of %(resource)s: 1 GPU-hour per hour (default).") % {"resource": label}
    rate = parse_number(entered, 1000, "rate")
    done = limits.set_rate(actor=actor, resource=resource, rate_milli=rate, expected=expected)
    text = _("Rate of %(resource)s: %(rate)s GPU-hours per hour.")
    return done, text % {"resource": label, "rate": format_thousandths(rate, 3)}
