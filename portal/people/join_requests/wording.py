"""Texts of refusals of join requests. Times are ISO 8601."""

from __future__ import annotations

from datetime import datetime
from enum import StrEnum

from django.utils.translation import gettext_lazy as _
from django.utils.translation import ngettext_lazy

from portal.common.formatting import format_moment
from portal.common.reasons.wording import Params, Text
from portal.people.join_requests.codes import JoinCode


def _until(params: Params) -> Params:
    return {**params, "until": format_moment(datetime.fromisoformat(params["until"]))}


_LOOK_AT_IT = _("Open the request to see the decision.")

TEXTS: dict[StrEnum, Text] = {
    JoinCode.ALREADY_IN_TEAM: Text(
        _("You are already a member of %(team)s."), _("Choose %(team)s when you create a workspace.")
    ),
    JoinCode.ASK_TO_JOIN_LATER: Text(
        _("%(team)s denied your last request."),
        _("Ask again after %(until)s, or contact its owners."),
        prepare=_until,
    ),
    JoinCode.JOIN_APPROVED_ALREADY: Text(_("%(who)s already approved this request."), _LOOK_AT_IT),
    JoinCode.JOIN_CLOSED_ALREADY: Text(_("This request was cancelled or has expired."), _LOOK_AT_IT),
    JoinCode.JOIN_MESSAGE_TOO_LONG: Text(_("The message is too long. Use up to %(max)s characters.")),
    JoinCode.JOIN_DENIED_ALREADY: Text(_("%(who)s already denied this request."), _LOOK_AT_IT),
    JoinCode.NOBODY_JOINS_ALONE: Text(
        _("You cannot approve your own request to join."), _("Ask an owner or an operator to decide.")
    ),
    JoinCode.NO_SUCH_JOIN_REQUEST: Text(
        _("Join request not found."), _("Check your inbox for open requests.")
    ),
    JoinCode.ONLY_REQUESTER_CANCELS_JOIN: Text(
        _("Only the requester, %(username)s, can cancel this request."), _("Deny it with a note instead.")
    ),
    JoinCode.JOIN_DENIAL_NEEDS_NOTE: Text(_("A denial needs a note. Enter one for the requester.")),
    JoinCode.TOO_MANY_JOIN_REQUESTS: Text(
        ngettext_lazy(
            "You already have %(limit)d open join request.",
            "You already have %(limit)d open join requests.",
            "limit",
        ),
        _("Cancel one, or wait for a decision."),
    ),
    JoinCode.TOO_MANY_JOIN_REQUESTS_A_DAY: Text(
        ngettext_lazy(
            "You made %(limit)d join request in the last 24 hours.",
            "You made %(limit)d join requests in the last 24 hours.",
            "limit",
        ),
        _("Ask again tomorrow, or contact the team's owners."),
    ),
}
