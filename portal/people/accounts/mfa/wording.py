"""Texts of refusals about second factors and re-authentication."""

from __future__ import annotations

from enum import StrEnum

from django.utils.translation import gettext_lazy as _
from django.utils.translation import ngettext_lazy

from portal.common.reasons.wording import Text
from portal.people.accounts.mfa.codes import MfaCode

TEXTS: dict[StrEnum, Text] = {
    MfaCode.APP_THERE: Text(_("An authenticator app is set up already."), _("Remove it first.")),
    MfaCode.CONFIRM_FIRST: Text(
        _("This needs a fresh proof that it is you."),
        _("Confirm it at /account/confirm/ in this browser, or use an API token."),
    ),
    MfaCode.LAST_FACTOR: Text(
        _("Your role demands a second factor, and this is your last one."), _("Set up another one first.")
    ),
    MfaCode.NO_APP: Text(_("There is no authenticator app."), _("Reload the page.")),
    MfaCode.NO_FACTOR: Text(
        _("Recovery codes stand in for a second factor, and there is none."),
        _("Set up an app or a passkey first."),
    ),
    MfaCode.NO_SUCH_PASSKEY: Text(_("There is no such passkey of yours."), _("Reload the list of passkeys.")),
    MfaCode.PASSKEY_COPIED: Text(
        _("This passkey has been used elsewhere since: it may have been copied."),
        _("Sign in by another way, then remove it."),
    ),
    MfaCode.PASSKEY_LATE: Text(_("The passkey was asked for too long ago."), _("Try again.")),
    MfaCode.PASSKEY_NAME: Text(
        ngettext_lazy(
            "Give it a name of at most %(count)d character.",
            "Give it a name of at most %(count)d characters.",
            "count",
        )
    ),
    MfaCode.PASSKEY_REFUSED: Text(_("The passkey was not accepted."), _("Try again, or use another one.")),
    MfaCode.SECRET_UNREADABLE: Text(
        _("The secret of your second factor cannot be read: the portal's secret key has changed."),
        _("Ask an administrator to put the old key among the fallbacks, or to take off your second factors."),
    ),
    MfaCode.SET_UP_FIRST: Text(
        _("Your role demands a second factor, and you have none."),
        _("Set one up at /account/two-step/ in this browser."),
    ),
    MfaCode.TOO_MANY_PASSKEYS: Text(
        ngettext_lazy(
            "An account has at most %(count)d passkey.", "An account has at most %(count)d passkeys.", "count"
        ),
        _("Remove one that you do not use."),
    ),
    MfaCode.TOO_MANY_TRIES: Text(
        _("There were too many wrong tries."),
        ngettext_lazy(
            "Wait %(count)d minute, then try again.", "Wait %(count)d minutes, then try again.", "count"
        ),
    ),
    MfaCode.WRONG_CODE: Text(
        _("This code is not right, or it has been used."), _("Wait for the next one, and type that.")
    ),
}
