"""User IDs reserved for workspaces on this machine (`BERTH_NODE_UIDS`), if root runs the node worker.

The first part is for owners of workspaces, the last part for spares, and the very last ID for builds of
environments. Imports only the standard library and `provisioning.errors`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from provisioning.errors import InvalidSpec

VARIABLE = "BERTH_NODE_UIDS"
DEFAULT = "200000-265535"
MIN_UID, MIN_COUNT, MAX_UID = 1000, 64, 2**31 - 2
SPARE_PART = 16
"""Divisor: spares get this part of the IDs."""


@dataclass(frozen=True, slots=True)
class UidRange:
    """User IDs that nothing else on the machine uses, both ends included."""

    first: int
    last: int

    def __contains__(self, uid: int) -> bool:
        return self.first <= uid <= self.last

    @property
    def owners(self) -> range:
        """User IDs for owners of workspaces."""
        return range(self.first, self.last + 1 - (self.last - self.first + 1) // SPARE_PART)

    @property
    def spares(self) -> range:
        """User IDs for spares."""
        return range(self.owners.stop, self.last)

    @property
    def builds(self) -> int:
        """User ID for builds of environments; one build runs at a time."""
        return self.last


def configured_range(environ: Mapping[str, str]) -> UidRange | None:
    """Return this node's range; None if disabled. Raises `InvalidSpec`, with the fix."""
    text = environ.get(VARIABLE, "").strip() or DEFAULT
    if text == "none":
        return None
    first, dash, last = text.partition("-")
    if dash and first.isdecimal() and last.isdecimal():
        uids = UidRange(int(first), int(last))
        if uids.first >= MIN_UID and uids.last <= MAX_UID and uids.last - uids.first + 1 >= MIN_COUNT:
            return uids
    raise InvalidSpec(
        f"{VARIABLE}={text} is not a valid range of user IDs. Write a range like {DEFAULT} with at least "
        f"{MIN_COUNT} user IDs from {MIN_UID} on, or none."
    )


def is_for_workspaces(uid: int, environ: Mapping[str, str]) -> bool:
    """Return whether `uid` is in the range set by `environ`; False for an invalid range."""
    try:
        reserved = configured_range(environ)
    except InvalidSpec:
        return False
    return reserved is not None and uid in reserved
