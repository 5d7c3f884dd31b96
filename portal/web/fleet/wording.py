"""Texts of the reasons about the map of GPUs."""

from __future__ import annotations

from enum import StrEnum

from django.utils.translation import gettext_lazy as _

from portal.common.reasons.wording import Text
from portal.web.fleet.codes import MapCode

TEXTS: dict[StrEnum, Text] = {
    MapCode.DEVICE_NOT_ON_MAP: Text(_("There is no such device."), _("Look at the map of GPUs.")),
    MapCode.NODE_NOT_ON_MAP: Text(_("There is no such node."), _("Look at the map of GPUs.")),
    MapCode.NO_DEVICE_AT_PLACE: Text(
        _("There is no device at this place any more."), _("Look at the map of GPUs.")
    ),
}
