"""The calendar and pages of reservations. Their contexts are documented in templates/reservations/."""

from __future__ import annotations

from datetime import UTC, date, datetime
from typing import Any
from uuid import UUID

from django.contrib import messages
from django.http import HttpResponse
from django.shortcuts import redirect, render
from django.utils import timezone
from django.utils.dateparse import parse_date, parse_datetime
from django.utils.translation import gettext as _
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_http_methods

from portal.common import etags
from portal.common.errors import InvalidInput, PortalError
from portal.common.formatting import format_amount, format_resource, format_time_span
from portal.common.htmx import requests_element
from portal.common.reasons.codes import CommonCode
from portal.common.reasons.reason import Reason
from portal.common.texts import strip_nul
from portal.common.typed_requests import SignedInRequest
from portal.people.accounts import selectors as accounts
from portal.people.accounts.models import Team
from portal.quota.limits import policies, resources
from portal.quota.limits.forms import parse_amount
from portal.quota.limits.selectors import limits
from portal.quota.reservations import policies as decisions
from portal.quota.reservations import presenters, selectors, services, slots
from portal.quota.reservations.codes import ReservationCode
from portal.quota.reservations.models import Reservation, ReservationState


@require_http_methods(["GET", "HEAD", "POST"])
@never_cache
def board(request: SignedInRequest) -> HttpResponse:
    """Show a week of reservations and the request form with a live availability check."""
    user = request.user
    data = request.POST if request.method == "POST" else request.GET
    error: PortalError | None = None
    if request.method == "POST":
        try:
            reservation = _request(request)
        except PortalError as refused:
            error = refused
        else:
            messages.success(request, _made_message(reservation))
            return redirect(services.url(reservation))
    bookable = selectors.bookable_amounts()
    form = {
        name: strip_nul(data.get(name, ""))
        for name in ("title", "team", "resource", "amount", "starts", "ends")
    }
    if requests_element(request, "check"):
        return render(request, "reservations/calendar.html#check", {"check": _check(form)})
    today = timezone.now().date()
    first = _day(request.GET.get("week", "")) or today
    start, end = presenters.week_bounds(first)
    rows = list(
        selectors.reservations_for(user)
        .exclude(state=ReservationState.CANCELLED)
        .filter(starts_at__lt=end, ends_at__gt=start)
        .order_by("starts_at", "pk")
    )
    visible_teams: Any = selectors.known_teams(user)
    teams = (
        list(accounts.own_teams(user)) if not policies.may_book(user) else list(Team.objects.order_by("name"))
    )
    context = {
        "week": presenters.week(first, rows, bookable, visible_teams, today),
        "rows": [
            (
                row,
                presenters.format_amounts(slots.subtract_models_from_total(row.amounts)),
                visible_teams is None or row.team_id in visible_teams,
            )
            for row in rows
        ],
        "waiting": list(selectors.reservations_to_decide(user)[:50]),
        "teams": [team for team in teams if policies.may_reserve(user, team)],
        "choices": [
            (name, format_resource(name), format_amount(name, amount))
            for name, amount in bookable.items()
            if name != resources.GPU
        ],
        "form": form,
        "error": error,
        "check": _check(form) if form["amount"] and form["starts"] else None,
        "sees_permissions": policies.sees_every_team(user),
    }
    return render(request, "reservations/calendar.html", context, status=error.status if error else 200)


def _made_message(reservation: Reservation) -> str:
    booked = reservation.state == ReservationState.BOOKED
    text = _("“%(title)s” is booked.") if booked else _("“%(title)s” requested. An approver decides.")
    return text % {"title": reservation.title}


def _request(request: SignedInRequest) -> Reservation:
    data = request.POST
    return services.request(
        actor=request.user,
        team=limits.team_for(request.user, strip_nul(data.get("team", ""))),
        title=data.get("title", ""),
        amounts=slots.add_models_to_total(_amounts(data.get("resource", ""), data.get("amount", ""))),
        starts_at=_moment(data.get("starts", ""), "starts_at"),
        ends_at=_moment(data.get("ends", ""), "ends_at"),
        note=data.get("note", ""),
    )


def _amounts(resource: str, amount: str) -> dict[str, int]:
    resource = strip_nul(resource)
    if not resource:
        missing = Reason(ReservationCode.CHOOSE_RESOURCE)
        raise InvalidInput(missing, errors={"resource": [missing]})
    return {resource: parse_amount(strip_nul(amount), resource, "amount")}


def _moment(text: str, field: str) -> datetime:
    """Parse a date and time from a browser as UTC. Raises `InvalidInput`."""
    try:
        moment = parse_datetime(strip_nul(text))
    except ValueError:
        moment = None
    if moment is None:
        wrong = Reason(ReservationCode.TIME_NOT_UNDERSTOOD)
        raise InvalidInput(wrong, errors={field: [wrong]})
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)


def _day(text: str) -> date | None:
    try:
        return parse_date(strip_nul(text))
    except ValueError:
        return None


def _check(form: dict[str, str]) -> selectors.Check | None:
    """Return the availability of the form's values; None while they are incomplete or invalid."""
    try:
        amounts = slots.add_models_to_total(_amounts(form["resource"], form["amount"]))
        starts, ends = _moment(form["starts"], "starts_at"), _moment(form["ends"], "ends_at")
    except PortalError:
        return None
    return selectors.check(amounts, starts, ends) if starts < ends else None


@require_http_methods(["GET", "HEAD", "POST"])
@never_cache
def reservation(request: SignedInRequest, reservation_id: UUID) -> HttpResponse:
    """Show one reservation; approve, deny or cancel it."""
    row = selectors.reservation_by_id(request.user, reservation_id)
    if request.method == "POST":
        try:
            row = _act(request, row)
        except PortalError as error:
            messages.error(request, error.sentence)
        return redirect(services.url(row))
    over = row.ends_at <= timezone.now()
    open_ = row.state == ReservationState.REQUESTED and not over
    context = {
        "row": row,
        "what": presenters.format_amounts(slots.subtract_models_from_total(row.amounts)),
        "span": format_time_span(row.starts_at, row.ends_at),
        "over": over,
        "titled": policies.may_view_team(request.user, row.team),
        "may_decide": open_ and decisions.may_decide(request.user, row),
        "others_decide": open_ and policies.may_book(request.user),
        "may_cancel": not over
        and row.state != ReservationState.CANCELLED
        and policies.may_reserve(request.user, row.team),
        "beyond": selectors.quota_excess_sentences(row.team, row.amounts) if open_ else [],
        "check": selectors.check(row.amounts, row.starts_at, row.ends_at, but=row.pk) if open_ else None,
    }
    return render(request, "reservations/reservation.html", context)


def _act(request: SignedInRequest, row: Reservation) -> Reservation:
    action, expected = request.POST.get("do", ""), etags.expected_versions(request)
    if action == "approve":
        return services.approve(actor=request.user, reservation_id=row.pk, expected=expected)
    if action == "deny":
        note = request.POST.get("note", "")
        return services.deny(actor=request.user, reservation_id=row.pk, note=note, expected=expected)
    if action == "cancel":
        return services.cancel(actor=request.user, reservation_id=row.pk, expected=expected)
    raise InvalidInput(Reason(CommonCode.CHOOSE_WHAT_TO_DO))
