"""Rejects leaked passwords, by a file of hashes or a range API.

Both are off by default. The range API receives the first 5 of 40 hex digits of the password's SHA-1 and
returns all hashes with that prefix; it does not learn the password. If the file or API is unavailable, the
password is accepted and a warning is logged.
"""

from __future__ import annotations

import hashlib
import logging
import os
from pathlib import Path

import httpx
from django.conf import settings
from django.core.exceptions import ValidationError
from django.utils.translation import gettext as _

TIMEOUT_S = 2.0
PREFIX = 5

log = logging.getLogger(__name__)


class BreachedPasswordValidator:
    """Password validator that rejects leaked passwords."""

    def validate(self, password: str, user: object = None) -> None:
        """Raise `ValidationError` for a leaked password."""
        if is_breached(password):
            raise ValidationError(
                _("This password has appeared in a data leak. Choose another."),
                code="password_breached",
            )

    def get_help_text(self) -> str:
        return _("Your password cannot be one from a known data leak.")


def is_breached(password: str) -> bool:
    """Return whether the password is known to be leaked. False if no source is configured or available."""
    digest = hashlib.sha1(password.encode(), usedforsecurity=False).hexdigest().upper()
    try:
        if settings.BERTH_BREACHED_PASSWORDS_FILE:
            return is_in_file(digest, Path(settings.BERTH_BREACHED_PASSWORDS_FILE))
        if settings.BERTH_BREACHED_PASSWORDS_URL:
            return _in_range(digest, settings.BERTH_BREACHED_PASSWORDS_URL)
    except (OSError, ValueError, httpx.HTTPError, httpx.InvalidURL) as error:
        log.warning("could not compare new password with leaked passwords: %s", error)
    return False


def is_in_file(digest: str, path: Path) -> bool:
    """Return whether a sorted file of lines `HASH` or `HASH:COUNT` has this SHA-1. Raises `OSError`.

    `digest` is in upper case. Uses binary search: a complete file is about 40 GB.
    """
    target = digest.encode()
    with path.open("rb") as file:
        low, high = 0, os.fstat(file.fileno()).st_size
        # Invariant: the matching line, if any, begins in [low, high).
        while low < high:
            middle = (low + high) // 2
            file.seek(middle)
            if middle:
                file.seek(middle - 1)
                file.readline()
            begins = file.tell()
            line = file.readline()
            line_digest = line[:40].upper()
            if line_digest == target:
                return True
            if not line or begins >= high or line_digest > target:
                high = middle
            else:
                low = begins + len(line)
    return False


def _in_range(digest: str, url: str) -> bool:
    answer = httpx.get(
        f"{url}/{digest[:PREFIX]}", timeout=TIMEOUT_S, headers={"Add-Padding": "true"}, follow_redirects=False
    )
    answer.raise_for_status()
    for line in answer.iter_lines():
        suffix, _colon, count = line.strip().partition(":")
        # A count of 0 is padding.
        if suffix.upper() == digest[PREFIX:]:
            return count.strip() != "0"
    return False
