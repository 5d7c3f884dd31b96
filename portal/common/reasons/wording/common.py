"""Texts of the refusals that any room may make."""

from __future__ import annotations

from enum import StrEnum

from django.utils.translation import gettext_lazy as _

from portal.common.reasons.codes import CommonCode
from portal.common.reasons.wording import Text, listed

_CHOICES = {
    "template": _("Choose a template first."),
    "flavor": _("Choose a flavor first."),
    "team": _("Choose a team first."),
}

TEXTS: dict[StrEnum, Text] = {
    CommonCode.CHOOSE_ONE_OF: Text(_("Choose one of: %(known)s."), prepare=listed("known")),
    # A driver's report keeps the driver's own sentence (see provisioning.errors).
    CommonCode.DRIVER_REPORT: Text("%(message)s"),
    CommonCode.FIRST_CHOICE_MISSING: Text(
        "%(choose)s",
        _("The summary shows what is missing."),
        prepare=lambda params: {"choose": _CHOICES[params["field"]]},
    ),
    CommonCode.HOURS_NOT_UNDERSTOOD: Text(_("Say in hours how long you need it, such as 8 or 0.5.")),
    CommonCode.NO_SUCH_NOTICE: Text(
        _("There is no such notice of yours."), _("Look at your list of notices.")
    ),
}
