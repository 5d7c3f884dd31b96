"""Fields that the site file calls otherwise than the rooms that keep them, and what it called them before.

An export has the new names, a file may have either. Between the two, plans are made in the new ones.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from portal.catalog.documents import RENAMED as OF_ENTRIES
from portal.common.errors import InvalidInput
from portal.common.reasons.codes import SiteCode
from portal.common.reasons.reason import Reason
from portal.common.renamed import Names
from portal.gpu_checks.settings import RENAMED as OF_POOLS
from portal.site_file.reading import Lines

RENAMED: Mapping[str, Names] = {"pools": OF_POOLS, "flavors": OF_ENTRIES, "templates": OF_ENTRIES}
"""By section: former names, which columns have, and new ones."""


def for_file(section: str, document: Mapping[str, Any]) -> dict[str, Any]:
    """A room's document as the file has it."""
    renamed = RENAMED.get(section, {})
    return {renamed.get(name, name): value for name, value in document.items()}


def for_room(section: str, document: Mapping[str, Any]) -> dict[str, Any]:
    """The file's document as its room takes it."""
    former = {new: old for old, new in RENAMED.get(section, {}).items()}
    return {former.get(name, name): value for name, value in document.items()}


def with_new_names(wanted: Mapping[str, Any], lines: Lines) -> dict[str, Any]:
    """The site that was read, by new names alone; lines are those of the names that it has.

    Raises `InvalidInput` where an entry has both and they differ.
    """
    found = dict(wanted)
    for section, renamed in RENAMED.items():
        for slug, document in (wanted.get(section) or {}).items():
            for old, new in renamed.items():
                if old not in document:
                    continue
                where = (section, slug, old)
                if document.get(new, document[old]) != document[old]:
                    params = {
                        "line": lines.of(where),
                        "where": f"{section}.{slug}"[:120],
                        "old": old,
                        "new": new,
                    }
                    reason = Reason(SiteCode.FILE_NAMES_DIFFER, params)
                    raise InvalidInput(reason, errors={"yaml": [reason]})
                lines.setdefault((section, slug, new), lines.of(where))
        if found.get(section):
            found[section] = {slug: for_file(section, each) for slug, each in found[section].items()}
    return found
