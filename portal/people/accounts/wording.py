"""Texts of refusals about users, teams and tokens."""

from __future__ import annotations

from enum import StrEnum

from django.utils.translation import gettext_lazy as _
from django.utils.translation import ngettext_lazy

from portal.common.reasons.wording import Text, listed
from portal.people.accounts.codes import AccountCode

TEXTS: dict[StrEnum, Text] = {
    AccountCode.ACCOUNT_DELETION_OFF: Text(
        _("People do not delete their own accounts here."), _("Ask an administrator to delete yours.")
    ),
    AccountCode.AUDITOR_HOLDS_NO_OTHER_ROLE: Text(
        _("An auditor holds no other role in the portal."), _("Choose auditor alone, or the others.")
    ),
    AccountCode.AUDITOR_ONLY_VIEWS: Text(
        _("%(username)s is an auditor, who can only be a viewer of a team."), _("Choose viewer.")
    ),
    AccountCode.AUDITOR_TOKEN_WRITES: Text(
        _("A token of an auditor's may only read: %(scopes)s is more than that."),
        _("Choose scopes that end in “:read”."),
        prepare=listed("scopes"),
    ),
    AccountCode.AUDITOR_WORKS_IN_TEAMS: Text(
        _("%(username)s works in %(teams)s, and an auditor only reads."),
        _("Make the user a viewer there first, or take them out."),
        prepare=listed("teams"),
    ),
    AccountCode.CHOOSE_A_ROLE: Text(_("Choose viewer, member or owner.")),
    AccountCode.CHOOSE_SCOPES: Text(_("Choose from %(known)s."), prepare=listed("known")),
    AccountCode.EXPIRY_NOT_IN_FUTURE: Text(_("Choose a day in the future.")),
    AccountCode.DESCRIPTION_TOO_LONG: Text(
        _("This is longer than %(most)s characters."), _("Say it in fewer words.")
    ),
    AccountCode.EXPIRY_TOO_LATE: Text(
        ngettext_lazy(
            "No token lives longer than %(days)d day here.",
            "No token lives longer than %(days)d days here.",
            "days",
        ),
        _("Choose an earlier expiry, and rotate the token before it ends."),
    ),
    AccountCode.HOMES_CHOICE: Text(_("Say “delete” for home folders that go too, or leave it out.")),
    AccountCode.IS_SERVICE_ACCOUNT: Text(
        _("%(username)s is a service account: it has no password, no address, no role and no other team."),
        _("Manage it on the page of its team."),
    ),
    AccountCode.OVERLAP_OUT_OF_RANGE: Text(_("The old token can stay for 0 to %(most)s hours.")),
    AccountCode.SERVICE_ACCOUNT_SIGNS_IN: Text(
        _("%(username)s is a service account, which signs in nowhere."), _("Use one of its API tokens.")
    ),
    AccountCode.TOKEN_ENDED: Text(_("The token “%(name)s” has ended."), _("Make a new one.")),
    AccountCode.TOKEN_OF_ANOTHER: Text(
        _("This token is one of %(username)s."), _("Ask its user, or an operator, to revoke it.")
    ),
    AccountCode.TOKEN_ROTATED: Text(
        _("The token “%(name)s” has been rotated already."), _("Rotate the one that replaced it.")
    ),
    AccountCode.TOO_MANY_SERVICE_ACCOUNTS: Text(
        _("%(team)s has %(most)s service accounts already."), _("Delete those that nothing uses.")
    ),
    AccountCode.EGRESS_LOOSER: Text(
        _("Owners of %(team)s may only close more of what its workspaces reach, not open it."),
        _("Ask an operator."),
    ),
    AccountCode.EGRESS_NOT_VALID: Text(
        _("This is neither a list of hosts nor of networks."),
        _(
            "Write them like packages.example, *.example.org, git.example.org:22 or 10.1.0.0/16, with commas "
            "between."
        ),
    ),
    AccountCode.EXPIRY_PAST: Text(_("The expiry lies in the past."), _("Choose a later day.")),
    AccountCode.LAST_ADMINISTRATOR: Text(
        _("%(username)s is the last administrator who can sign in."),
        _("Make somebody else an administrator first, and have them sign in."),
    ),
    AccountCode.LINK_SPENT: Text(
        _("This link has been used, has expired, or was replaced by a newer one."),
        _("Ask an administrator for a new one."),
    ),
    AccountCode.LAST_OWNER: Text(
        _("%(username)s is the only owner of %(team)s."), _("Make somebody else an owner first.")
    ),
    AccountCode.LAST_OWNER_LEAVES: Text(
        _("You are the only owner of %(teams)s, where others are, too."),
        _("Make somebody else an owner there, or take the others out, service accounts included."),
        prepare=listed("teams"),
    ),
    AccountCode.MEMBER_HAS_WORKSPACES: Text(
        ngettext_lazy(
            "%(username)s still has %(count)d workspace charged to %(team)s.",
            "%(username)s still has %(count)d workspaces charged to %(team)s.",
            "count",
        ),
        _("Delete them first; home folders stay."),
    ),
    AccountCode.NOT_IN_TEAM: Text(_("You are not in the team %(team)s."), _("Choose a team of yours.")),
    AccountCode.NOT_A_MEMBER: Text(_("%(username)s is not in %(team)s."), _("Reload the list of members.")),
    AccountCode.NO_SCOPES: Text(
        _("Choose at least one scope."), _("Use some of: %(known)s."), prepare=listed("known")
    ),
    AccountCode.NO_SUCH_ROLE: Text(_("“%(role)s” is no role.")),
    AccountCode.NO_SUCH_SITE_ROLE: Text(
        _("“%(role)s” is no role in the portal."), _("Use some of: %(known)s."), prepare=listed("known")
    ),
    AccountCode.NO_SUCH_SESSION: Text(
        _("There is no such session of yours."), _("Look at the list of your sessions: it may have ended.")
    ),
    AccountCode.NO_SUCH_TEAM: Text(
        _("There is no team “%(slug)s” that you may see."), _("Choose one of your teams.")
    ),
    AccountCode.NO_SUCH_TOKEN: Text(_("There is no such token of yours."), _("Look at your list of tokens.")),
    AccountCode.NO_SUCH_USER: Text(
        _("There is no user “%(username)s”."),
        _("Check the spelling, or ask an administrator to invite the user."),
    ),
    AccountCode.NOT_INVITED: Text(
        _("%(username)s has a password already."), _("Reset the password instead.")
    ),
    AccountCode.ONLY_OPERATORS: Text(
        _("Only an operator may do this."), _("Ask the operator of this installation.")
    ),
    AccountCode.ONLY_TEAM_OWNERS: Text(
        _("Only an owner of %(team)s may change it."), _("Ask an owner of the team.")
    ),
    AccountCode.OWN_ACCOUNT_BY_TOKEN: Text(
        _("An API token cannot delete the account that it belongs to."),
        _("Sign in, and delete the account on the page Account."),
    ),
    AccountCode.SCIM_ALONE: Text(
        _("A token for SCIM is good for nothing else."), _("Make a second token for the other scopes.")
    ),
    AccountCode.TEAM_NOT_VALID: Text(_("The team cannot be made like this.")),
    AccountCode.TOKEN_FOR_ANOTHER: Text(
        _("Tokens can only be made for yourself, and for service accounts of teams that you own."),
        _("Sign in as that user."),
    ),
    AccountCode.TOKEN_NAMELESS: Text(_("A token needs a name.")),
    AccountCode.TOKEN_OUTLIVES: Text(
        _("A token cannot make one that lives longer than itself."), _("Choose an expiry up to %(until)s.")
    ),
    AccountCode.TOKEN_PURPOSE: Text(_("Say what the token is for.")),
    AccountCode.TOKEN_WIDER: Text(
        _("A token cannot make one that may do more: %(scopes)s."),
        _("Choose among its own scopes, or make the token on your account's token page."),
        prepare=listed("scopes"),
    ),
    AccountCode.UNKNOWN_SCOPES: Text(
        _("Unknown scope: %(scopes)s."), _("Use some of: %(known)s."), prepare=listed("scopes", "known")
    ),
    AccountCode.USER_DEACTIVATED: Text(
        _("The account of %(username)s is deactivated."), _("Reactivate it first.")
    ),
    AccountCode.USER_DELETED: Text(
        _("The account of %(username)s has been deleted. Its name is kept, as its home folders carry it."),
        _("Choose another name."),
    ),
    AccountCode.USER_NOT_VALID: Text(_("The account cannot be like this.")),
    AccountCode.USER_UNKNOWN: Text(_("No user has this name.")),
    AccountCode.VIEWER_ONLY: Text(
        _("You view %(team)s, and start and change nothing there."),
        _("Ask an owner of the team to make you a member."),
    ),
    AccountCode.WORKSPACES_CHOICE: Text(_("Say “delete” for workspaces that go too, or leave it out.")),
    AccountCode.WRONG_PASSWORD: Text(_("This is not your present password.")),
}
