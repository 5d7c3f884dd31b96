"""Texts of refusals about machines. Durations are in seconds."""

from __future__ import annotations

from datetime import datetime
from enum import StrEnum

from django.utils.translation import gettext_lazy as _
from django.utils.translation import ngettext_lazy

from portal.common.formatting import format_moment
from portal.common.reasons.wording import Params, Text
from portal.fleet.machines.codes import MachineCode


def _until(params: Params) -> Params:
    return {"until": format_moment(datetime.fromisoformat(params["until"]))}


_NEW_TOKEN = _("Create a new token on the pool's page.")
_JOIN_AGAIN = _("Join again with a new token.")

TEXTS: dict[StrEnum, Text] = {
    MachineCode.ACCELERATOR_DRIVER_MISSING: Text(
        _("%(node)s has no working driver for its accelerators (%(state)s)."),
        _("Install or repair the driver. The next inventory detects it."),
    ),
    MachineCode.CERTIFICATE_ENDED: Text(
        _("The certificate of %(node)s has expired, so its workspaces are unreachable."),
        _("Join the node again."),
    ),
    MachineCode.NODES_ALL_OFFLINE: Text(
        _("No node is online."), _("Check that the node workers are running.")
    ),
    MachineCode.NODE_ELSEWHERE: Text(
        _("The node %(node)s already belongs to the pool %(pool)s. A machine can have only one pool."),
        _("Add another machine to this pool, or retire and delete the other pool."),
    ),
    MachineCode.NO_NODE_YET: Text(_("The pool has no node."), _("Start a node worker, or add a machine.")),
    MachineCode.NO_WORKER_ANSWERS: Text(
        _("The pool has no inventory yet."), _("Start a node worker, and check the pool's configuration.")
    ),
    MachineCode.POOL_IS_OFF: Text(_("The pool is disabled."), _("Enable it on the pool's page.")),
    MachineCode.POOL_RETIRING: Text(
        _("The pool is retired and accepts no new workspaces."), _("Return it to service, or delete it.")
    ),
    MachineCode.POOL_CLOSED: Text(
        _("In maintenance until %(until)s. No new workspaces start."),
        _("End the maintenance on the pool's page or the site's maintenance page."),
        _until,
    ),
    MachineCode.CLOCK_OFF: Text(
        _("This machine's clock differs from the portal's by %(seconds)d seconds."),
        _("Synchronise the clock (NTP), then join again with the same token."),
    ),
    MachineCode.CSR_INVALID: Text(
        _("The certificate request is not valid: %(reason)s."),
        _("Join with the same version of `berth` as the portal."),
    ),
    MachineCode.IDENTITY_REPLACED: Text(
        _("%(node)s presented a replaced certificate. Two machines may be using its name."),
        _("Identify the right machine, revoke the node, and join that machine again."),
    ),
    MachineCode.JOIN_TOKEN_EXPIRED: Text(_("The join token has expired."), _NEW_TOKEN),
    MachineCode.JOIN_TOKEN_UNKNOWN: Text(
        _("The join token is not valid or was revoked."),
        _("Copy the whole command from the pool's page."),
    ),
    MachineCode.JOIN_TOKEN_USED: Text(_("The join token was already used."), _NEW_TOKEN),
    MachineCode.JOIN_TOO_OFTEN: Text(
        _("Too many join attempts from this address."), _("Wait a few minutes, then try again.")
    ),
    MachineCode.MACHINE_JOINED_ALREADY: Text(
        _("This machine, or one with the same machine ID, has already joined as %(node)s."),
        _("Remove %(node)s first. On a copied machine, create a new machine ID (systemd-machine-id-setup)."),
    ),
    MachineCode.MACHINE_STILL_JOINED: Text(
        _("%(node)s is still joined."), _("Leave from the node or revoke it first.")
    ),
    MachineCode.NODES_ADDRESS_MISSING: Text(
        _("The portal has no address for nodes."),
        _("Set BERTH_NODES_ADDRESS to the name or address of this machine, and restart Berth."),
    ),
    MachineCode.NODE_HAS_WORKSPACES: Text(
        ngettext_lazy(
            "%(node)s still has %(count)d workspace.",
            "%(node)s still has %(count)d workspaces.",
            "count",
        ),
        _("Drain the node on its page. If the node is lost, remove it on its pool's page."),
    ),
    MachineCode.NODE_NAME_INVALID: Text(
        _("“%(name)s” is not a valid node name."),
        _("Set --name to up to 63 lower-case letters, digits and hyphens."),
    ),
    MachineCode.NODE_NAME_TAKEN: Text(
        _("A node %(name)s already exists."),
        _("Set another name with --name, or remove that node on its pool's page."),
    ),
    MachineCode.NOT_A_JOINED_NODE: Text(_("This machine is not a node of the portal."), _JOIN_AGAIN),
    MachineCode.NO_AUTHORITY: Text(
        _("The portal cannot sign certificates: its authority's key is missing or unreadable."),
        _("Restart Berth to create a new key. Then join the nodes again."),
    ),
    MachineCode.NO_SUCH_JOIN_TOKEN: Text(_("Join token not found."), _("Check the pool's page.")),
    MachineCode.NO_SUCH_MACHINE: Text(_("Machine not found."), _("Check the list of machines.")),
    MachineCode.POOL_TAKES_NO_MACHINES: Text(
        _("Machines cannot join %(pool)s because its driver uses an external engine."),
        _("Choose a pool with the driver “local”."),
    ),
    MachineCode.SIGNING_KEY_INVALID: Text(
        _("The signing key must be a separate Ed25519 public key."),
        _("Join with the same version of `berth` as the portal."),
    ),
    MachineCode.USER_OF_REDIS_LEFT: Text(
        _("Redis is not responding, so the Redis user of %(node)s was not removed."),
        _("Try again once Redis responds."),
    ),
    MachineCode.VERSION_DIFFERS: Text(
        _("This machine has Berth %(theirs)s, but the portal has %(ours)s."),
        _("Install %(ours)s on the machine, then join again with the same token."),
    ),
}
