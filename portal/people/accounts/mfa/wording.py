"""Texts of refusals about second factors and re-authentication."""

from __future__ import annotations

from enum import StrEnum

from django.utils.translation import gettext_lazy as _
from django.utils.translation import ngettext_lazy

from portal.common.reasons.wording import Text
from portal.people.accounts.mfa.codes import MfaCode

TEXTS: dict[StrEnum, Text] = {
    MfaCode.APP_THERE: Text(_("You already have an authenticator app."), _("Remove it first.")),
    MfaCode.CONFIRM_FIRST: Text(
        _("This action needs a recent confirmation of your identity."),
        _("Confirm at /account/confirm/ in this browser, or use an API token."),
    ),
    MfaCode.LAST_FACTOR: Text(
        _("Your role requires a second factor, and this is your only one."), _("Set up another one first.")
    ),
    MfaCode.NO_APP: Text(_("You have no authenticator app."), _("Reload the page.")),
    MfaCode.NO_FACTOR: Text(
        _("Recovery codes require a second factor, and you have none."),
        _("Set up an app or a passkey first."),
    ),
    MfaCode.NO_SUCH_PASSKEY: Text(_("Passkey not found."), _("Reload the list of passkeys.")),
    MfaCode.PASSKEY_COPIED: Text(
        _("This passkey may have been copied: its signature counter is too low."),
        _("Sign in with another factor, then remove the passkey."),
    ),
    MfaCode.PASSKEY_LATE: Text(_("The passkey request has expired."), _("Try again.")),
    MfaCode.PASSKEY_NAME: Text(
        ngettext_lazy(
            "Enter a name of up to %(count)d character.",
            "Enter a name of up to %(count)d characters.",
            "count",
        )
    ),
    MfaCode.PASSKEY_REFUSED: Text(_("The passkey was not accepted."), _("Try again, or use another one.")),
    MfaCode.SECRET_UNREADABLE: Text(
        _("The secret of your second factor cannot be read: the portal's secret key has changed."),
        _("Ask an administrator to restore the old key as a fallback, or to remove your second factors."),
    ),
    MfaCode.SET_UP_FIRST: Text(
        _("Your role requires a second factor, and you have none."),
        _("Set one up at /account/two-step/ in this browser."),
    ),
    MfaCode.TOO_MANY_PASSKEYS: Text(
        ngettext_lazy(
            "Limit of %(count)d passkey per account reached.",
            "Limit of %(count)d passkeys per account reached.",
            "count",
        ),
        _("Remove an unused passkey."),
    ),
    MfaCode.TOO_MANY_TRIES: Text(
        _("Too many failed attempts."),
        ngettext_lazy(
            "Wait %(count)d minute, then try again.", "Wait %(count)d minutes, then try again.", "count"
        ),
    ),
    MfaCode.WRONG_CODE: Text(
        _("The code is wrong or was already used."), _("Wait for the next code, and enter it.")
    ),
}
