"""Texts of the refusals about pools, nodes and devices."""

from __future__ import annotations

from enum import StrEnum

from django.utils.translation import gettext_lazy as _

from portal.common.reasons.codes import InventoryCode
from portal.common.reasons.wording import Text

TEXTS: dict[StrEnum, Text] = {
    InventoryCode.DEVICE_NOT_ON_MAP: Text(_("There is no such device."), _("Look at the map of GPUs.")),
    InventoryCode.NODE_NOT_ON_MAP: Text(_("There is no such node."), _("Look at the map of GPUs.")),
    InventoryCode.NO_DEVICE_AT_PLACE: Text(
        _("There is no device at this place any more."), _("Look at the map of GPUs.")
    ),
    InventoryCode.NO_SUCH_DEVICE: Text(_("There is no such device."), _("Look at the list of devices.")),
    InventoryCode.NO_SUCH_NODE: Text(_("There is no such node."), _("Look at the list of nodes.")),
    InventoryCode.NO_SUCH_POOL: Text(_("There is no pool “%(slug)s”."), _("Look at the list of pools.")),
    InventoryCode.POOL_NOT_VALID: Text(_("The pool cannot be added like this.")),
    InventoryCode.POOL_SILENT: Text(
        _("Its worker has not answered for some minutes."), _("Look whether the node worker runs.")
    ),
}
