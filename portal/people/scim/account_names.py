"""Account names for SCIM user names, which are often e-mail addresses."""

from __future__ import annotations

from django.core.exceptions import ValidationError
from django.core.validators import validate_email

from portal.common.names import username_validator
from portal.people.accounts.free_names import MAX_USERNAME, name_base

MAX_USER_NAME = 254


def normalized(user_name: str) -> str:
    """Return the SCIM user name in lower case. Raises `ValidationError` unless it is a name or an address."""
    # Lower-casing maps some letters to ASCII: the Kelvin sign would become k.
    if not user_name.isascii() or len(user_name) > MAX_USER_NAME:
        raise ValidationError("")
    name = user_name.lower()
    if "@" in name:
        validate_email(name)
        if not name_base(name):
            raise ValidationError("")
    else:
        username_validator(name)
    return name


def is_account_name(user_name: str) -> bool:
    """Return whether a normalized SCIM user name can be the account name, without changes."""
    return "@" not in user_name and len(user_name) <= MAX_USERNAME
