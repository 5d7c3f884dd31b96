"""Texts of refusals about pools, nodes and devices."""

from __future__ import annotations

from enum import StrEnum

from django.utils.translation import gettext, ngettext_lazy
from django.utils.translation import gettext_lazy as _

from portal.common.reasons.wording import Text, listed
from portal.fleet.inventory.codes import InventoryCode

TEXTS: dict[StrEnum, Text] = {
    InventoryCode.NO_SUCH_DEVICE: Text(_("There is no such device."), _("Look at the list of devices.")),
    InventoryCode.NO_SUCH_NODE: Text(_("There is no such node."), _("Look at the list of nodes.")),
    InventoryCode.NO_SUCH_POOL: Text(_("There is no pool “%(slug)s”."), _("Look at the list of pools.")),
    InventoryCode.POOL_CONFIG_NOT_UNDERSTOOD: Text(
        _("The driver cannot be set up like this (%(reason)s)."), _("Correct its configuration.")
    ),
    InventoryCode.POOL_HAS_NO_SETTING: Text(
        _("A pool with the driver %(driver)s has no setting “%(name)s”."),
        _("Use one of: %(known)s."),
        prepare=listed("known"),
    ),
    InventoryCode.POOL_FIELD_FIXED: Text(
        _("“%(field)s” stays as it was given at first."), _("Add another pool, and retire this one.")
    ),
    InventoryCode.POOL_IN_USE: Text(
        ngettext_lazy(
            "%(count)s workspace is still placed in “%(pool)s”.",
            "%(count)s workspaces are still placed in “%(pool)s”.",
            "count",
        ),
        _("Delete it when they have ended."),
    ),
    InventoryCode.POOL_NOT_RETIRED: Text(
        _("“%(pool)s” still takes new workspaces."), _("Retire it first, then delete it.")
    ),
    InventoryCode.POOL_SLUG_TAKEN: Text(_("The short name “%(slug)s” is taken."), _("Choose another one.")),
    InventoryCode.POOL_NOT_VALID: Text(_("The pool cannot be added like this.")),
    InventoryCode.POOL_SILENT: Text(
        _("Its worker has not answered for some minutes."), _("Look whether the node worker runs.")
    ),
    # The driver's own message (see provisioning.errors).
    InventoryCode.DRIVER_REPORT: Text("%(message)s"),
    InventoryCode.SPAN_UNKNOWN: Text(
        _("There is no such span."),
        _("Choose %(known)s."),
        prepare=lambda params: {"known": gettext(" or ").join(params["known"])},
    ),
}
