"""Texts of the reasons about moves and archives of homes."""

from __future__ import annotations

from enum import StrEnum

from django.utils.translation import gettext_lazy as _
from django.utils.translation import ngettext

from portal.common.formatting import format_memory
from portal.common.reasons.wording import Params, Text
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


def _homes_in_use(params: Params) -> Params:
    text = ngettext(
        "Workspaces use the %(count)d home folder that is left.",
        "Workspaces use the %(count)d home folders that are left.",
        params["count"],
    )
    return {**params, "text": text % {"count": params["count"]}}


TEXTS: dict[StrEnum, Text] = {
    ArchiveCode.AWAY: Text(
        _("The home folder is archived, as it was not used for long."),
        _("Restore it first, on the page of home folders or by starting a workspace."),
    ),
    ArchiveCode.BAD_NAME: Text(
        _("This is no name for an archive."), _("Choose one of at most %(maximum)d characters.")
    ),
    ArchiveCode.BEING_WORKED_ON: Text(
        _("An archive of this home folder is being made, restored or deleted."),
        _("Wait until that is over, or cancel it."),
    ),
    ArchiveCode.CHANGED: Text(
        _("“%(name)s” in the home folder was changed while it was archived, so it was not emptied."),
        _("Nothing has to be done: the home folder is as it was."),
    ),
    ArchiveCode.DAMAGED: Text(
        _("The archive has been damaged on its disk. The home folder is as it was."),
        _("Delete the archive, and tell an operator about the disk."),
    ),
    ArchiveCode.DISK_FULL: Text(
        _("The disk of %(node)s has no room for it: %(free)s may be used there. Nothing has changed."),
        _("Delete archives or files that you no longer need, or ask your operator."),
        prepare=_amounts,
    ),
    ArchiveCode.FULL: Text(
        _("It would take more than the %(limit)s that the archives of a home folder may take together."),
        _("Delete an archive, or files that you no longer need."),
        prepare=_amounts,
    ),
    ArchiveCode.GONE: Text(
        _("The archive is not on the disk of %(node)s any more."), _("Delete it here, and tell an operator.")
    ),
    ArchiveCode.HOME_ELSEWHERE: Text(
        _("The archive lies on %(node)s, and your home folder on another machine."),
        _("Move the home folder to %(node)s first, on the page of home folders."),
    ),
    ArchiveCode.HOLDS_HOME: Text(
        _("This archive is all that there is of the home folder."),
        _("Restore it first; then it can be deleted."),
    ),
    ArchiveCode.IN_USE: Text(
        _("Workspaces use the home folder."),
        _("Stop them first: archives are made and restored while nothing uses it."),
    ),
    ArchiveCode.KEEPS_ENDING: Text(
        _("What makes it on %(node)s ended again and again before it was done. Nothing has changed."),
        _("Try again; if it stays, tell an operator."),
    ),
    ArchiveCode.NODE_GONE: Text(
        _("%(node)s, where it lies, has left or was removed."), _("Ask an operator whether it comes back.")
    ),
    ArchiveCode.NODE_SILENT: Text(_("%(node)s does not answer."), _("Wait, or cancel it.")),
    ArchiveCode.NOT_HERE: Text(
        _("Home folders of this pool do not lie on one machine each, so no archives are made of them."),
        _("Ask your operator for snapshots of the file system."),
    ),
    ArchiveCode.NOT_READY: Text(_("This archive cannot be restored."), _("Choose another one.")),
    ArchiveCode.NO_SUCH_ARCHIVE: Text(_("There is no such archive."), _("Look at the list of archives.")),
    ArchiveCode.NOTHING_TO_CANCEL: Text(
        _("Nothing is under way that could be cancelled."), _("Look at the list of archives.")
    ),
    ArchiveCode.REPORTED: Text("%(text)s"),
    ArchiveCode.RESTORE_CANCELLED: Text(
        _("That was cancelled."), _("Restore it when you need the home folder.")
    ),
    ArchiveCode.TOO_MANY: Text(
        _("This home folder has %(count)d archives, as many as it may have."), _("Delete one first.")
    ),
    ArchiveCode.UNREADABLE: Text(
        _("“%(name)s” in the home folder cannot be read, is too large, or is nested too deep."),
        _("Move or delete it, then try again: an archive has all or nothing."),
    ),
    HomeMoveCode.ALREADY_EVACUATED: Text(
        _("The home folders of %(node)s are being moved to %(to)s."),
        _("Wait until that is over, or cancel it."),
    ),
    HomeMoveCode.HOMES_IN_USE: Text(
        "%(text)s",
        _("Drain the machine to have their workspaces stop; the moves go on by themselves."),
        prepare=_homes_in_use,
    ),
    HomeMoveCode.HOMES_NOT_APART: Text(
        _("The machines of %(pool)s do not keep home folders each for itself: nothing has to be moved.")
    ),
    HomeMoveCode.NO_HOMES_THERE: Text(_("No home folder that could be moved lies on %(node)s.")),
    HomeMoveCode.NO_SUCH_EVACUATION: Text(
        _("There is no such move of home folders."), _("Look at the page of the machine.")
    ),
    HomeMoveCode.NO_TARGETS: Text(
        _("No other machine of %(pool)s takes home folders now."),
        _("One has to be online and take work: add one, or put one back."),
    ),
    HomeMoveCode.ALREADY_MOVING: Text(
        _("The home folder is being moved to %(node)s, or what that has left is being taken away."),
        _("Wait until that is over, or cancel it."),
    ),
    HomeMoveCode.ALREADY_THERE: Text(_("The home folder lies on %(node)s already.")),
    HomeMoveCode.ENDED: Text(_("The move has ended.")),
    HomeMoveCode.HOME_BEING_MOVED: Text(
        _("The home folder is being moved to %(node)s."), _("Wait until that is over.")
    ),
    HomeMoveCode.IN_USE: Text(
        _("Workspaces use the home folder."), _("Stop them first: a home is moved while nothing uses it.")
    ),
    HomeMoveCode.NODE_GONE: Text(_("%(node)s has left or was removed.")),
    HomeMoveCode.NO_SUCH_MOVE: Text(_("There is no such move."), _("Look at the list of home folders.")),
    HomeMoveCode.NO_SUCH_TARGET: Text(
        _("No home folder can go to “%(node)s”."),
        _("Choose another machine of the pool that is online and takes work."),
    ),
    HomeMoveCode.OLD_SILENT: Text(_("%(node)s, where the home folder lies, does not answer.")),
    HomeMoveCode.NEW_SILENT: Text(_("%(node)s, where the home folder goes, does not answer.")),
    HomeMoveCode.NO_ROOM: Text(
        _("The home folder needs %(needed)s more on %(node)s, where %(free)s may be used."),
        _("Make room there, or choose another machine."),
        prepare=_format_room,
    ),
    HomeMoveCode.REPORTED: Text("%(text)s"),
}
