"""Texts of the refusals that any room may make."""

from __future__ import annotations

from enum import StrEnum

from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _

from portal.common.reasons.codes import CommonCode
from portal.common.reasons.wording import Params, Text, first_problem, listed

_CHOICES = {
    "template": _("Choose a template first."),
    "flavor": _("Choose a flavor first."),
    "team": _("Choose a team first."),
}


def _parameters(params: Params) -> Params:
    names = ", ".join(params["known"])
    known = gettext("Known: %(names)s.") % {"names": names} if names else gettext("There are none here.")
    return {"known": known}


TEXTS: dict[StrEnum, Text] = {
    CommonCode.CHANGED_BY_SOMEBODY: Text(
        _("“%(name)s” has been changed since you looked, by %(by)s."), _("Read it again and decide anew.")
    ),
    CommonCode.CHANGED_SINCE: Text(
        _("“%(name)s” has been changed since you looked."), _("Read it again and decide anew.")
    ),
    CommonCode.CHOOSE_ONE_OF: Text(_("Choose one of: %(known)s."), prepare=listed("known")),
    CommonCode.CHOOSE_WHAT_TO_DO: Text(_("Choose what to do."), _("Use one of the buttons.")),
    CommonCode.CORRECT_AND_RETRY: Text("%(first)s", _("Correct it and try again."), prepare=first_problem),
    CommonCode.FIRST_CHOICE_MISSING: Text(
        "%(choose)s",
        _("The summary shows what is missing."),
        prepare=lambda params: {"choose": _CHOICES[params["field"]]},
    ),
    CommonCode.HOURS_NOT_UNDERSTOOD: Text(_("Say in hours how long you need it, such as 8 or 0.5.")),
    CommonCode.UNKNOWN_PARAMETER: Text(
        _("There is no such query parameter."), "%(known)s", prepare=_parameters
    ),
    CommonCode.PAGE_SIZE_INVALID: Text(
        _("The page size is not valid."), _("Choose a number from 1 to %(maximum)d.")
    ),
    CommonCode.CURSOR_INVALID: Text(
        _("This cursor is not valid."), _("Follow the “next” link of a page, or begin without a cursor.")
    ),
    CommonCode.STORAGE_BUSY: Text(
        _("The database is busy, and nothing was changed."), _("Try again in a moment.")
    ),
    CommonCode.STORAGE_FAILS: Text(
        _("The database cannot be used at present, and nothing was changed."),
        _("Try again in a minute; if it stays, tell an operator."),
    ),
    CommonCode.STORAGE_FULL: Text(
        _("The disk of the database is full, and nothing was changed."),
        _("Tell an operator, who has to make room."),
    ),
    CommonCode.STORAGE_READ_ONLY: Text(
        _("The database can only be read at present, and nothing was changed."),
        _("Try again later, or tell an operator."),
    ),
    CommonCode.LAST_EVENT_ID_INVALID: Text(
        _("The Last-Event-ID is not one of ours."),
        _("Send the id of an event of this workspace, or leave it out."),
    ),
    CommonCode.IDEMPOTENCY_KEY_INVALID: Text(
        _("The Idempotency-Key is not valid."),
        _("Use 1 to 120 letters, digits and signs without spaces, for example a UUID."),
    ),
    CommonCode.IDEMPOTENCY_KEY_NOT_TAKEN: Text(
        _("This request takes no Idempotency-Key: nothing would be done twice, or nothing is done."),
        _("Send it without the header; it may be repeated as it is."),
    ),
    CommonCode.IDEMPOTENCY_KEY_REUSED: Text(
        _("This Idempotency-Key was used for another request."), _("Use a new key for a new request.")
    ),
    CommonCode.ONLY_ADMINISTRATORS: Text(
        _("Only an administrator may do this."), _("Ask the administrator of this installation.")
    ),
}
