"""Texts of the reasons about the GPU map."""

from __future__ import annotations

from enum import StrEnum

from django.utils.translation import gettext_lazy as _

from portal.common.reasons.wording import Text
from portal.web.fleet.codes import MapCode

TEXTS: dict[StrEnum, Text] = {
    MapCode.DEVICE_NOT_ON_MAP: Text(_("Device not found."), _("Choose one from the GPU map.")),
    MapCode.NODE_NOT_ON_MAP: Text(_("Node not found."), _("Choose one from the GPU map.")),
    MapCode.NO_DEVICE_AT_PLACE: Text(
        _("The device at this position was removed."), _("Choose one from the GPU map.")
    ),
}
