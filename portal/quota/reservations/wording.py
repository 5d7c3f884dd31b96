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
    found = {**params, "resource": format_resource(resource)}
    if "capacity" in params:
        found["capacity"] = format_resource_amount(resource, params["capacity"])
    for name in ("booked", "left", "wanted"):
        if name in params:
            found[name] = format_amount(resource, params[name])
    return found


def _decided(params: Params) -> Params:
    by = gettext(" by %(username)s") % {"username": params["by"]} if params["by"] else ""
    return {**params, "by": by}


_MAX_HOLDERS = 3
_CALENDAR = _("Look at the calendar.")


def _clash(params: Params) -> Params:
    """Format the holders at the first conflict, and what would fit."""
    resource, holders = params["resource"], params["holders"]
    named = [
        gettext("%(amount)s by %(team)s") % {"amount": format_amount(resource, amount), "team": team}
        for team, amount in holders[:_MAX_HOLDERS]
    ]
    words = ", ".join(named)
    if (more := len(holders) - _MAX_HOLDERS) > 0:
        words += ngettext(" and %(count)s more team", " and %(count)s more teams", more) % {"count": more}
    return {
        **_advised(params),
        "at": format_day_time(datetime.fromisoformat(params["at"])),
        "until": format_day_time(datetime.fromisoformat(params["until"])),
        "holders": words,
    }


def _advised(params: Params) -> Params:
    """Format the amounts, and as `advice` a smaller amount, a later start, or another model."""
    amount = format_amount(params["resource"], params["left"])
    start = params.get("next_start")
    values = {"amount": amount, "start": format_moment(datetime.fromisoformat(start)) if start else ""}
    if params["left"] > 0 and start:
        advice = gettext("Take at most %(amount)s or begin at %(start)s.")
    elif start:
        advice = gettext("Begin at %(start)s.")
    elif params["left"] > 0:
        advice = gettext("Take at most %(amount)s.")
    else:
        advice = gettext("Choose another model.")
    return {**_amounts(params), "advice": advice % values}


def _fits(params: Params) -> Params:
    """Format `peaks`: resource, peak of amounts booked by others, and capacity."""
    return {"peaks": "; ".join(_peak(*peak) for peak in params["peaks"])}


def _peak(resource: str, booked: int, capacity: int) -> str:
    total = format_resource_amount(resource, capacity)
    if not booked:
        return gettext("%(total)s, none booked") % {"total": total}
    words = {"booked": format_amount(resource, booked), "total": total}
    return gettext("%(booked)s of %(total)s booked by others") % words


def _known(params: Params) -> Params:
    known = ", ".join(params["known"]) or gettext("none at present")
    return {**_amounts(params), "known": known}


TEXTS: dict[StrEnum, Text] = {
    ReservationCode.BEYOND_QUOTA: Text(
        _("%(team)s may hold %(capacity)s at most by its quota: the rest would lie unused."),
        prepare=_amounts,
    ),
    ReservationCode.BOOKED_BY_OTHERS: Text(
        _(
            "%(booked)s of %(capacity)s are booked at %(at)s UTC (%(holders)s), until %(until)s at least:"
            " %(left)s left, %(wanted)s wanted."
        ),
        "%(advice)s",
        prepare=_clash,
    ),
    ReservationCode.BOOKED_ALREADY: Text(
        _("“%(title)s” is booked already%(by)s."), _CALENDAR, prepare=_decided
    ),
    ReservationCode.CANCELLED_ALREADY: Text(
        _("“%(title)s” is cancelled already%(by)s."), _CALENDAR, prepare=_decided
    ),
    ReservationCode.CHOOSE_RESOURCE: Text(_("Choose what to reserve.")),
    ReservationCode.DENIAL_WITHOUT_NOTE: Text(_("Write a note for the requester.")),
    ReservationCode.END_NOT_IN_FUTURE: Text(_("Choose an end in the future, or cancel it.")),
    ReservationCode.ENDS_TOO_LATE: Text(_("Choose an end within a year.")),
    ReservationCode.FITS: Text(_("Fits: %(peaks)s in that time."), prepare=_fits),
    ReservationCode.MORE_THAN_SITE_HAS: Text(
        _("The site has %(capacity)s: %(wanted)s can never be had."), prepare=_amounts
    ),
    ReservationCode.NOTHING_TO_CANCEL: Text(_("Its time is over."), _("There is nothing to cancel.")),
    ReservationCode.NOT_RESERVABLE: Text(
        _("This site has no %(resource)s to reserve. Accelerators are reserved: %(known)s."), prepare=_known
    ),
    ReservationCode.NO_SUCH_RESERVATION: Text(_("There is no such reservation that you may see."), _CALENDAR),
    ReservationCode.ONLY_LESS: Text(
        _("Of what is booked a part can be given back, but no more be taken without approval."),
        _("Ask for the rest as a reservation of its own."),
    ),
    ReservationCode.NOBODY_PERMITS_THEMSELF: Text(
        _("Nobody lets themself book without approval."), _("Ask another approver for it.")
    ),
    ReservationCode.NO_SUCH_PERMISSION: Text(
        _("There is no such permission that you may see."), _("Look at the list of permissions.")
    ),
    ReservationCode.ONLY_APPROVERS_PERMIT: Text(
        _("Only approvers say who books without approval."), _("Ask an approver.")
    ),
    ReservationCode.OVER: Text(_("“%(title)s” is over."), _("Ask for a new one.")),
    ReservationCode.RESERVE_NOTHING: Text(_("Reserve more than none of %(resource)s."), prepare=_amounts),
    ReservationCode.RESOURCES_COUNT: Text(_("Name from one to %(max)s resources and how much of each.")),
    ReservationCode.SITE_TOO_SMALL: Text(
        _("The site has %(capacity)s: %(wanted)s do not fit."), "%(advice)s", prepare=_advised
    ),
    ReservationCode.START_NOT_IN_FUTURE: Text(_("Choose a start from now on.")),
    ReservationCode.TIME_NOT_UNDERSTOOD: Text(_("Say date and time, such as 2030-01-31T14:00.")),
    ReservationCode.TIME_OVER: Text(_("Its time is over."), _("Ask for another time.")),
    ReservationCode.TITLE_LENGTH: Text(_("Say in 1 to %(max)s characters what it is for.")),
    ReservationCode.TOO_SHORT: Text(_("It lasts %(minutes)s minutes at least: choose a later end.")),
    ReservationCode.WAS_CANCELLED: Text(_("“%(title)s” is cancelled."), _("Ask for a new one.")),
    ReservationCode.DELEGATE_OF_REQUESTER: Text(
        _("You are a delegate of %(username)s, who made this request."),
        _("Another approver has been notified."),
    ),
    ReservationCode.NOBODY_DECIDES_OWN: Text(
        _("You cannot decide your own request."), _("Another approver has been notified.")
    ),
}
