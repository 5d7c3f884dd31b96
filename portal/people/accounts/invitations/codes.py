"""Error codes for invitations."""

from __future__ import annotations

from enum import StrEnum


class InvitationCode(StrEnum):
    """Errors about lists of people to invite."""

    ADDRESS_NOT_CONFIRMED = "address_not_confirmed"
    ADDRESS_NOT_VALID = "address_not_valid"
    CANNOT_CREATE_ACCOUNTS = "cannot_create_accounts"
    LISTED_BEFORE = "listed_before"
    LIST_CHANGED = "list_changed"
    LIST_EMPTY = "list_empty"
    LIST_TOO_LONG = "list_too_long"
    NEW_ACCOUNT_NEEDS_ADDRESS = "new_account_needs_address"
    NEW_ACCOUNT_NEEDS_SCOPE = "new_account_needs_scope"
    TAKEN_MEANWHILE = "taken_meanwhile"
    TOO_MANY_COLUMNS = "too_many_columns"
    TOO_MANY_INVITATIONS = "too_many_invitations"
