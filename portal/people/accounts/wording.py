"""Texts of refusals about users, teams and tokens."""

from __future__ import annotations

from enum import StrEnum

from django.utils.translation import gettext_lazy as _
from django.utils.translation import ngettext_lazy

from portal.common.reasons.wording import Text, joined_lists
from portal.people.accounts.codes import AccountCode

TEXTS: dict[StrEnum, Text] = {
    AccountCode.ACCOUNT_DELETION_OFF: Text(
        _("Users cannot delete their own accounts here."), _("Ask an administrator to delete your account.")
    ),
    AccountCode.AUDITOR_HOLDS_NO_OTHER_ROLE: Text(
        _("An auditor cannot have another portal role."), _("Choose either auditor or the other roles.")
    ),
    AccountCode.AUDITOR_ONLY_VIEWS: Text(
        _("%(username)s is an auditor and can only be a viewer in teams."), _("Choose viewer.")
    ),
    AccountCode.AUDITOR_TOKEN_WRITES: Text(
        _("Tokens of auditors are read-only and cannot have %(scopes)s."),
        _("Choose scopes that end in “:read”."),
        prepare=joined_lists("scopes"),
    ),
    AccountCode.AUDITOR_WORKS_IN_TEAMS: Text(
        _("%(username)s is a member or owner of %(teams)s, but auditors have read-only access."),
        _("Make the user a viewer there first, or remove them."),
        prepare=joined_lists("teams"),
    ),
    AccountCode.CHOOSE_A_ROLE: Text(_("Choose viewer, member or owner.")),
    AccountCode.CHOOSE_SCOPES: Text(_("Choose from: %(known)s."), prepare=joined_lists("known")),
    AccountCode.EXPIRY_NOT_IN_FUTURE: Text(_("Choose a day in the future.")),
    AccountCode.DESCRIPTION_TOO_LONG: Text(
        _("The description exceeds %(most)s characters."), _("Shorten the description.")
    ),
    AccountCode.EXPIRY_TOO_LATE: Text(
        ngettext_lazy(
            "A token can be valid for up to %(days)d day.",
            "A token can be valid for up to %(days)d days.",
            "days",
        ),
        _("Choose an earlier expiry, and rotate the token before then."),
    ),
    AccountCode.HOMES_CHOICE: Text(
        _("Unknown value for home folders. Send “delete”, or omit the parameter.")
    ),
    AccountCode.IS_SERVICE_ACCOUNT: Text(
        _("%(username)s is a service account without password, address, role or second team."),
        _("Manage it on its team's page."),
    ),
    AccountCode.OVERLAP_OUT_OF_RANGE: Text(_("Choose an overlap from 0 to %(most)s hours.")),
    AccountCode.SERVICE_ACCOUNT_SIGNS_IN: Text(
        _("%(username)s is a service account and cannot sign in."), _("Use one of its API tokens.")
    ),
    AccountCode.TOKEN_ENDED: Text(
        _("The token “%(name)s” has expired or was revoked."), _("Create a new token.")
    ),
    AccountCode.TOKEN_OF_ANOTHER: Text(
        _("This token belongs to %(username)s."), _("Ask %(username)s or an operator to revoke it.")
    ),
    AccountCode.TOKEN_ROTATED: Text(
        _("The token “%(name)s” was already rotated."), _("Rotate its replacement.")
    ),
    AccountCode.TOO_MANY_SERVICE_ACCOUNTS: Text(
        _("%(team)s has reached its limit of %(most)s service accounts."),
        _("Delete an unused service account."),
    ),
    AccountCode.EGRESS_LOOSER: Text(
        _("Owners of %(team)s can only restrict network access further."),
        _("Ask an operator to allow more."),
    ),
    AccountCode.EGRESS_NOT_VALID: Text(
        _("The list has an entry that is not a host or network."),
        _("Enter hosts or networks with commas between them, for example *.example.org or 10.1.0.0/16."),
    ),
    AccountCode.EXPIRY_PAST: Text(_("The expiry is in the past."), _("Choose a later day.")),
    AccountCode.LAST_ADMINISTRATOR: Text(
        _("%(username)s is the last administrator who can sign in."),
        _("Make another user an administrator first, and have that user sign in."),
    ),
    AccountCode.LINK_SPENT: Text(
        _("This link has been used, has expired, or was replaced by a newer one."),
        _("Ask an administrator for a new link."),
    ),
    AccountCode.LAST_OWNER: Text(
        _("%(username)s is the only owner of %(team)s."), _("Make another member an owner first.")
    ),
    AccountCode.LAST_OWNER_LEAVES: Text(
        _("You are the only owner of teams with other members: %(teams)s."),
        _("Make another member an owner, or remove all members and service accounts."),
        prepare=joined_lists("teams"),
    ),
    AccountCode.MEMBER_HAS_WORKSPACES: Text(
        ngettext_lazy(
            "%(username)s still has %(count)d workspace charged to %(team)s.",
            "%(username)s still has %(count)d workspaces charged to %(team)s.",
            "count",
        ),
        _("Delete the workspaces first. Home folders are kept."),
    ),
    AccountCode.NOT_IN_TEAM: Text(_("You are not a member of %(team)s."), _("Choose one of your teams.")),
    AccountCode.NOT_A_MEMBER: Text(
        _("%(username)s is not a member of %(team)s."), _("Reload the list of members.")
    ),
    AccountCode.NO_SCOPES: Text(
        _("Choose at least one scope."), _("Choose from: %(known)s."), prepare=joined_lists("known")
    ),
    AccountCode.NO_SUCH_ROLE: Text(_("Unknown team role “%(role)s”.")),
    AccountCode.NO_SUCH_SITE_ROLE: Text(
        _("Unknown portal role “%(role)s”."), _("Choose from: %(known)s."), prepare=joined_lists("known")
    ),
    AccountCode.NO_SUCH_SESSION: Text(
        _("Session not found."), _("Check your list of sessions. It may have ended.")
    ),
    AccountCode.NO_SUCH_TEAM: Text(_("Team “%(slug)s” not found."), _("Choose one of your teams.")),
    AccountCode.NO_SUCH_TOKEN: Text(_("Token not found."), _("Check your list of tokens.")),
    AccountCode.NO_SUCH_USER: Text(
        _("User “%(username)s” not found."),
        _("Check the spelling, or ask an administrator to invite the user."),
    ),
    AccountCode.NOT_INVITED: Text(
        _("%(username)s already has a password."), _("Reset the password instead.")
    ),
    AccountCode.ONLY_OPERATORS: Text(
        _("Only operators can do this."), _("Ask an operator of this installation.")
    ),
    AccountCode.ONLY_TEAM_OWNERS: Text(
        _("Only owners of %(team)s can change the team."), _("Ask an owner of the team.")
    ),
    AccountCode.OWN_ACCOUNT_BY_TOKEN: Text(
        _("An API token cannot delete its own account."),
        _("Sign in, and delete the account on your account page."),
    ),
    AccountCode.SCIM_ALONE: Text(
        _("A SCIM token cannot have other scopes."), _("Create a second token for the other scopes.")
    ),
    AccountCode.TEAM_ARCHIVED: Text(
        _("%(team)s is archived."), _("Choose another team, or ask an owner of the team to restore it.")
    ),
    AccountCode.TEAM_BEING_DELETED: Text(
        _("%(team)s is being deleted."), _("Choose another team, or wait until its slug can be used again.")
    ),
    AccountCode.TEAM_HAS_HOMES: Text(
        ngettext_lazy(
            "%(team)s has %(count)d home folder, which would be deleted.",
            "%(team)s has %(count)d home folders, which would be deleted.",
            "count",
        ),
        _("Copy the files that you need, then confirm with homes=delete."),
    ),
    AccountCode.TEAM_NOT_ARCHIVED: Text(
        _("%(team)s is not archived, so it cannot be deleted."), _("Archive the team first.")
    ),
    AccountCode.TEAM_NOT_VALID: Text(_("The team is not valid. Correct the marked fields.")),
    AccountCode.TOKEN_FOR_ANOTHER: Text(
        _("You can only create tokens for yourself and for service accounts of teams that you own."),
        _("Ask that user to create the token."),
    ),
    AccountCode.TOKEN_NAMELESS: Text(_("Enter a name for the token.")),
    AccountCode.TOKEN_OUTLIVES: Text(
        _("A token cannot create a token that expires later than itself."),
        _("Choose an expiry up to %(until)s."),
    ),
    AccountCode.TOKEN_PURPOSE: Text(_("Enter the purpose of the token.")),
    AccountCode.TOKEN_WIDER: Text(
        _("A token cannot create a token with more scopes than its own: %(scopes)s."),
        _("Choose from its scopes, or create the token on your account's token page."),
        prepare=joined_lists("scopes"),
    ),
    AccountCode.UNKNOWN_SCOPES: Text(
        _("Unknown scope: %(scopes)s."), _("Choose from: %(known)s."), prepare=joined_lists("scopes", "known")
    ),
    AccountCode.USER_DEACTIVATED: Text(
        _("The account of %(username)s is deactivated."), _("Reactivate it first.")
    ),
    AccountCode.USER_DELETED: Text(
        _("The account of %(username)s was deleted. Its username stays reserved for its home folders."),
        _("Choose another username."),
    ),
    AccountCode.USER_NOT_VALID: Text(_("The account is not valid. Correct the marked fields.")),
    AccountCode.USER_UNKNOWN: Text(_("User not found. Check the spelling.")),
    AccountCode.VIEWER_ONLY: Text(
        _("You are a viewer of %(team)s and have read-only access."),
        _("Ask an owner of the team to make you a member."),
    ),
    AccountCode.WORKSPACES_CHOICE: Text(
        _("Unknown value for workspaces. Send “delete”, or omit the parameter.")
    ),
    AccountCode.WRONG_PASSWORD: Text(_("The current password is wrong.")),
}
