"""Texts of hints about the GPU use of workspaces."""

from __future__ import annotations

from enum import StrEnum

from django.utils.translation import gettext_lazy as _

from portal.common.reasons.wording import Text
from portal.workspaces.codes import EfficiencyCode

TEXTS: dict[StrEnum, Text] = {
    EfficiencyCode.NONE_USED: Text(
        _("Its GPUs (%(held)s) did nothing."),
        _("Release them until you need them, or check that your code uses them."),
    ),
    EfficiencyCode.SOME_UNUSED: Text(
        _("Of its %(held)s GPUs only %(used)s did something."),
        _("Resize it to fewer, or have your code use all of them."),
    ),
    EfficiencyCode.SMALLER_WOULD_DO: Text(
        _("Its GPU memory never passed %(memory)s %% of the device, which was used at %(percent)s %%."),
        _("A share, a smaller MIG instance or a smaller GPU would do: resize it."),
    ),
    EfficiencyCode.MOSTLY_IDLE: Text(
        _("Its GPUs were used at %(percent)s %%."),
        _("Release them between stretches of work, or see whether loading data holds them up."),
    ),
}
