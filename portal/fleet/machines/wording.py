"""Texts of refusals about machines. Durations are in seconds."""

from __future__ import annotations

from enum import StrEnum

from django.utils.translation import gettext_lazy as _
from django.utils.translation import ngettext_lazy

from portal.common.reasons.wording import Text
from portal.fleet.machines.codes import MachineCode

_NEW_TOKEN = _("Make a new one on the pool's page.")
_JOIN_AGAIN = _("Join again with a new token.")

TEXTS: dict[StrEnum, Text] = {
    MachineCode.ACCELERATOR_DRIVER_MISSING: Text(
        _("%(node)s has no working driver for its accelerators (%(state)s)."),
        _("Install or mend the driver there; inventory finds it by itself."),
    ),
    MachineCode.CERTIFICATE_ENDED: Text(
        _("The certificate of %(node)s has run out: nobody reaches what runs there."),
        _("Have it join again."),
    ),
    MachineCode.NODES_ALL_OFFLINE: Text(_("No node is online."), _("Look whether the node workers run.")),
    MachineCode.NODE_ELSEWHERE: Text(
        _("The node %(node)s is in the pool %(pool)s, and a machine counts in one pool only."),
        _("Add another machine to this pool, or retire and delete the other pool."),
    ),
    MachineCode.NO_NODE_YET: Text(_("It has no node."), _("Start a node worker, or add a machine.")),
    MachineCode.NO_WORKER_ANSWERS: Text(
        _("Nobody has taken stock of it."), _("Start a worker for it, and look at its configuration.")
    ),
    MachineCode.POOL_IS_OFF: Text(_("It is switched off."), _("Switch it on.")),
    MachineCode.POOL_RETIRING: Text(
        _("It takes no new workspaces."), _("Take it back into service, or delete it.")
    ),
    MachineCode.CLOCK_OFF: Text(
        _("The clock of this machine differs from that of the portal by %(seconds)d seconds."),
        _("Synchronise it (NTP), then join again with the same token."),
    ),
    MachineCode.CSR_INVALID: Text(
        _("The request for a certificate cannot be signed: %(reason)s."),
        _("Join with the program `berth` of this version."),
    ),
    MachineCode.IDENTITY_REPLACED: Text(
        _("The certificate that %(node)s has shown was replaced by another one: two machines use its name."),
        _("Look which is the right one, revoke the node, and join that machine again."),
    ),
    MachineCode.JOIN_TOKEN_EXPIRED: Text(_("The token to join has expired."), _NEW_TOKEN),
    MachineCode.JOIN_TOKEN_UNKNOWN: Text(
        _("This is not a valid join token, or it was revoked."),
        _("Copy the whole command from the pool's page."),
    ),
    MachineCode.JOIN_TOKEN_USED: Text(_("The token to join was used already."), _NEW_TOKEN),
    MachineCode.JOIN_TOO_OFTEN: Text(
        _("Too many attempts to join came from this address."), _("Wait some minutes, then try again.")
    ),
    MachineCode.MACHINE_JOINED_ALREADY: Text(
        _("This machine has joined as %(node)s, or is a copy of the one that has."),
        _(
            "Have %(node)s leave first; on a copy, give it a machine id of its own "
            "(systemd-machine-id-setup)."
        ),
    ),
    MachineCode.MACHINE_STILL_JOINED: Text(
        _("%(node)s is joined."), _("Have it leave, or revoke it, before it is removed.")
    ),
    MachineCode.NODES_ADDRESS_MISSING: Text(
        _("No machine can reach this one: it has no address for nodes."),
        _("Set BERTH_NODES_ADDRESS to the name or address of this machine and start Berth again."),
    ),
    MachineCode.NODE_HAS_WORKSPACES: Text(
        ngettext_lazy(
            "%(count)d workspace is placed on %(node)s.",
            "%(count)d workspaces are placed on %(node)s.",
            "count",
        ),
        _(
            "Drain it on its page. One that does not come back is removed with what is there on its pool's "
            "page."
        ),
    ),
    MachineCode.NODE_NAME_INVALID: Text(
        _("“%(name)s” is no name of a node."),
        _("Give one with --name: lower-case letters, digits and hyphens, at most 63."),
    ),
    MachineCode.NODE_NAME_TAKEN: Text(
        _("There is a node %(name)s already."),
        _("Give another name with --name, or remove that node on its pool's page."),
    ),
    MachineCode.NOT_A_JOINED_NODE: Text(_("This machine is no node of the portal."), _JOIN_AGAIN),
    MachineCode.NO_AUTHORITY: Text(
        _("The portal cannot sign certificates: its authority's key is missing or unreadable."),
        _("Restart Berth to create a new key. Then join the nodes again."),
    ),
    MachineCode.NO_SUCH_JOIN_TOKEN: Text(_("There is no such token."), _("Look at the pool's page.")),
    MachineCode.NO_SUCH_MACHINE: Text(_("There is no such machine."), _("Look at the list of machines.")),
    MachineCode.POOL_TAKES_NO_MACHINES: Text(
        _("Machines do not join %(pool)s: its driver asks an engine, not the nodes themselves."),
        _("Choose a pool with the driver “local”."),
    ),
    MachineCode.SIGNING_KEY_INVALID: Text(
        _("The key for signatures is no Ed25519 public key of its own."),
        _("Join with the program `berth` of this version."),
    ),
    MachineCode.USER_OF_REDIS_LEFT: Text(
        _("Redis does not answer, and still knows %(node)s."), _("Try again when it answers.")
    ),
    MachineCode.VERSION_DIFFERS: Text(
        _("This machine has Berth %(theirs)s, the portal %(ours)s."),
        _("Install %(ours)s there, then join again with the same token."),
    ),
}
