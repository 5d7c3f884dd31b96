"""Texts of refusals of sign-ins by a provider."""

from __future__ import annotations

from enum import StrEnum

from django.utils.translation import gettext_lazy as _

from portal.common.reasons.wording import Text
from portal.people.identity.codes import IdentityCode

_LINK = _("Ask an administrator to link the account to your identity.")

TEXTS: dict[StrEnum, Text] = {
    IdentityCode.ACCOUNT_DEACTIVATED: Text(
        _("The account %(username)s is deactivated."), _("Ask an administrator to reactivate it.")
    ),
    IdentityCode.ROLES_NOT_LINKED: Text(
        _("%(username)s has portal roles, so %(provider)s cannot link the account automatically."),
        _("Ask an administrator to link it."),
    ),
    IdentityCode.CLAIMS_NOT_VALID: Text(_("The claims are not a JSON object."), _("Enter a JSON object.")),
    IdentityCode.CLAIM_MISSING: Text(
        _("%(provider)s did not send the claim “%(claim)s”."),
        _("Ask an administrator to configure the provider to send it."),
    ),
    IdentityCode.CLAIM_TOO_LONG: Text(
        _("The claim “%(claim)s” is too long."),
        _("Ask an administrator to configure the provider to send a shorter value."),
    ),
    IdentityCode.DIRECTORY_NOBODY: Text(
        _("%(provider)s did not return exactly one entry for “%(username)s”."),
        _("Check user_base and user_filter."),
    ),
    IdentityCode.TESTED_IN_A_BROWSER: Text(
        _("Testing %(provider)s requires a browser."),
        _("Run the test on the provider's page."),
    ),
    IdentityCode.EMAIL_TAKEN: Text(
        _("The address %(email)s belongs to an account that is not linked to %(provider)s."), _LINK
    ),
    IdentityCode.GROUPS_LEFT_OUT: Text(
        _("You have too many groups, so %(provider)s omitted “%(claim)s”."),
        _("Ask an administrator to limit the claim to the groups of this application."),
    ),
    IdentityCode.LAST_OWNER_KEPT: Text(
        _("%(username)s remains owner of %(slug)s because the team has no other member."),
        _("Add a member to the team."),
    ),
    IdentityCode.LINKED_TO_ANOTHER: Text(
        _("The account %(username)s is linked to another identity at %(provider)s."), _LINK
    ),
    IdentityCode.LINK_OF_NOBODY: Text(
        _("The link has no identity at the provider."), _("Enter a subject or a username.")
    ),
    IdentityCode.LINK_TAKEN: Text(
        _("The account or the identity at %(provider)s is already linked."),
        _("Remove the existing link first."),
    ),
    IdentityCode.NOT_ALLOWED: Text(
        _("Your claim “%(claim)s” from %(provider)s does not grant access (required: %(rule)s)."),
        _("Ask an administrator for access."),
    ),
    IdentityCode.NO_ACCOUNT: Text(
        _("You have no account, and %(provider)s does not create accounts."),
        _("Ask an administrator to invite you."),
    ),
    IdentityCode.NO_SUCH_LINK: Text(_("Link not found."), _("Reload the page to see the current links.")),
    IdentityCode.NO_SUCH_PROVIDER: Text(
        _("Sign-in provider “%(id)s” not found."), _("Choose one from the list of sign-in providers.")
    ),
    IdentityCode.PROVIDER_CANCELLED: Text(
        _("The sign-in at %(provider)s was cancelled."), _("Try again, or sign in with a password.")
    ),
    IdentityCode.PROVIDER_DOWN: Text(
        _("%(provider)s is not responding."),
        _("Try again in a minute, or sign in with a password."),
    ),
    IdentityCode.PROVIDER_OFF: Text(
        _("Sign-in through %(provider)s is disabled."),
        _("Use another sign-in method, or ask an administrator."),
    ),
    IdentityCode.PROVIDER_REFUSED: Text(
        _("%(provider)s refused the sign-in: %(detail)s."),
        _("Try again. If the problem persists, ask an administrator."),
    ),
    IdentityCode.PROVIDER_WRONG: Text(
        _("The response from %(provider)s could not be verified: %(detail)s."),
        _("Try again. If the problem persists, ask an administrator."),
    ),
    IdentityCode.SIGN_IN_ENDED: Text(
        _("This sign-in has expired, was already used or started in another browser."), _("Sign in again.")
    ),
    IdentityCode.TEAM_NOT_THERE: Text(
        _("A rule of %(provider)s names the team “%(slug)s”, which does not exist."),
        _("Create the team, or set create_team in the rule."),
    ),
    IdentityCode.TEAM_NAME_NOT_VALID: Text(
        _("A rule of %(provider)s would create the team “%(slug)s”, which is not a valid slug."),
        _("Correct the team in the rule."),
    ),
    IdentityCode.TEST_NOT_YOURS: Text(
        _("Only the administrator who started this test can see its result."), _("Run the test again.")
    ),
    IdentityCode.USERNAME_NOT_MATCHED: Text(
        _("“%(value)s” in “%(claim)s” does not match the username pattern of this provider."),
        _("Ask an administrator to correct the username pattern."),
    ),
    IdentityCode.USERNAME_NOT_VALID: Text(
        _("“%(value)s” in “%(claim)s” is not a valid username."),
        _("Ask an administrator to choose another claim or set a pattern."),
    ),
    IdentityCode.USERNAME_TAKEN: Text(
        _("The username %(username)s belongs to an account that is not linked to you at %(provider)s."), _LINK
    ),
    IdentityCode.USERNAME_TOO_LONG: Text(
        _("The username in “%(claim)s” has more than %(limit)d characters."),
        _("Ask an administrator to choose another claim."),
    ),
}
