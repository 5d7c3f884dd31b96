"""Rejects passwords that consist mostly of a word associated with this site."""

from __future__ import annotations

import re
from urllib.parse import urlsplit

from django.conf import settings
from django.core.exceptions import ValidationError
from django.utils.translation import gettext as _

MIN_BESIDE = 8
"""Minimum number of letters and digits besides the words."""

_GENERAL = frozenset(
    {"berth", "jupyter", "jupyterlab", "marimo", "notebook", "workspace", "admin", "password"}
)


def context_words() -> frozenset[str]:
    """Return common words, and parts of at least 4 letters of the names of the portal and the machine."""
    host = urlsplit(settings.BERTH_PUBLIC_URL).hostname or ""
    names = " ".join((host, settings.BERTH_DOMAIN, settings.BERTH_NODE_NAME)).lower()
    return _GENERAL | {word for word in re.split(r"[^a-z0-9]+", names) if len(word) >= 4}


class ContextWordsValidator:
    """Password validator that rejects a word of this site with few other characters."""

    def validate(self, password: str, user: object = None) -> None:
        """Raise `ValidationError` if fewer than `MIN_BESIDE` letters and digits remain without the words."""
        text, has_word = password.lower(), False
        for word in sorted(context_words(), key=len, reverse=True):
            has_word = has_word or word in text
            text = text.replace(word, " ")
        if has_word and sum(character.isalnum() for character in text) < MIN_BESIDE:
            raise ValidationError(
                _("This password is too similar to a name used here. Choose another."),
                code="password_context_word",
            )

    def get_help_text(self) -> str:
        return _("Your password cannot be too similar to a name used here.")
