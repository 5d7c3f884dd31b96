"""Account names for people who are known by their e-mail addresses."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from itertools import chain, count

from django.db.models import Q

from portal.common.names import SERVICE_PREFIX
from portal.people.accounts.models import User

MAX_USERNAME = 32
LONGEST_SUFFIX = 6
"""Characters of the largest number after a name, with its hyphen."""
MAX_STARTS = 50
"""Maximum number of name prefixes that one query compares."""
_NOT_IN_NAMES = re.compile(r"[^a-z0-9._-]+")
_ENDS = "._-"


def taken_account_names(addresses: Iterable[str]) -> set[str]:
    """Return existing account names that `free_account_name` of these addresses would avoid. One query."""
    bases = {name_base(address) for address in addresses} - {""}
    if not bases:
        return set()
    # A long name is shortened to make room for its number.
    starts = {base[: MAX_USERNAME - LONGEST_SUFFIX].rstrip(_ENDS) for base in bases}
    if len(starts) > MAX_STARTS:
        # A query with that many conditions takes longer than reading thousands of names.
        return set(User.objects.values_list("username", flat=True))
    similar = Q(*(("username__startswith", start) for start in starts), _connector=Q.OR)
    return set(User.objects.filter(similar).values_list("username", flat=True))


def free_account_name(address: str, taken: Collection[str]) -> str:
    """Return an account name that is not `taken`: the part before the @, shortened, with a number if needed.

    Pass as `taken` the names from `taken_account_names` and those that the caller has chosen since.
    """
    base = name_base(address)
    suffixes = chain([""], (f"-{number}" for number in count(2)))
    names = (base[: MAX_USERNAME - len(suffix)].rstrip(_ENDS) + suffix for suffix in suffixes)
    return next(name for name in names if name not in taken)


def name_base(address: str) -> str:
    """Return the part before the @ as an account name, or "" if no valid character is left."""
    base = _NOT_IN_NAMES.sub("-", address.partition("@")[0].lower()).strip(_ENDS)
    return base.removeprefix(SERVICE_PREFIX)[:MAX_USERNAME].strip(_ENDS)
