"""Environments, templates, flavors, secrets, repositories, the site file."""

# ruff: noqa: S105  (codes that name a token are no secrets)
from __future__ import annotations

from enum import StrEnum


class GitCode(StrEnum):
    """Repositories that workspaces clone: what is refused, and what became of a clone."""

    NOT_INSTALLED = "git_not_installed"
    SECRET_UNKNOWN = "git_secret_unknown"
    NOT_CLONED = "not_cloned"
    NOT_CLONED_AUTH = "not_cloned_auth"
    NOT_CLONED_CERTIFICATE = "not_cloned_certificate"
    NOT_CLONED_DISK_FULL = "not_cloned_disk_full"
    NOT_CLONED_EGRESS = "not_cloned_egress"
    NOT_CLONED_HOST_KEY = "not_cloned_host_key"
    NOT_CLONED_NO_GIT = "not_cloned_no_git"
    NOT_CLONED_NO_PLACE = "not_cloned_no_place"
    NOT_CLONED_NO_REF = "not_cloned_no_ref"
    NOT_CLONED_NO_SECRET = "not_cloned_no_secret"
    NOT_CLONED_NOT_FOUND = "not_cloned_not_found"
    NOT_CLONED_TIMED_OUT = "not_cloned_timed_out"
    NOT_CLONED_TOO_LARGE = "not_cloned_too_large"
    NOT_CLONED_UNREACHABLE = "not_cloned_unreachable"
    NOT_CLONED_WRONG_SECRET = "not_cloned_wrong_secret"
    SCRIPT_FAILED = "dotfiles_script_failed"
    SCRIPT_TIMED_OUT = "dotfiles_script_timed_out"


class SecretCode(StrEnum):
    """Refusals about secrets for workspaces."""

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


class SiteCode(StrEnum):
    """Refusals about site files."""

    FILE_ANCHOR = "file_anchor"
    FILE_LINE = "file_line"
    FILE_NOT_YAML = "file_not_yaml"
    FILE_SIGN = "file_sign"
    FILE_TOO_LARGE = "file_too_large"
    FILE_TWICE = "file_twice"
    NO_SUCH_NAME = "no_such_name"
    STEP_REFUSED = "step_refused"
    TEAM_NAME_STAYS = "team_name_stays"
