"""Account names for people who are known by an e-mail address."""

from __future__ import annotations

import re
from collections.abc import Collection
from itertools import chain, count

from portal.common.names import SERVICE_PREFIX
from portal.people.accounts.models import User

MAX_USERNAME = 32
_NOT_IN_NAMES = re.compile(r"[^a-z0-9._-]+")
_ENDS = "._-"


def free_account_name(address: str, taken: Collection[str] = ()) -> str:
    """Return a free account name: the part before the @, shortened, with a number if it is taken."""
    base = name_base(address)
    suffixes = chain([""], (f"-{number}" for number in count(2)))
    names = (base[: MAX_USERNAME - len(suffix)].rstrip(_ENDS) + suffix for suffix in suffixes)
    return next(
        name for name in names if name not in taken and not User.objects.filter(username=name).exists()
    )


def name_base(address: str) -> str:
    """Return the part before the @ as an account name, or "" if nothing of it is allowed in one."""
    base = _NOT_IN_NAMES.sub("-", address.partition("@")[0].lower()).strip(_ENDS)
    return base.removeprefix(SERVICE_PREFIX)[:MAX_USERNAME].strip(_ENDS)
