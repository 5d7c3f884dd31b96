"""Texts of the reasons about GPU checks, and of results without a text from the node."""

from __future__ import annotations

from enum import StrEnum

from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _

from portal.common.reasons.wording import Params, Text
from portal.gpu_checks.codes import CheckCode

NOUNS = {
    "check": _("check"),
    "scrub": _("scrub"),
    "repartition": _("change of MIG layout"),
    "reset": _("reset"),
    "pair": _("check of a link"),
}
"""Nouns of runs within a sentence, by kind."""


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
    CheckCode.CANCELLED: Text(_("Cancelled before it began.")),
    CheckCode.CHECK_BEGUN: Text(
        _("It has begun, or somebody waits for it, and goes on to its end."), _("Wait for its verdict.")
    ),
    CheckCode.CHECK_UNDER_WAY: Text(
        _("A %(noun)s of %(device)s is under way."),
        _("Wait until it has ended, then ask again."),
        prepare=_noun,
    ),
    CheckCode.DEVICE_GONE: Text(_("%(device)s is gone."), _("Look whether the node sees it: nvidia-smi -L.")),
    CheckCode.DEVICE_IN_USE: Text(
        _("%(device)s is in use by a workspace."),
        _("Cordon the device and ask for the %(noun)s when it is free."),
        prepare=_noun,
    ),
    CheckCode.DEVICE_PARTITIONED: Text(
        _("%(device)s is partitioned into instances, so it cannot be worked on as a whole."),
        _("Ask for a %(noun)s of its instances."),
        prepare=_noun,
    ),
    CheckCode.HOURS_NOT_WHOLE: Text(
        _("Hours are whole numbers; 0 is never."), _("Correct the number and set it again.")
    ),
    CheckCode.HOURS_TOO_MANY: Text(_("At most %(max)d, which is a year; 0 is never.")),
    CheckCode.LAYOUT_CHANGE_LOST: Text(
        _("A change of its MIG layout was lost."),
        _("Look at its instances on the node, scrub them, then return it to service."),
    ),
    CheckCode.LINK_NEEDS_TWO_NODES: Text(
        _("A link goes from %(node)s to another node of its pool."), _("Choose another node.")
    ),
    CheckCode.LINK_NODE_BUSY: Text(
        _("%(node)s has as many checks under way as it takes at a time."), _("Wait until one has ended.")
    ),
    CheckCode.LINK_NOT_AS_IT_SHOULD_BE: Text("%(words)s"),
    CheckCode.LINK_NOT_BY_DRIVER: Text(
        _("The GPUs of %(pool)s are not checked by its nodes' own workers."),
        _("Check the link on the two nodes themselves: python -m provisioning.gpu.check --meet."),
    ),
    CheckCode.LINK_NO_ADDRESS: Text(
        _("The portal knows no address at which %(node)s or %(other)s is reached by the other."),
        _("Let one of them join, or set BERTH_NODES_ADDRESS."),
    ),
    CheckCode.LINK_NO_IDLE_GPU: Text(
        _("%(node)s has no whole GPU that is idle and has passed a check."),
        _("Wait until one is free, or check one first."),
    ),
    CheckCode.LINK_NO_OTHER_NODE: Text(
        _("No other node of the pool of %(node)s has an RDMA port that is up."),
        _("Bring a port of another node up (ibstat shows them), then refresh the inventory."),
    ),
    CheckCode.LINK_NO_RDMA: Text(
        _("%(node)s has no RDMA port that is up."),
        _("Bring a port up (ibstat shows them), then refresh the inventory."),
    ),
    CheckCode.LINK_OTHER_END: Text(_("%(node)s has ended its part before this one began.")),
    CheckCode.LINK_OTHER_END_SAYS: Text(_("Right at this end. At the other, %(node)s: %(words)s")),
    CheckCode.LINK_PORTS_IN_USE: Text(
        _("All ports for such checks are in use at %(address)s."),
        _("Wait until a check of a link has ended, or allow more ports in BERTH_CHECK_PORTS."),
    ),
    CheckCode.LINK_WRONG_AT_BOTH: Text(_("Both nodes saw wrong words. %(words)s")),
    CheckCode.LINK_WRONG_AT_ONE: Text(_("%(node)s alone saw wrong words, %(other)s none. %(words)s")),
    CheckCode.NODE_NOT_ANSWERING: Text(
        _("%(node)s has not answered."), _("Look whether its node worker runs.")
    ),
    CheckCode.NO_SUCH_CHECK: Text(_("There is no such check."), _("Look at the checks of the device.")),
    CheckCode.NO_SUCH_LEVEL: Text(_("There is no such level.")),
    CheckCode.NO_VERDICT: Text(_("No verdict came within %(within_s)d s.")),
    CheckCode.REPORT_UNSOUND: Text(
        _("Its node sent no sound report of the %(noun)s: %(problem)s"), prepare=_noun
    ),
    CheckCode.RESET_ASKED: Text(_("An operator has asked for its reset.")),
    CheckCode.RESET_LOSES_INSTANCES: Text(
        _("%(device)s is partitioned into instances, which a reset would destroy."),
        _("Cordon its instances, destroy them on the node, and take it out of MIG mode first."),
    ),
    CheckCode.RESET_LOST: Text(
        _("A reset of it was lost: nobody knows whether it was done."),
        _("Look whether the node's worker runs, then check the device."),
    ),
    CheckCode.RESET_NOT_ADVISED: Text(
        _("%(device)s takes work, and no check advises a reset of it."), _("Cordon it first.")
    ),
    CheckCode.RESET_OF_INSTANCE: Text(
        _("%(device)s is a part of a GPU, which is reset as a whole."), _("Ask for a reset of its GPU.")
    ),
    CheckCode.SETTINGS_NOT_VALID: Text(_("The pool's checks cannot be set like this.")),
    CheckCode.WRITE_HOURS: Text(_("Write a whole number of hours; 0 is never.")),
    CheckCode.CHECK_FAILED: Text(_("%(what)s; another one is taken."), prepare=_check_failed),
    CheckCode.REPARTITION_FAILED: Text(
        _("The MIG layout of %(device)s could not be changed: %(problem)s It waits for another place.")
    ),
    CheckCode.SHARE_WITHDRAWN: Text(
        _("The GPU of which it got a part is scrubbed first, as somebody has left it. It waits again.")
    ),
}
