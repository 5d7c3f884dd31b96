"""Validation of names used in paths, host names and URLs."""

from __future__ import annotations

import re
import unicodedata

from django.core.validators import RegexValidator
from django.utils.translation import gettext_lazy as _

from provisioning import location

SERVICE_PREFIX = "svc-"
"""Reserved name prefix of service accounts."""

# Safe as one path component: starts with a letter or digit, never with a dot.
slug_validator = RegexValidator(
    r"^[a-z0-9](?:[a-z0-9-]*[a-z0-9])?\Z",
    _("Use lower-case letters, digits and hyphens. Start and end with a letter or digit."),
)
username_validator = RegexValidator(
    r"^[a-z0-9](?:[a-z0-9._-]*[a-z0-9])?\Z",
    _("Use lower-case letters, digits, dots, hyphens and underscores. Start and end with a letter or digit."),
)
location_validator = RegexValidator(
    rf"^{location.PATTERN}\Z",
    _("Use up to 63 letters, digits, dots, hyphens and underscores. Start and end with a letter or digit."),
)


def slug_of(name: str, maximum: int) -> str:
    """Return the slug proposed for a name, of up to `maximum` characters; empty without a–z and digits."""
    ascii_name = unicodedata.normalize("NFKD", name).encode("ascii", "ignore").decode().lower()
    return re.sub(r"[^a-z0-9]+", "-", ascii_name).strip("-")[:maximum].rstrip("-")
