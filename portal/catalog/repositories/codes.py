"""Error codes for repository URLs."""

from __future__ import annotations

from enum import StrEnum


class RepositoryCode(StrEnum):
    """Errors about URLs of Git repositories."""

    URL_CHARACTERS = "git_url_characters"
    URL_CREDENTIALS = "git_url_credentials"
    URL_MISSING = "git_url_missing"
    URL_OPTION = "git_url_option"
    URL_SCHEME = "git_url_scheme"
    URL_SHAPE = "git_url_shape"
    URL_TOO_LONG = "git_url_too_long"
    REF_INVALID = "git_ref_invalid"
