"""Texts of the reasons about files of a home."""

from __future__ import annotations

from enum import StrEnum

from django.utils.translation import gettext_lazy as _

from portal.common.reasons.wording import Text, listed
from portal.workspaces.home_files.codes import FileCode

TEXTS: dict[StrEnum, Text] = {
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
