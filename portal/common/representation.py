"""Values as REST shows them, for serializers that write their representation out.

A DRF serializer asks each field for its attribute, row by row, and copies all of its fields for each
request. That is most of the time of a list. Serializers of lists that are asked for often therefore
override `to_representation` with a plain dictionary; their fields stay, for the documentation. A test
compares the two.
"""

from __future__ import annotations

import datetime as dt


def stamp(at: dt.datetime | None) -> str | None:
    """A time as DRF's `DateTimeField` shows it: ISO 8601, in UTC."""
    if at is None:
        return None
    text = at.isoformat()
    if not text.endswith("+00:00"):
        text = at.astimezone(dt.UTC).isoformat()
    return text[:-6] + "Z"
