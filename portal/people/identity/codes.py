"""Error codes for sign-in providers."""

from __future__ import annotations

from enum import StrEnum


class IdentityCode(StrEnum):
    """Errors about sign-in with a provider."""

    ACCOUNT_DEACTIVATED = "account_deactivated"
    CLAIMS_NOT_VALID = "claims_not_valid"
    CLAIM_MISSING = "claim_missing"
    CLAIM_TOO_LONG = "claim_too_long"
    DIRECTORY_NOBODY = "directory_nobody"
    EMAIL_TAKEN = "email_taken"
    GROUPS_LEFT_OUT = "groups_left_out"
    LAST_OWNER_KEPT = "last_owner_kept"
    LINKED_TO_ANOTHER = "linked_to_another"
    LINK_OF_NOBODY = "link_of_nobody"
    LINK_TAKEN = "link_taken"
    NOT_ALLOWED = "not_allowed_by_rule"
    NO_ACCOUNT = "no_account"
    NO_SUCH_LINK = "no_such_link"
    NO_SUCH_PROVIDER = "no_such_provider"
    PROVIDER_CANCELLED = "provider_cancelled"
    PROVIDER_DOWN = "provider_down"
    PROVIDER_OFF = "provider_off"
    PROVIDER_REFUSED = "provider_refused"
    PROVIDER_WRONG = "provider_wrong"
    ROLES_NOT_LINKED = "roles_not_linked"
    SIGN_IN_ENDED = "sign_in_ended"
    TEAM_NOT_THERE = "team_not_there"
    TEAM_NAME_NOT_VALID = "team_name_not_valid"
    TESTED_IN_A_BROWSER = "tested_in_a_browser"
    TEST_NOT_YOURS = "test_not_yours"
    USERNAME_NOT_MATCHED = "username_not_matched"
    USERNAME_NOT_VALID = "username_not_valid"
    USERNAME_TAKEN = "username_taken"
    USERNAME_TOO_LONG = "username_too_long"
