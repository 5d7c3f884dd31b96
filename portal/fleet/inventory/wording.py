"""Texts of refusals about pools, nodes and devices."""

from __future__ import annotations

from enum import StrEnum

from django.utils.translation import gettext, ngettext_lazy
from django.utils.translation import gettext_lazy as _

from portal.common.reasons.wording import Text, joined_lists
from portal.fleet.inventory.codes import InventoryCode

TEXTS: dict[StrEnum, Text] = {
    InventoryCode.LOCATION_NOT_VALID: Text(_("The location is not valid."), _("Correct the marked fields.")),
    InventoryCode.MAINTENANCE_END_PAST: Text(
        _("The planned end must be in the future and after the start."), _("Choose a later end.")
    ),
    InventoryCode.MAINTENANCE_NOT_VALID: Text(
        _("The maintenance is not valid."), _("Correct the marked fields.")
    ),
    InventoryCode.MAINTENANCE_REASON_MISSING: Text(_("Enter a reason. All users see it.")),
    InventoryCode.MAINTENANCE_REASON_TOO_LONG: Text(_("Use at most %(max)s characters.")),
    InventoryCode.MAINTENANCE_TOO_FAR: Text(_("Choose a start within %(days)s days.")),
    InventoryCode.MAINTENANCE_TOO_LONG: Text(
        _("Maintenance lasts up to %(days)s days."), _("Choose an earlier end, and extend it later.")
    ),
    InventoryCode.NO_MAINTENANCE: Text(
        _("No maintenance is in progress or planned here."), _("Set maintenance first.")
    ),
    InventoryCode.NODE_NOT_IN_POOL: Text(
        _("Node “%(node)s” not found in the pool “%(pool)s”."),
        _("Remove it from the file, or apply the file after the machine has joined."),
    ),
    InventoryCode.NO_SUCH_DEVICE: Text(_("Device not found."), _("Check the list of devices.")),
    InventoryCode.NO_SUCH_NODE: Text(_("Node not found."), _("Check the list of nodes.")),
    InventoryCode.NO_SUCH_POOL: Text(_("Pool “%(slug)s” not found."), _("Check the list of pools.")),
    InventoryCode.POOL_CONFIG_NOT_UNDERSTOOD: Text(
        _("The driver configuration is not valid (%(reason)s)."), _("Correct the pool's configuration.")
    ),
    InventoryCode.POOL_HAS_NO_SETTING: Text(
        _("The driver %(driver)s has no setting “%(name)s”."),
        _("Use one of: %(known)s."),
        prepare=joined_lists("known"),
    ),
    InventoryCode.POOL_FIELD_FIXED: Text(
        _("“%(field)s” cannot be changed after the pool is created."),
        _("Create another pool, and retire this one."),
    ),
    InventoryCode.POOL_IN_USE: Text(
        ngettext_lazy(
            "“%(pool)s” still has %(count)s workspace.",
            "“%(pool)s” still has %(count)s workspaces.",
            "count",
        ),
        _("Delete the pool once they have ended."),
    ),
    InventoryCode.POOL_NOT_RETIRED: Text(
        _("“%(pool)s” still accepts new workspaces."), _("Retire it first, then delete it.")
    ),
    InventoryCode.POOL_SLUG_TAKEN: Text(_("Slug “%(slug)s” already in use."), _("Choose another slug.")),
    InventoryCode.POOL_NOT_VALID: Text(_("The pool is not valid. Correct the marked fields.")),
    InventoryCode.POOL_SILENT: Text(
        _("The pool's node worker has not responded for several minutes."),
        _("Check that the node worker is running."),
    ),
    # The driver's own message (see provisioning.errors).
    InventoryCode.DRIVER_REPORT: Text("%(message)s"),
    InventoryCode.SPAN_UNKNOWN: Text(
        _("Unknown time span."),
        _("Choose %(known)s."),
        prepare=lambda params: {"known": gettext(" or ").join(params["known"])},
    ),
}
