"""Texts of errors about reservations, and of availability checks. Times are ISO 8601."""

from __future__ import annotations

from datetime import datetime
from enum import StrEnum

from django.utils.translation import gettext, ngettext
from django.utils.translation import gettext_lazy as _

from portal.common.formatting import (
    format_amount,
    format_day_time,
    format_moment,
    format_resource,
    format_resource_amount,
)
from portal.common.reasons.wording import Params, Text
from portal.quota.reservations.codes import ReservationCode


def _amounts(params: Params) -> Params:
    """Format `resource` and `capacity` with names, other amounts with units."""
    resource = params["resource"]
    texts = {**params, "resource": format_resource(resource)}
    if "capacity" in params:
        texts["capacity"] = format_resource_amount(resource, params["capacity"])
    for name in ("booked", "left", "wanted"):
        if name in params:
            texts[name] = format_amount(resource, params[name])
    return texts


def _format_decision(params: Params) -> Params:
    by = gettext(" by %(username)s") % {"username": params["by"]} if params["by"] else ""
    return {**params, "by": by}


_MAX_HOLDERS = 3
_CALENDAR = _("Check the calendar.")


def _clash(params: Params) -> Params:
    """Format the holders at the first conflict, and the amount or time that would fit."""
    resource, holders = params["resource"], params["holders"]
    named = [
        gettext("%(amount)s by %(team)s") % {"amount": format_amount(resource, amount), "team": team}
        for team, amount in holders[:_MAX_HOLDERS]
    ]
    text = ", ".join(named)
    if (more := len(holders) - _MAX_HOLDERS) > 0:
        text += ngettext(" and %(count)s more team", " and %(count)s more teams", more) % {"count": more}
    return {
        **_format_advice(params),
        "at": format_day_time(datetime.fromisoformat(params["at"])),
        "until": format_day_time(datetime.fromisoformat(params["until"])),
        "holders": text,
    }


def _format_advice(params: Params) -> Params:
    """Format the amounts, and as `advice` a smaller amount, a later start, or another model."""
    amount = format_amount(params["resource"], params["left"])
    start = params.get("next_start")
    values = {"amount": amount, "start": format_moment(datetime.fromisoformat(start)) if start else ""}
    if params["left"] > 0 and start:
        advice = gettext("Reserve at most %(amount)s, or start at %(start)s.")
    elif start:
        advice = gettext("Start at %(start)s.")
    elif params["left"] > 0:
        advice = gettext("Reserve at most %(amount)s.")
    else:
        advice = gettext("Choose another model.")
    return {**_amounts(params), "advice": advice % values}


def _fits(params: Params) -> Params:
    """Format `peaks`: resource, peak of amounts booked by others, and capacity."""
    return {"peaks": "; ".join(_format_peak(*peak) for peak in params["peaks"])}


def _format_peak(resource: str, booked: int, capacity: int) -> str:
    total = format_resource_amount(resource, capacity)
    if not booked:
        return gettext("%(total)s, none booked") % {"total": total}
    params = {"booked": format_amount(resource, booked), "total": total}
    return gettext("%(booked)s of %(total)s booked by others") % params


def _format_known_resources(params: Params) -> Params:
    names = ", ".join(params["known"]) or gettext("none")
    return {**_amounts(params), "known": names}


TEXTS: dict[StrEnum, Text] = {
    ReservationCode.BEYOND_QUOTA: Text(
        _("The quota of %(team)s is %(capacity)s. The team could not use the rest."),
        prepare=_amounts,
    ),
    ReservationCode.BOOKED_BY_OTHERS: Text(
        _(
            "%(booked)s of %(capacity)s booked from %(at)s UTC to at least %(until)s "
            "(%(holders)s): %(left)s left, %(wanted)s requested."
        ),
        "%(advice)s",
        prepare=_clash,
    ),
    ReservationCode.BOOKED_ALREADY: Text(
        _("“%(title)s” is already booked%(by)s."), _CALENDAR, prepare=_format_decision
    ),
    ReservationCode.CANCELLED_ALREADY: Text(
        _("“%(title)s” is already cancelled%(by)s."), _CALENDAR, prepare=_format_decision
    ),
    ReservationCode.CHOOSE_RESOURCE: Text(_("Choose what to reserve.")),
    ReservationCode.DENIAL_WITHOUT_NOTE: Text(_("Enter a note for the requester.")),
    ReservationCode.END_NOT_IN_FUTURE: Text(_("Choose an end in the future, or cancel the reservation.")),
    ReservationCode.ENDS_TOO_LATE: Text(_("Choose an end within a year.")),
    ReservationCode.FITS: Text(_("The reservation fits: %(peaks)s in this period."), prepare=_fits),
    ReservationCode.MORE_THAN_SITE_HAS: Text(
        _("The site has only %(capacity)s, not %(wanted)s. Reserve less."), prepare=_amounts
    ),
    ReservationCode.NOTHING_TO_CANCEL: Text(
        _("The period of this reservation is over."), _("There is nothing to cancel.")
    ),
    ReservationCode.NOT_RESERVABLE: Text(
        _("The site has no %(resource)s to reserve. Available accelerators: %(known)s."),
        prepare=_format_known_resources,
    ),
    ReservationCode.NO_SUCH_RESERVATION: Text(_("Reservation not found."), _CALENDAR),
    ReservationCode.ONLY_LESS: Text(
        _("A booked reservation cannot grow without approval."),
        _("Request the extra amount as a new reservation."),
    ),
    ReservationCode.NOBODY_PERMITS_THEMSELF: Text(
        _("You cannot allow yourself to book without approval."), _("Ask another approver.")
    ),
    ReservationCode.NO_SUCH_PERMISSION: Text(
        _("Permission not found."), _("Choose a permission from the list.")
    ),
    ReservationCode.ONLY_APPROVERS_PERMIT: Text(
        _("Only approvers can allow booking without approval."), _("Ask an approver.")
    ),
    ReservationCode.OVER: Text(_("“%(title)s” is over."), _("Request a new reservation.")),
    ReservationCode.RESERVE_NOTHING: Text(
        _("Enter an amount of %(resource)s greater than 0."), prepare=_amounts
    ),
    ReservationCode.RESOURCES_COUNT: Text(_("Enter 1 to %(max)s resources with an amount each.")),
    ReservationCode.SITE_TOO_SMALL: Text(
        _("The site has %(capacity)s, so %(wanted)s do not fit."), "%(advice)s", prepare=_format_advice
    ),
    ReservationCode.START_NOT_IN_FUTURE: Text(_("Choose a start in the future.")),
    ReservationCode.TIME_NOT_UNDERSTOOD: Text(_("Enter a date and time, such as 2030-01-31T14:00.")),
    ReservationCode.TIME_OVER: Text(
        _("The period of this reservation is over."), _("Request another period.")
    ),
    ReservationCode.TITLE_LENGTH: Text(_("Enter the purpose in 1 to %(max)s characters.")),
    ReservationCode.TOO_SHORT: Text(_("The minimum is %(minutes)s minutes. Choose a later end.")),
    ReservationCode.WAS_CANCELLED: Text(_("“%(title)s” is cancelled."), _("Request a new reservation.")),
    ReservationCode.DELEGATE_OF_REQUESTER: Text(
        _("You cannot decide a request from %(username)s, whose delegate you are."),
        _("Another approver has been notified."),
    ),
    ReservationCode.NOBODY_DECIDES_OWN: Text(
        _("You cannot decide your own request."), _("Another approver has been notified.")
    ),
}
