"""Texts of refused invitations."""

from __future__ import annotations

from enum import StrEnum

from django.utils.translation import gettext_lazy as _

from portal.common.reasons.wording import Text
from portal.people.accounts.invitations.codes import InvitationCode

TEXTS: dict[StrEnum, Text] = {
    InvitationCode.ADDRESS_NOT_CONFIRMED: Text(
        _("An account has the address %(address)s, but the address is not confirmed."),
        _("Enter the username of the account instead."),
    ),
    InvitationCode.ADDRESS_NOT_VALID: Text(
        _("“%(address)s” is not a valid e-mail address."), _("Correct the address.")
    ),
    InvitationCode.CANNOT_CREATE_ACCOUNTS: Text(
        _("No account has the address %(address)s, and you cannot create accounts for it."),
        _("Ask an administrator to invite this person."),
    ),
    InvitationCode.LISTED_BEFORE: Text(
        _("Line %(line)s names the same person."), _("Remove one of the two lines.")
    ),
    InvitationCode.LIST_CHANGED: Text(_("The list changed after the check."), _("Check the new results.")),
    InvitationCode.LIST_EMPTY: Text(
        _("The list is empty."), _("Enter one e-mail address or username on each line.")
    ),
    InvitationCode.LIST_TOO_LONG: Text(
        _("A list can have up to %(max)s people."), _("Split the list into shorter ones.")
    ),
    InvitationCode.NEW_ACCOUNT_NEEDS_ADDRESS: Text(
        _("No account has the username “%(username)s”."),
        _("Check the spelling, or enter an e-mail address to invite a new person."),
    ),
    InvitationCode.NEW_ACCOUNT_NEEDS_SCOPE: Text(
        _("No account has the address %(address)s, and the token cannot create accounts."),
        _("Use a token with the scope users:write."),
    ),
    InvitationCode.TAKEN_MEANWHILE: Text(
        _("Somebody else changed this account at the same time."), _("Invite this person again.")
    ),
    InvitationCode.TOO_MANY_COLUMNS: Text(
        _("The line has more than two columns."), _("Enter an e-mail address or username, and a role.")
    ),
    InvitationCode.TOO_MANY_INVITATIONS: Text(
        _("You created %(max)s accounts within 24 hours."),
        _("Invite this person tomorrow, or ask an administrator."),
    ),
}
