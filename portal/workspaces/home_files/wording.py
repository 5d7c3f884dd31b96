"""Messages of the reason codes of home files."""

from __future__ import annotations

from enum import StrEnum

from django.utils.translation import gettext_lazy as _

from portal.common.reasons.wording import Text, joined_lists
from portal.workspaces.home_files.codes import FileCode

TEXTS: dict[StrEnum, Text] = {
    FileCode.BAD_NAME: Text(
        _("“%(name)s” is not a valid file name."), _("Enter a name of up to 255 bytes without “/”.")
    ),
    FileCode.BUSY: Text(_("Too many transfers are waiting."), _("Try again in a few minutes.")),
    FileCode.DISK_FULL: Text(
        _("The disk of the node is almost full."), _("Delete what you no longer need, or ask an operator.")
    ),
    FileCode.EXISTS: Text(
        _("A file or folder “%(name)s” already exists."),
        _("Choose another name, or delete the existing one first."),
    ),
    FileCode.FAILED: Text(
        _("The node could not complete the operation."),
        _("Try again. If the problem persists, contact an operator."),
    ),
    FileCode.HOME_FULL: Text(
        _("Your home folder has no space for “%(name)s”."),
        _("Delete what you no longer need, then try again."),
    ),
    FileCode.HOME_NOWHERE: Text(
        _("You have no home folder in this team yet."), _("Start the workspace once to create it.")
    ),
    FileCode.IS_A_LINK: Text(
        _("“%(name)s” is a link, and links are not followed."), _("Open the target of the link instead.")
    ),
    FileCode.NOT_A_FILE: Text(
        _("“%(name)s” is not a regular file."), _("Choose a file, or download a folder as zip or tar.")
    ),
    FileCode.NOT_A_FOLDER: Text(_("“%(name)s” is not a folder."), _("Choose a folder.")),
    FileCode.NOT_FOUND: Text(_("“%(name)s” not found."), _("Reload the folder.")),
    FileCode.NOT_READ: Text(
        _("The files are unavailable now. %(message)s"), _("Try again in a few seconds.")
    ),
    FileCode.NOT_WRITABLE: Text(
        _("You do not have permission to change “%(name)s”."),
        _("Change its permissions in the workspace first."),
    ),
    FileCode.NO_SUCH_FORM: Text(
        _("Unknown download format."), _("Use one of: %(known)s."), prepare=joined_lists("known")
    ),
    FileCode.OFFSET_INVALID: Text(_("The offset is not valid."), _("Choose a number from 0 to %(maximum)d.")),
    FileCode.RESERVED_NAME: Text(
        _("The name “%(name)s” is reserved for Berth."),
        _("Choose a name that does not begin with “.berth-”."),
    ),
}
