"""Texts of hints about the GPU use of workspaces."""

from __future__ import annotations

from enum import StrEnum

from django.utils.translation import gettext_lazy as _

from portal.common.reasons.wording import Text
from portal.workspaces.codes import EfficiencyCode

TEXTS: dict[StrEnum, Text] = {
    EfficiencyCode.NONE_USED: Text(
        _("The workspace did not use its GPUs (%(held)s)."),
        _("Release the GPUs until you need them, or check that your code uses them."),
    ),
    EfficiencyCode.SOME_UNUSED: Text(
        _("The workspace used only %(used)s of its %(held)s GPUs."),
        _("Resize the workspace to fewer GPUs, or change your code to use all of them."),
    ),
    EfficiencyCode.SMALLER_WOULD_DO: Text(
        _("GPU memory use peaked at %(memory)s %%, and GPU utilisation was %(percent)s %%."),
        _("Resize the workspace to a GPU share, a smaller MIG instance or a smaller GPU."),
    ),
    EfficiencyCode.MOSTLY_IDLE: Text(
        _("GPU utilisation was %(percent)s %%."),
        _("Release the GPUs between runs, or check whether loading data slows them down."),
    ),
}
