"""Presenters for the pages of orphans."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any

from django.conf import settings
from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from portal.common.formatting import format_memory
from portal.workspaces.orphans.models import Orphan, OrphanKind, OrphanState
from portal.workspaces.orphans.selectors import AT_ONCE, automatic_removal_at

LOOKS = {
    OrphanState.FOUND: ("alert-triangle", "wait"),
    OrphanState.REMOVING: ("clock", "info"),
    OrphanState.REMOVED: ("check", "ok"),
    OrphanState.GONE: ("check", "idle"),
}


@dataclass(frozen=True, slots=True)
class OrphanRow:
    """A row of the list.

    `removed_at` is the time of automatic removal; `can_remove` allows manual removal.
    """

    orphan: Orphan
    size: str
    icon: str
    tone: str
    removed_at: datetime | None
    at_once: bool
    can_remove: bool


def row(orphan: Orphan) -> OrphanRow:
    icon, tone = LOOKS[OrphanState(orphan.state)]
    return OrphanRow(
        orphan,
        format_memory(orphan.size_mib) if orphan.size_mib is not None else "",
        icon,
        tone,
        automatic_removal_at(orphan),
        orphan.kind in AT_ONCE,
        orphan.state == OrphanState.FOUND and orphan.kind != OrphanKind.WORKSPACE,
    )


def policy() -> list[str]:
    """Return the removal policy as sentences."""
    hours = settings.BERTH_ORPHAN_FOLDER_HOURS
    folders = (
        ngettext(
            "Folders are removed after %(count)d hour.", "Folders are removed after %(count)d hours.", hours
        )
        % {"count": hours}
        if hours
        else _("Folders are not removed automatically.")
    )
    return [
        _("Workspaces, processes and control groups are removed at once."),
        folders,
        _("Home folders are never removed automatically."),
    ]


def remove_question(orphan: Orphan) -> dict[str, Any]:
    """Return the context of the confirmation page for removing an orphan."""
    params = {"name": orphan.name, "node": orphan.node}
    home = orphan.kind == OrphanKind.HOME
    size = f" ({format_memory(orphan.size_mib)})" if orphan.size_mib is not None else ""
    label = _("%(name)s on %(node)s") % params
    return {
        "title": _("Delete %(name)s?") % params,
        "loses": [
            label + size,
            *([_("all files in it, permanently")] if home else []),
        ],
        "stays": [_("everything with an owner; %(node)s checks again before the deletion") % params],
        "yes": _("Delete orphan"),
        "typed": orphan.name if home else "",
    }
