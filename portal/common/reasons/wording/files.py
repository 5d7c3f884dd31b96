"""Texts of the refusals about the files of a home."""

from __future__ import annotations

from enum import StrEnum

from django.utils.translation import gettext_lazy as _

from portal.common.formatting import format_memory
from portal.common.reasons.codes import ArchiveCode, FileCode
from portal.common.reasons.wording import Params, Text, listed


def _amounts(params: Params) -> Params:
    """Those in MiB, for people."""
    said = {
        name.removesuffix("_mib"): format_memory(value)
        for name, value in params.items()
        if name.endswith("_mib")
    }
    return {**params, **said}


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
    FileCode.BAD_NAME: Text(
        _("“%(name)s” cannot name a file."), _("Choose a name without “/”, of at most 255 bytes.")
    ),
    FileCode.BUSY: Text(_("Too many transfers wait already."), _("Try again in some minutes.")),
    FileCode.DISK_FULL: Text(
        _("The disk of the node is nearly full."), _("Delete what you no longer need, or ask your operator.")
    ),
    FileCode.EXISTS: Text(
        _("There is a file or folder “%(name)s” already."),
        _("Choose another name, or delete that one first."),
    ),
    FileCode.FAILED: Text(_("The node could not do this."), _("Try again; if it stays, tell an operator.")),
    FileCode.HOME_FULL: Text(
        _("Your home folder has no room for “%(name)s”."),
        _("Delete what you no longer need, then try again."),
    ),
    FileCode.HOME_NOWHERE: Text(
        _("Your home folder in this team is made by the first start."), _("Start the workspace once.")
    ),
    FileCode.IS_A_LINK: Text(
        _("“%(name)s” is a link, and links are not followed here."), _("Open what it leads to instead.")
    ),
    FileCode.NOT_A_FILE: Text(
        _("“%(name)s” is no ordinary file."), _("Choose a file; a folder comes as zip or tar.")
    ),
    FileCode.NOT_A_FOLDER: Text(_("“%(name)s” is no folder."), _("Choose a folder.")),
    FileCode.NOT_FOUND: Text(_("There is no “%(name)s” any more."), _("Go back and look at the folder.")),
    FileCode.NOT_READ: Text(
        _("The files cannot be reached just now. %(message)s"), _("Try again in a few seconds.")
    ),
    FileCode.NOT_WRITABLE: Text(
        _("You may not change “%(name)s”."), _("Change its permissions in the workspace first.")
    ),
    FileCode.NO_SUCH_FORM: Text(
        _("There is no such form of a download."), _("Use one of: %(known)s."), prepare=listed("known")
    ),
    FileCode.OFFSET_INVALID: Text(
        _("The number of entries to leave out is not valid."), _("Choose one from 0 to %(maximum)d.")
    ),
    FileCode.RESERVED_NAME: Text(
        _("“%(name)s” is a name that Berth uses itself."), _("Choose one that does not begin with “.berth-”.")
    ),
}
