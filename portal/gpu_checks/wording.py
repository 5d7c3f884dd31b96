"""Texts of the reasons about GPU checks, and texts for results to which the node adds none."""

from __future__ import annotations

from enum import StrEnum

from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _

from portal.common.reasons.wording import Params, Text
from portal.gpu_checks.codes import CheckCode

NOUNS = {
    "check": _("check"),
    "scrub": _("scrub"),
    "repartition": _("MIG layout change"),
    "reset": _("reset"),
    "pair": _("link check"),
    "joint": _("joint check"),
}
"""Nouns for runs within a sentence, by kind."""


def _noun(params: Params) -> Params:
    return {**params, "noun": NOUNS[params["kind"]]}


def _check_failed(params: Params) -> Params:
    """Format `devices` that failed their preflight checks or, with `unknown`, could not be checked."""
    pattern = (
        gettext("%(device)s could not be checked")
        if params.get("unknown")
        else gettext("%(device)s failed its check")
    )
    return {"what": gettext(" and ").join(pattern % {"device": name} for name in params["devices"])}


TEXTS: dict[StrEnum, Text] = {
    CheckCode.CANCELLED: Text(_("Cancelled before the start.")),
    CheckCode.CHECK_BEGUN: Text(
        _("The check has started or a workspace needs it, so it cannot be cancelled."),
        _("Wait for its result."),
    ),
    CheckCode.CHECK_UNDER_WAY: Text(
        _("A %(noun)s of %(device)s is in progress."),
        _("Wait until it is complete, then try again."),
        prepare=_noun,
    ),
    CheckCode.DEVICE_GONE: Text(
        _("%(device)s is missing."), _("Check on the node that nvidia-smi -L lists the GPU.")
    ),
    CheckCode.DEVICE_IN_USE: Text(
        _("%(device)s is in use by a workspace."),
        _("Cordon the device, and request the %(noun)s when the device is free."),
        prepare=_noun,
    ),
    CheckCode.DEVICE_PARTITIONED: Text(
        _("%(device)s is partitioned, so a %(noun)s of the whole GPU is not possible."),
        _("Request a %(noun)s of its MIG instances."),
        prepare=_noun,
    ),
    CheckCode.HOURS_NOT_WHOLE: Text(
        _("Hours must be whole numbers."), _("Correct the number, or enter 0 for never.")
    ),
    CheckCode.HOURS_TOO_MANY: Text(_("Enter up to %(max)d hours (1 year), or 0 for never.")),
    CheckCode.LAYOUT_CHANGE_LOST: Text(
        _("The result of a MIG layout change was lost."),
        _("Check the instances on the node, scrub them, then return the GPU to service."),
    ),
    CheckCode.JOINT_NODE_BUSY: Text(
        _("GPU checks on %(node)s are in progress."), _("Wait until they are complete.")
    ),
    CheckCode.JOINT_NODE_IN_USE: Text(
        _("Workspaces use GPUs of %(node)s."),
        _("Drain the node, and request the check when the node is empty."),
    ),
    CheckCode.JOINT_NOT_BY_DRIVER: Text(
        _("The node workers of %(pool)s do not check its GPUs."),
        _("Check them on the node itself: python -m provisioning.gpu.check --joint."),
    ),
    CheckCode.JOINT_TOO_FEW: Text(
        _("%(node)s has fewer than 2 whole GPUs in service."),
        _("Return its GPUs to service, or check each alone."),
    ),
    CheckCode.LINK_NEEDS_TWO_NODES: Text(
        _("A link check needs %(node)s and another node of its pool."), _("Choose another node.")
    ),
    CheckCode.LINK_NODE_BUSY: Text(
        _("%(node)s has reached its limit of simultaneous checks."), _("Wait until a check is complete.")
    ),
    CheckCode.LINK_NOT_AS_IT_SHOULD_BE: Text("%(words)s"),
    CheckCode.LINK_NOT_BY_DRIVER: Text(
        _("The node workers of %(pool)s do not check its GPUs."),
        _("Check the link on the two nodes themselves: python -m provisioning.gpu.check --meet."),
    ),
    CheckCode.LINK_NO_ADDRESS: Text(
        _("The portal knows no address at which %(node)s and %(other)s can reach each other."),
        _("Join one of them with “berth node join”, or set BERTH_NODES_ADDRESS on the portal’s machine."),
    ),
    CheckCode.LINK_NO_IDLE_GPU: Text(
        _("%(node)s has no idle whole GPU that has passed a check."),
        _("Wait until a GPU is free, or check one first."),
    ),
    CheckCode.LINK_NO_OTHER_NODE: Text(
        _("No other node in %(node)s's pool has an active RDMA port."),
        _("Bring up a port of another node (see ibstat), then refresh the inventory."),
    ),
    CheckCode.LINK_NO_RDMA: Text(
        _("%(node)s has no active RDMA port."),
        _("Bring up a port (see ibstat), then refresh the inventory."),
    ),
    CheckCode.LINK_OTHER_END: Text(_("%(node)s ended its part of the check before this end started.")),
    CheckCode.LINK_OTHER_END_SAYS: Text(_("This end passed. The other end, %(node)s, reported: %(words)s")),
    CheckCode.LINK_PORTS_IN_USE: Text(
        _("All ports for link checks at %(address)s are in use."),
        _("Wait until a link check is complete, or allow more ports in BERTH_CHECK_PORTS."),
    ),
    CheckCode.LINK_WRONG_AT_BOTH: Text(_("Both nodes received wrong data. %(words)s")),
    CheckCode.LINK_WRONG_AT_ONE: Text(_("Only %(node)s received wrong data, %(other)s did not. %(words)s")),
    CheckCode.NODE_NOT_ANSWERING: Text(
        _("%(node)s is not responding."), _("Check that its node worker is running.")
    ),
    CheckCode.NO_SUCH_CHECK: Text(_("GPU check not found."), _("Choose a check on the device’s page.")),
    CheckCode.NO_SUCH_LEVEL: Text(_("Unknown check level.")),
    CheckCode.NO_VERDICT: Text(_("The check gave no result within %(within_s)d s.")),
    CheckCode.REPORT_UNSOUND: Text(
        _("The node sent an invalid report of the %(noun)s: %(problem)s"), prepare=_noun
    ),
    CheckCode.RESET_ASKED: Text(_("An operator requested a reset.")),
    CheckCode.RESET_LOSES_INSTANCES: Text(
        _("%(device)s is partitioned into MIG instances, which a reset would destroy."),
        _("Cordon its instances, destroy them on the node, and disable MIG mode first."),
    ),
    CheckCode.RESET_LOST: Text(
        _("The result of a reset was lost, so its outcome is unknown."),
        _("Check that the node worker is running, then check the device."),
    ),
    CheckCode.RESET_NOT_ADVISED: Text(
        _("%(device)s is in service, and no check recommends a reset."), _("Cordon the device first.")
    ),
    CheckCode.RESET_OF_INSTANCE: Text(
        _("%(device)s is part of a GPU, and a reset applies to the whole GPU."),
        _("Request a reset of its GPU."),
    ),
    CheckCode.SETTINGS_NOT_VALID: Text(
        _("The check settings were not saved because some fields are not valid."),
        _("Correct the marked fields."),
    ),
    CheckCode.WRITE_HOURS: Text(_("Enter a whole number of hours, or 0 for never.")),
    CheckCode.CHECK_FAILED: Text(_("%(what)s. The workspace is queued again."), prepare=_check_failed),
    CheckCode.REPARTITION_FAILED: Text(
        _("The MIG layout of %(device)s could not be changed: %(problem)s The workspace is queued again.")
    ),
    CheckCode.SHARE_WITHDRAWN: Text(
        _("The GPU has to be scrubbed after an earlier workspace, so this workspace is queued again.")
    ),
}
