"""Codes of secrets."""

# ruff: noqa: S105  (codes that name a token are no secrets)
from __future__ import annotations

from enum import StrEnum


class SecretCode(StrEnum):
    """Errors about secrets of workspaces."""

    CHANGED_MEANWHILE = "secret_changed_meanwhile"
    DESCRIPTION_TOO_LONG = "secret_description_too_long"
    KIND_UNKNOWN = "secret_kind_unknown"
    NAME_INVALID = "secret_name_invalid"
    NAME_RESERVED = "secret_name_reserved"
    NAME_TAKEN = "secret_name_taken"
    NOT_VALID = "secret_not_valid"
    NO_SUCH_SECRET = "no_such_secret"
    TOO_LARGE_TOGETHER = "secrets_too_large_together"
    TOO_MANY = "too_many_secrets"
    TOO_MANY_NAMED = "too_many_secrets_named"
    UNKNOWN_NAMED = "unknown_secrets_named"
    UNREADABLE = "secret_unreadable"
    VALUE_AND_VAULT = "secret_value_and_vault"
    VALUE_EMPTY = "secret_value_empty"
    VALUE_INVALID = "secret_value_invalid"
    VAULT_AWAY = "vault_away"
    VAULT_CERTIFICATE = "vault_certificate"
    VAULT_FORBIDDEN = "vault_forbidden"
    VAULT_KEY_INVALID = "vault_key_invalid"
    VAULT_LOGIN_REFUSED = "vault_login_refused"
    VAULT_NOT_A_VALUE = "vault_not_a_value"
    VAULT_NOT_CONFIGURED = "vault_not_configured"
    VAULT_NO_PATHS = "vault_no_paths"
    VAULT_NO_SUCH_KEY = "vault_no_such_key"
    VAULT_NO_SUCH_PATH = "vault_no_such_path"
    VAULT_PATH_INVALID = "vault_path_invalid"
    VAULT_PATH_LOST = "vault_path_lost"
    VAULT_PATH_NOT_ALLOWED = "vault_path_not_allowed"
    VAULT_SEALED = "vault_sealed"
    VAULT_UNEXPECTED = "vault_unexpected"
