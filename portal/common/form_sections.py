"""Summaries of the fields that are set in closed sections of forms."""

from __future__ import annotations

from collections.abc import Sequence

from django.utils.translation import gettext, ngettext

MAX_FIELDS = 3


def summary_of(changes: Sequence[str]) -> str:
    """Return “2 set: Port 8888, Memory 4 GiB” for fields that differ from their defaults, else “Defaults”."""
    if not changes:
        return gettext("Defaults")
    fields = ", ".join(changes[:MAX_FIELDS]) + (", …" if len(changes) > MAX_FIELDS else "")
    text = ngettext("%(count)s set: %(fields)s", "%(count)s set: %(fields)s", len(changes))
    return text % {"count": len(changes), "fields": fields}
