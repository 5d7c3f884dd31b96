"""Presenters for the pages of home archives."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from django.template.defaultfilters import filesizeformat
from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from portal.common.reasons.reason import Reason
from portal.common.reasons.wording import sentence_of
from portal.workspaces.homes import archives as home_archives
from portal.workspaces.homes import places as home_places
from portal.workspaces.models import HomeArchive, HomeArchiveState, HomeUsage, Workspace

LOOKS = {
    HomeArchiveState.READY: ("circle-check", "ok"),
    HomeArchiveState.FAILED: ("alert-circle", "bad"),
}


@dataclass(frozen=True, slots=True)
class ArchiveRow:
    """An archive: `about` is its content, `progress` that of its job, `problem` why the job waits or failed.

    `away` means that the archive and the home are on different nodes.
    """

    archive: HomeArchive
    icon: str
    tone: str
    about: str
    progress: str
    percent: int
    problem: str
    away: bool
    may_restore: bool
    may_cancel: bool
    may_delete: bool


def rows(workspace: Workspace, archives: Sequence[HomeArchive]) -> list[ArchiveRow]:
    """Return rows with the actions possible now, with two queries."""
    if not archives:
        return []
    place = home_places.node_of(workspace)
    node_name = place[1] if place is not None else ""
    usage = HomeUsage.objects.filter(
        owner=workspace.owner_id, team=workspace.team_id, node__name=node_name
    ).first()
    home_bytes = usage.used_mib << 20 if usage is not None else 0
    quiet = not any(archive.open for archive in archives)
    return [_row(archive, node_name, home_bytes, quiet) for archive in archives]


def _row(archive: HomeArchive, node_name: str, home_bytes: int, quiet: bool) -> ArchiveRow:
    state = HomeArchiveState(archive.state)
    ready = state == HomeArchiveState.READY
    away = ready and archive.node_name != node_name
    total = home_bytes if state == HomeArchiveState.MAKING else archive.stream_bytes
    done = min(archive.bytes_done, total)
    amounts = {"done": filesizeformat(archive.bytes_done), "total": filesizeformat(total)}
    is_measured = archive.active and total and archive.bytes_done <= total
    progress = _("%(done)s of %(total)s") % amounts if is_measured else ""
    if state == HomeArchiveState.MAKING and is_measured:
        progress = _("%(done)s of about %(total)s") % amounts
    icon, tone = LOOKS.get(state, ("clock", "busy"))
    return ArchiveRow(
        archive=archive,
        icon=icon,
        tone=tone,
        about=_about(archive),
        progress=progress,
        percent=done * 100 // total if is_measured else 0,
        problem=problem_text(archive),
        away=away,
        # An archive that is the only copy is restored and deleted on the page of homes.
        may_restore=ready and quiet and not away and archive.away_at is None,
        may_cancel=archive.active,
        may_delete=quiet and archive.away_at is None,
    )


def problem_text(archive: HomeArchive) -> str:
    """Return why the archive waits or failed as text, or an empty string."""
    if archive.reason:
        with contextlib.suppress(LookupError):
            return sentence_of(Reason.from_json(archive.reason))
    return ""


def _about(archive: HomeArchive) -> str:
    if archive.made_at is None:
        return ""
    entries = ngettext("%(count)d file or folder", "%(count)d files and folders", archive.entries)
    parts = [
        _("%(size)s on disk") % {"size": filesizeformat(archive.size_bytes)},
        _("%(size)s of files") % {"size": filesizeformat(archive.home_bytes)},
        entries % {"count": archive.entries},
    ]
    if archive.left_out:
        left = ngettext(
            "without %(count)d pipe, socket or device",
            "without %(count)d pipes, sockets and devices",
            archive.left_out,
        )
        parts.append(left % {"count": archive.left_out})
    return " · ".join(parts)


def refusal(workspace: Workspace) -> str:
    """Return why archives cannot be created or restored now, or an empty string."""
    reason = home_archives.archiving_obstacle(workspace)
    return sentence_of(reason) if reason is not None else ""


def total_size_text(archives: Sequence[HomeArchive]) -> str:
    """Return the total size of the archives as text."""
    total = sum(archive.size_bytes for archive in archives)
    return filesizeformat(total) if total else ""


def restore_question(workspace: Workspace, archive: HomeArchive) -> dict[str, Any]:
    """Return the context of the confirmation page for restoring a home."""
    params = {"name": archive.name, "team": archive.team.name, "node": archive.node_name}
    refusals = []
    reason = home_archives.archiving_obstacle(workspace)
    if reason is not None:
        refusals.append(sentence_of(reason))
    return {
        "title": _("Restore your home folder from “%(name)s”?") % params,
        "loses": [
            _(
                "everything now in your home folder in %(team)s, permanently, including changes "
                "since the archive"
            )
            % params,
            _("starts of workspaces that use it, which wait until this is complete"),
        ],
        "stays": [
            _("the current home folder, until the restored one is complete"),
            _("this archive and the others"),
            _("your workspaces, and home folders in other teams"),
        ],
        "yes": _("Replace home folder"),
        "refusals": refusals,
    }


def delete_question(archive: HomeArchive) -> dict[str, Any]:
    """Return the context of the confirmation page for deleting an archive."""
    params = {"name": archive.name}
    return {
        "title": _("Delete the archive “%(name)s”?") % params,
        "loses": [_("“%(name)s”, permanently") % params],
        "stays": [_("your current home folder"), _("other archives")],
        "yes": _("Delete archive"),
    }
