"""Rules for names that become parts of paths, host names and URLs."""

from __future__ import annotations

from django.core.validators import RegexValidator
from django.utils.translation import gettext_lazy as _

SERVICE_PREFIX = "svc-"
"""How the name of every service account begins, and no other: it is known by it wherever it is named."""

# A leading letter or digit and no dots in front: safe as one component of a path.
slug_validator = RegexValidator(
    r"^[a-z0-9](?:[a-z0-9-]*[a-z0-9])?\Z",
    _("Use lower-case letters, digits and hyphens; begin and end with a letter or digit."),
)
username_validator = RegexValidator(
    r"^[a-z0-9](?:[a-z0-9._-]*[a-z0-9])?\Z",
    _("Use lower-case letters, digits, dots, hyphens and underscores; begin and end with a letter or digit."),
)
