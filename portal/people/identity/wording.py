"""Texts of refusals of sign-ins by a provider."""

from __future__ import annotations

from enum import StrEnum

from django.utils.translation import gettext_lazy as _

from portal.common.reasons.wording import Text
from portal.people.identity.codes import IdentityCode

_ASK = _("Ask an administrator of this installation.")
_LINK = _("Ask an administrator to link the account to you.")

TEXTS: dict[StrEnum, Text] = {
    IdentityCode.ACCOUNT_DEACTIVATED: Text(_("The account %(username)s is deactivated."), _ASK),
    IdentityCode.ROLES_NOT_LINKED: Text(
        _("%(username)s has roles in the portal, and %(provider)s alone gives no such account."),
        _("Have an administrator link the account."),
    ),
    IdentityCode.CLAIMS_NOT_VALID: Text(_("These are no claims."), _("Give a JSON object.")),
    IdentityCode.CLAIM_MISSING: Text(
        _("%(provider)s did not say “%(claim)s” of you."), _("Ask an administrator to have it sent.")
    ),
    IdentityCode.CLAIM_TOO_LONG: Text(_("The claim “%(claim)s” is too long."), _ASK),
    IdentityCode.DIRECTORY_NOBODY: Text(
        _("%(provider)s finds nobody, or more than one, by the name “%(username)s”."),
        _("Look at user_base and user_filter."),
    ),
    IdentityCode.TESTED_IN_A_BROWSER: Text(
        _("%(provider)s needs a browser, so the portal cannot test it by itself."),
        _("Test it on its page."),
    ),
    IdentityCode.EMAIL_TAKEN: Text(
        _("The address %(email)s belongs to an account that is not linked to %(provider)s."), _LINK
    ),
    IdentityCode.GROUPS_LEFT_OUT: Text(
        _("You are in so many groups that %(provider)s left “%(claim)s” out."),
        _("Ask an administrator to have only the groups of this application sent."),
    ),
    IdentityCode.LAST_OWNER_KEPT: Text(
        _("%(username)s stays the owner of %(slug)s: nobody else is in it."), _("Add somebody to the team.")
    ),
    IdentityCode.LINKED_TO_ANOTHER: Text(
        _("The account %(username)s belongs to somebody else at %(provider)s."), _LINK
    ),
    IdentityCode.LINK_OF_NOBODY: Text(
        _("Say who it is at the provider."), _("Give a subject or a user name.")
    ),
    IdentityCode.LINK_TAKEN: Text(
        _("This account or this identity at %(provider)s is linked already."), _("Remove that link first.")
    ),
    IdentityCode.NOT_ALLOWED: Text(
        _("%(provider)s knows you, but its “%(claim)s” does not let you in: %(rule)s is asked for."),
        _ASK,
    ),
    IdentityCode.NO_ACCOUNT: Text(
        _("There is no account for you, and %(provider)s makes none."),
        _("Ask an administrator to invite you."),
    ),
    IdentityCode.NO_SUCH_LINK: Text(_("There is no such link."), _("Reload the page.")),
    IdentityCode.NO_SUCH_PROVIDER: Text(
        _("There is no sign-in provider “%(id)s”."), _("Look at the list of sign-in providers.")
    ),
    IdentityCode.PROVIDER_CANCELLED: Text(
        _("The sign-in at %(provider)s was cancelled."), _("Try again, or sign in with a password.")
    ),
    IdentityCode.PROVIDER_DOWN: Text(
        _("%(provider)s does not answer at present."),
        _("Try again in a minute. Accounts with a password here work meanwhile."),
    ),
    IdentityCode.PROVIDER_OFF: Text(
        _("Nobody signs in by %(provider)s at present."), _("Sign in another way, or ask an administrator.")
    ),
    IdentityCode.PROVIDER_REFUSED: Text(
        _("%(provider)s refused the sign-in: %(detail)s."),
        _("Try again; if it stays so, ask an administrator."),
    ),
    IdentityCode.PROVIDER_WRONG: Text(
        _("What %(provider)s answered cannot be trusted: %(detail)s."),
        _("Try again; if it stays so, ask an administrator."),
    ),
    IdentityCode.SIGN_IN_ENDED: Text(
        _("This sign-in was not begun here, took too long, or has been used."), _("Begin it again.")
    ),
    IdentityCode.TEAM_NOT_THERE: Text(
        _("A rule of %(provider)s names the team “%(slug)s”, which is not there."),
        _("Make the team, or say create_team in the rule."),
    ),
    IdentityCode.TEAM_NAME_NOT_VALID: Text(
        _("A rule of %(provider)s would make the team “%(slug)s”, which cannot be a short name."),
        _("Change the rule."),
    ),
    IdentityCode.TEST_NOT_YOURS: Text(
        _("Only the administrator who began a test sees what it found."), _("Begin the test again.")
    ),
    IdentityCode.USERNAME_NOT_MATCHED: Text(
        _("“%(value)s” in “%(claim)s” is not how the names of this provider are written."), _ASK
    ),
    IdentityCode.USERNAME_NOT_VALID: Text(
        _("“%(value)s” in “%(claim)s” cannot be a name here."),
        _("Ask an administrator to choose another claim, or a pattern for it."),
    ),
    IdentityCode.USERNAME_TAKEN: Text(
        _("The name %(username)s belongs to an account that is not linked to you at %(provider)s."), _LINK
    ),
    IdentityCode.USERNAME_TOO_LONG: Text(
        _("The name in “%(claim)s” has more than %(limit)d characters."),
        _("Ask an administrator to choose another claim."),
    ),
}
