"""Codes of orphans."""

from __future__ import annotations

from enum import StrEnum


class OrphanCode(StrEnum):
    """Errors about orphans."""

    ENDS_BY_ITSELF = "orphan_ends_by_itself"
    GONE_ALREADY = "orphan_gone_already"
    HAS_OWNER = "orphan_has_owner"
    NAME_NOT_TYPED = "orphan_name_not_typed"
    NO_SUCH_ORPHAN = "no_such_orphan"
