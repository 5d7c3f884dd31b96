"""Texts of the reasons about home moves and archives."""

from __future__ import annotations

from enum import StrEnum

from django.utils.translation import gettext_lazy as _
from django.utils.translation import ngettext

from portal.common.formatting import format_memory
from portal.common.reasons.reason import Reason
from portal.common.reasons.wording import Params, Text, sentence_of
from portal.workspaces.homes.codes import ArchiveCode, HomeMoveCode


def _amounts(params: Params) -> Params:
    """Add formatted amounts for parameters in MiB."""
    amounts = {
        name.removesuffix("_mib"): format_memory(value)
        for name, value in params.items()
        if name.endswith("_mib")
    }
    return {**params, **amounts}


def _format_room(params: Params) -> Params:
    needed, free = (format_memory(params[name]) for name in ("needed_mib", "free_mib"))
    return {**params, "needed": needed, "free": free}


def _with_start(params: Params) -> Params:
    """Return the params with the cause as a sentence. Without a cause, the move was cancelled."""
    cause = params["cause"]
    text = sentence_of(Reason.from_json(cause)) if cause else _("The move was cancelled.")
    return {"cause": text}


def _homes_in_use(params: Params) -> Params:
    text = ngettext(
        "%(count)d remaining home folder is in use by workspaces.",
        "%(count)d remaining home folders are in use by workspaces.",
        params["count"],
    )
    return {**params, "text": text % {"count": params["count"]}}


TEXTS: dict[StrEnum, Text] = {
    ArchiveCode.AWAY: Text(
        _("The home folder is archived because it was unused."),
        _("Restore it on the Home folders page, or start a workspace to restore it."),
    ),
    ArchiveCode.BAD_NAME: Text(
        _("The name of the archive is not valid."), _("Enter up to %(maximum)d printable characters.")
    ),
    ArchiveCode.BEING_WORKED_ON: Text(
        _("An archive or a move of this home folder is in progress."),
        _("Wait until it is complete, or cancel it."),
    ),
    ArchiveCode.CHANGED: Text(
        _("“%(name)s” changed while the home folder was archived, so the folder was not emptied."),
        _("You do not need to do anything. The home folder is unchanged."),
    ),
    ArchiveCode.DAMAGED: Text(
        _("The archive is damaged. The home folder is unchanged."),
        _("Delete the archive, and ask an operator to check the disk."),
    ),
    ArchiveCode.DISK_FULL: Text(
        _("The disk of %(node)s has only %(free)s available, which is not enough. Nothing was changed."),
        _("Delete archives or files that you no longer need, or ask an operator."),
        prepare=_amounts,
    ),
    ArchiveCode.FULL: Text(
        _("The archives of this home folder would exceed their limit of %(limit)s."),
        _("Delete an archive, or files that you no longer need."),
        prepare=_amounts,
    ),
    ArchiveCode.GONE: Text(
        _("The archive is missing on the disk of %(node)s."),
        _("Delete the archive here, and contact an operator."),
    ),
    ArchiveCode.HOME_ELSEWHERE: Text(
        _("The archive is on %(node)s, but your home folder is on another machine."),
        _("First move the home folder to %(node)s, on the page Home folders."),
    ),
    ArchiveCode.HOLDS_HOME: Text(
        _("This archive is the only copy of the home folder."), _("Restore the archive, then delete it.")
    ),
    ArchiveCode.IN_USE: Text(_("Workspaces are using the home folder."), _("Stop these workspaces first.")),
    ArchiveCode.KEEPS_ENDING: Text(
        _("The archive process on %(node)s was interrupted several times. Nothing was changed."),
        _("Try again. If the problem persists, contact an operator."),
    ),
    ArchiveCode.NODE_GONE: Text(
        _("%(node)s has left or was removed."), _("Ask an operator whether the machine will return.")
    ),
    ArchiveCode.NODE_SILENT: Text(
        _("%(node)s is not responding."), _("Wait until it responds, or cancel the operation.")
    ),
    ArchiveCode.NOT_HERE: Text(
        _("Archives are not available in this pool: its machines do not keep separate home folders."),
        _("Ask an operator for snapshots of the file system."),
    ),
    ArchiveCode.NOT_READY: Text(_("This archive cannot be restored."), _("Choose another archive.")),
    ArchiveCode.NO_SUCH_ARCHIVE: Text(_("Archive not found."), _("Check the list of archives.")),
    ArchiveCode.NOTHING_TO_CANCEL: Text(
        _("No operation of this archive is in progress."), _("Check the list of archives.")
    ),
    ArchiveCode.REPORTED: Text("%(text)s"),
    ArchiveCode.RESTORE_CANCELLED: Text(
        _("The restore was cancelled."), _("Restore the archive when you need the home folder.")
    ),
    ArchiveCode.TOO_MANY: Text(
        _("Limit of %(count)d archives of a home folder reached."), _("Delete an archive first.")
    ),
    ArchiveCode.UNREADABLE: Text(
        _("“%(name)s” in the home folder is unreadable, too large or nested too deep."),
        _("Move or delete it, then try again."),
    ),
    HomeMoveCode.ALREADY_EVACUATED: Text(
        _("The home folders of %(node)s are already being moved to %(to)s."),
        _("Wait until the move is complete, or cancel it."),
    ),
    HomeMoveCode.HOMES_IN_USE: Text(
        "%(text)s",
        _("Drain the machine to stop these workspaces. The moves then continue automatically."),
        prepare=_homes_in_use,
    ),
    HomeMoveCode.HOMES_NOT_APART: Text(
        _("The machines of %(pool)s do not keep separate home folders, so no move is needed.")
    ),
    HomeMoveCode.NO_HOMES_THERE: Text(_("%(node)s has no home folders to move.")),
    HomeMoveCode.NO_SUCH_EVACUATION: Text(
        _("Move of home folders not found."), _("Check the page of the machine.")
    ),
    HomeMoveCode.NO_TARGETS: Text(
        _("No other machine of %(pool)s can receive home folders now."),
        _("Add a machine, or return one to service."),
    ),
    HomeMoveCode.ALREADY_MOVING: Text(
        _("The home folder is being moved to %(node)s, or an earlier move to it is being cleaned up."),
        _("Wait until it is complete, or cancel it."),
    ),
    HomeMoveCode.ALREADY_THERE: Text(
        _("The home folder is already on %(node)s."), _("Choose another machine.")
    ),
    HomeMoveCode.ENDED: Text(_("The move has already ended.")),
    HomeMoveCode.HOME_BEING_MOVED: Text(
        _("The home folder is being moved to %(node)s."), _("Wait until the move is complete.")
    ),
    HomeMoveCode.IN_USE: Text(_("Workspaces are using the home folder."), _("Stop these workspaces first.")),
    HomeMoveCode.NODE_GONE: Text(_("%(node)s has left or was removed.")),
    HomeMoveCode.NO_SUCH_MOVE: Text(_("Move not found."), _("Check the Home folders page.")),
    HomeMoveCode.NO_SUCH_TARGET: Text(
        _("Home folders cannot be moved to “%(node)s”."),
        _("Choose another machine of the pool that is online and accepts workspaces."),
    ),
    HomeMoveCode.OLD_SILENT: Text(_("%(node)s, from which the home folder is moved, is not responding.")),
    HomeMoveCode.NEW_SILENT: Text(_("%(node)s, to which the home folder is moved, is not responding.")),
    HomeMoveCode.NO_ROOM: Text(
        _("The home folder needs %(needed)s more on %(node)s, but only %(free)s is available."),
        _("Free space there, or choose another machine."),
        prepare=_format_room,
    ),
    HomeMoveCode.NOT_WITH_START: Text(
        _("The home folder could not move with the start: %(cause)s"),
        _("The workspace is queued again and waits for the machine of the home folder."),
        prepare=_with_start,
    ),
    HomeMoveCode.REPORTED: Text("%(text)s"),
    HomeMoveCode.START_ENDED: Text(_("The workspace that the home folder moved for was stopped.")),
}
