"""Error codes for second factors."""

# ruff: noqa: S105  (codes about tokens are not secrets)
from __future__ import annotations

from enum import StrEnum


class MfaCode(StrEnum):
    """Errors about second factors and re-authentication."""

    APP_THERE = "app_there"
    CONFIRM_FIRST = "confirm_first"
    LAST_FACTOR = "last_factor"
    NO_APP = "no_app"
    NO_FACTOR = "no_factor"
    NO_SUCH_PASSKEY = "no_such_passkey"
    PASSKEY_COPIED = "passkey_copied"
    PASSKEY_LATE = "passkey_late"
    PASSKEY_NAME = "passkey_name"
    PASSKEY_REFUSED = "passkey_refused"
    SECRET_UNREADABLE = "mfa_secret_unreadable"
    SET_UP_FIRST = "set_up_mfa_first"
    TOO_MANY_PASSKEYS = "too_many_passkeys"
    TOO_MANY_TRIES = "too_many_tries"
    WRONG_CODE = "wrong_code"
