"""Account names for SCIM user names, which are often e-mail addresses."""

from __future__ import annotations

import re
from itertools import chain, count

from django.core.exceptions import ValidationError
from django.core.validators import validate_email

from portal.common.names import username_validator
from portal.people.accounts.models import User

MAX_USERNAME = 32
MAX_USER_NAME = 254
_NOT_IN_NAMES = re.compile(r"[^a-z0-9._-]+")
_ENDS = "._-"


def normalized(user_name: str) -> str:
    """Return the SCIM user name in lower case. Raises `ValidationError` unless it is a name or an address."""
    # Lower-casing maps some letters to ASCII: the Kelvin sign would become k.
    if not user_name.isascii() or len(user_name) > MAX_USER_NAME:
        raise ValidationError("")
    name = user_name.lower()
    if "@" in name:
        validate_email(name)
        if not _base(name):
            raise ValidationError("")
    else:
        username_validator(name)
    return name


def is_account_name(user_name: str) -> bool:
    """Return whether the account has the user name itself, which can be up to `MAX_USERNAME` long."""
    return "@" not in user_name and len(user_name) <= MAX_USERNAME


def free_account_name(user_name: str) -> str:
    """Return a free account name: the part before the @, shortened, with a number if it is taken."""
    base = _base(user_name)
    suffixes = chain([""], (f"-{number}" for number in count(2)))
    names = (base[: MAX_USERNAME - len(suffix)].rstrip(_ENDS) + suffix for suffix in suffixes)
    return next(name for name in names if not User.objects.filter(username=name).exists())


def _base(user_name: str) -> str:
    return _NOT_IN_NAMES.sub("-", user_name.partition("@")[0])[:MAX_USERNAME].strip(_ENDS)
