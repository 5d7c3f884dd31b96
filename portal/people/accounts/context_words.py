"""Refuses passwords that are little more than a word of this place: the first that somebody would try."""

from __future__ import annotations

import re
from urllib.parse import urlsplit

from django.conf import settings
from django.core.exceptions import ValidationError
from django.utils.translation import gettext as _

MIN_BESIDE = 8
"""As many letters and digits have to be left when the words are taken away."""

_GENERAL = frozenset(
    {"berth", "jupyter", "jupyterlab", "marimo", "notebook", "workspace", "admin", "password"}
)


def context_words() -> frozenset[str]:
    """The general ones, and the parts of four letters or more of the portal's and the machine's name."""
    host = urlsplit(settings.BERTH_PUBLIC_URL).hostname or ""
    names = " ".join((host, settings.BERTH_DOMAIN, settings.BERTH_NODE_NAME)).lower()
    return _GENERAL | {word for word in re.split(r"[^a-z0-9]+", names) if len(word) >= 4}


class ContextWordsValidator:
    """A validator of Django's."""

    def validate(self, password: str, user: object = None) -> None:
        """Raise `ValidationError` where fewer than `MIN_BESIDE` letters and digits are beside the words."""
        text, found = password.lower(), False
        for word in sorted(context_words(), key=len, reverse=True):
            found = found or word in text
            text = text.replace(word, " ")
        if found and sum(character.isalnum() for character in text) < MIN_BESIDE:
            raise ValidationError(
                _("This password is little more than a name that everybody knows here. Choose another one."),
                code="password_context_word",
            )

    def get_help_text(self) -> str:
        return _("Your password can't be little more than a name that everybody knows here.")
