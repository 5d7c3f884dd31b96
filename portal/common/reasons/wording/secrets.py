"""Texts of the refusals about secrets for workspaces."""

from __future__ import annotations

from enum import StrEnum

from django.utils.translation import gettext_lazy as _

from portal.common.reasons.codes import SecretCode
from portal.common.reasons.wording import Params, Text, listed


def _kib(params: Params) -> Params:
    return {**params, "limit": params["limit"] // 1024}


TEXTS: dict[StrEnum, Text] = {
    SecretCode.DESCRIPTION_TOO_LONG: Text(_("A description has at most %(limit)d characters.")),
    SecretCode.KIND_UNKNOWN: Text(_("A secret is an environment variable or a file."), _("Use env or file.")),
    SecretCode.NAME_INVALID: Text(
        _("The name of a secret is that of an environment variable: letters, digits and _, at most 64."),
        _("Write it as WANDB_API_KEY."),
    ),
    SecretCode.NAME_RESERVED: Text(
        _("Programs go by the variable %(name)s, so no secret may have its name."), _("Choose another name.")
    ),
    SecretCode.NAME_TAKEN: Text(
        _("There is a secret %(name)s here already."),
        _("Give that one another value, or choose another name."),
    ),
    SecretCode.NOT_VALID: Text(_("The secret is not valid."), _("Mend the fields that are named.")),
    SecretCode.NO_SUCH_SECRET: Text(_("There is no such secret."), _("List those that there are.")),
    SecretCode.TOO_LARGE_TOGETHER: Text(
        _("The secrets of a workspace have at most %(limit)d KiB together."),
        _("Name fewer, or put large files into the home folder."),
        prepare=_kib,
    ),
    SecretCode.TOO_MANY: Text(
        _("There are %(limit)d secrets here, which is as many as there may be."), _("Delete one first.")
    ),
    SecretCode.TOO_MANY_NAMED: Text(_("A workspace names at most %(limit)d secrets."), _("Name fewer.")),
    SecretCode.UNKNOWN_NAMED: Text(
        _("Neither you nor the team have a secret of this name: %(names)s."),
        _("Save it first, or leave its name out."),
        prepare=listed("names"),
    ),
    SecretCode.UNREADABLE: Text(
        _("The secret %(name)s was saved under another secret key of the portal and cannot be read."),
        _("Save its value anew."),
    ),
    SecretCode.VALUE_EMPTY: Text(_("The value is empty.")),
    SecretCode.VALUE_INVALID: Text(
        _("A value is text in UTF-8 without NUL, of at most %(limit)d KiB."),
        _("Encode other data, as with base64."),
        prepare=_kib,
    ),
}
