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


_LOOK_AT_IT = _("Look at the request: it says what was decided.")

TEXTS: dict[StrEnum, Text] = {
    JoinCode.ALREADY_IN_TEAM: Text(_("You are in %(team)s already."), _("Start a workspace for it.")),
    JoinCode.ASK_TO_JOIN_LATER: Text(
        _("%(team)s has denied a request of yours."),
        _("Ask again after %(until)s, or talk to its owners."),
        prepare=_until,
    ),
    JoinCode.JOIN_APPROVED_ALREADY: Text(_("%(who)s approved it already."), _LOOK_AT_IT),
    JoinCode.JOIN_CLOSED_ALREADY: Text(_("It was cancelled or has expired."), _LOOK_AT_IT),
    JoinCode.JOIN_MESSAGE_TOO_LONG: Text(_("Write at most %(max)s characters.")),
    JoinCode.JOIN_DENIED_ALREADY: Text(_("%(who)s denied it already."), _LOOK_AT_IT),
    JoinCode.NOBODY_JOINS_ALONE: Text(
        _("Nobody approves their own way into a team."), _("Wait for another owner, or for an operator.")
    ),
    JoinCode.NO_SUCH_JOIN_REQUEST: Text(
        _("There is no such request to join that you may see."), _("Look at your inbox.")
    ),
    JoinCode.ONLY_REQUESTER_CANCELS_JOIN: Text(
        _("Only %(username)s, who asks, can cancel it."), _("Deny it instead, with a note.")
    ),
    JoinCode.JOIN_DENIAL_NEEDS_NOTE: Text(_("Write a note for the requester.")),
    JoinCode.TOO_MANY_JOIN_REQUESTS: Text(
        ngettext_lazy(
            "You have %(limit)d request to join open already.",
            "You have %(limit)d requests to join open already.",
            "limit",
        ),
        _("Cancel one, or wait until one is decided."),
    ),
    JoinCode.TOO_MANY_JOIN_REQUESTS_A_DAY: Text(
        ngettext_lazy(
            "You have asked %(limit)d time in 24 hours.",
            "You have asked %(limit)d times in 24 hours.",
            "limit",
        ),
        _("Ask again tomorrow, or talk to the team's owners."),
    ),
}
