"""Texts of verdicts and blockers. `portal.scheduling.blockers` sets the params."""

from __future__ import annotations

from datetime import datetime
from enum import StrEnum

from django.utils import timezone
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy, ngettext

from portal.common.formatting import (
    format_amount,
    format_clock,
    format_duration,
    format_memory,
    format_resource,
    format_resource_amount,
)
from portal.common.reasons.codes import Rule
from portal.common.reasons.reason import Reason
from portal.common.reasons.wording import Params, Text, joined_lists
from portal.scheduling.codes import AdmissionCode
from portal.scheduling.engine.codes import PlacementCode
from portal.scheduling.wording.placement import format_requirements, joined

_WAIT = gettext_lazy("Start anyway to join the queue, or choose a smaller size.")
_ASK = gettext_lazy("Request more quota together with the workspace, which starts after approval.")
_SMALLER = gettext_lazy("Choose a smaller size.")
_ACTIONS = {"needs_approval": _ASK, "impossible": _SMALLER}


def _blocker(params: Params) -> Params:
    """Return the params with formatted amounts, the holders, and the action for the outcome."""
    resource = params["resource"]
    amounts = {"wanted": "", "free": "", "limit": ""}
    if resource:
        amounts = {
            "wanted": format_resource_amount(resource, params["wanted"]),
            "free": format_amount(resource, params["free"]),
            "limit": format_resource_amount(resource, params["limit"]),
        }
    holders = _holders(params)
    return {
        **amounts,
        "team": params["team"],
        "holders": f" {holders}." if holders else "",
        "action": _ACTIONS.get(params.get("outcome", ""), _WAIT),
    }


def _holders(params: Params) -> str:
    """Return the largest holders: “3 × H100 held by Vision, some of it until about 16:40 UTC”."""
    return "; ".join(_holder(params["resource"], holder) for holder in params.get("holders", ()))


def _holder(resource: str, holder: Params) -> str:
    amount = format_resource_amount(resource, holder["amount"])
    text = _("%(amount)s held by %(team)s") % {"amount": amount, "team": holder["team"]}
    if holder["until"]:
        until = format_clock(datetime.fromisoformat(holder["until"]), timezone.now())
        text += _(", some of it until about %(time)s") % {"time": until}
    if holder["idle"] > 0:
        idle = {
            "amount": format_amount(resource, holder["idle"]),
            "span": format_duration(holder["idle_s"]),
        }
        text += " " + _("(%(amount)s idle for %(span)s)") % idle
    return text


def _nodes(params: Params) -> Params:
    """Return the params with one node's reason, the number of others, and the holders."""
    holders = _holders(params)
    return {
        "nodes": _first_node(params),
        "holders": f" {holders}." if holders else "",
        "action": _ACTIONS.get(params.get("outcome", ""), _WAIT),
    }


def _first_node(params: Params) -> str:
    node, reason, more = params["node"], params["node_reason"], params["more_nodes"]
    if not node:
        return _("there are no nodes")
    text = joined(node, Reason(PlacementCode(reason["code"]), reason["params"]))
    if more:
        text += ngettext(", and %(count)s more node", ", and %(count)s more nodes", more) % {"count": more}
    return text


def _program(params: Params) -> Params:
    return {**params, "action": params["install_hint"] or _("Choose another template.")}


def _software(params: Params) -> Params:
    needs = format_requirements(params["min_cuda"], params["min_compute_capability"], params.get("model", ""))
    return {**params, "needs": needs}


def _on_model(params: Params) -> Params:
    """Return the params with the reason for the model: “: enough for your 8 GiB; A100 costs more”."""
    reasons = []
    if params["memory_mib"]:
        reasons.append(_("enough for your %(memory)s") % {"memory": format_memory(params["memory_mib"])})
    for kept in params["kept"]:
        values = {"model": format_resource(kept["resource"]), "count": kept["waiting"]}
        if kept["waiting"]:
            text = ngettext(
                "%(model)s kept for %(count)s queued workspace",
                "%(model)s kept for %(count)s queued workspaces",
                kept["waiting"],
            )
        elif kept["more_expensive"]:
            text = _("%(model)s costs more")
        else:
            text = _("%(model)s stays free")
        reasons.append(text % values)
    return {
        "model": format_resource(params["resource"]),
        "why": _(": %(reasons)s") % {"reasons": "; ".join(reasons)} if reasons else "",
    }


def _at_engine(params: Params) -> Params:
    """Return the params with the free units of the engine: “ (3 of 8 × H100 free there)”."""
    free = _(" (%(free)s of %(total)s × %(model)s free there)") % params if params["model"] else ""
    return {"pool": params["pool"], "free": free}


def _flavors(params: Params) -> Params:
    return {"flavors": ", ".join(params["flavors"])}


def _with_home(params: Params) -> Params:
    return {
        "node": params["node"],
        "size": format_memory(params["size_mib"]),
        "time": format_duration(params["seconds"]),
    }


def _until(params: Params) -> Params:
    until = format_clock(datetime.fromisoformat(params["until"]), timezone.now())
    return {**params, "until": until}


TEXTS: dict[StrEnum, Text] = {
    AdmissionCode.FITS_NOW: Text(gettext_lazy("Starts now.")),
    AdmissionCode.HANDED_OVER: Text(
        gettext_lazy("%(pool)s starts the workspace soon%(free)s."), prepare=_at_engine
    ),
    AdmissionCode.HANDED_OVER_TO_QUEUE: Text(
        gettext_lazy("Joins the queue of %(pool)s%(free)s."), prepare=_at_engine
    ),
    AdmissionCode.FITS_NOW_ON_MODEL: Text(gettext_lazy("Starts now on %(model)s%(why)s."), prepare=_on_model),
    AdmissionCode.FITS_NOW_WITH_HOME: Text(
        gettext_lazy("Starts now on %(node)s. %(size)s of files move there first, about %(time)s."),
        prepare=_with_home,
    ),
    AdmissionCode.FLAVOR_FIRST: Text(
        gettext_lazy("Waits for %(flavor)s. No later choice is expected to be free sooner.")
    ),
    AdmissionCode.FLAVOR_LATER: Text(
        gettext_lazy("Next is %(flavor)s, which is expected to be free before %(first)s.")
    ),
    AdmissionCode.FLAVOR_WITHIN: Text(
        gettext_lazy(
            "Waits for %(flavor)s, which is expected to be free within %(minutes)d minutes of %(sooner)s."
        )
    ),
    AdmissionCode.FLAVOR_OPEN: Text(
        gettext_lazy("Starts on the first of these that is free: %(flavors)s."), prepare=_flavors
    ),
    AdmissionCode.HOME_LOST: Text(
        gettext_lazy("Your home folder was on %(node)s, which was removed."),
        gettext_lazy(
            "Create an empty home folder on the Home folders page, or ask an operator to recover the old one."
        ),
    ),
    AdmissionCode.HOME_MOVING: Text(
        gettext_lazy("Your home folder is moving to %(node)s."),
        gettext_lazy("The workspace starts there automatically. See the progress on the Home folders page."),
    ),
    AdmissionCode.HOME_ARCHIVED: Text(
        gettext_lazy("Your home folder is being archived or restored on %(node)s."),
        gettext_lazy(
            "The workspace starts automatically afterwards. See the progress on the page of your home "
            "folder’s archives."
        ),
    ),
    AdmissionCode.HOME_AWAY: Text(
        gettext_lazy("Your home folder was archived on %(node)s because it was unused."),
        gettext_lazy(
            "The workspace starts automatically once the folder is restored. See the progress on the "
            "Home folders page."
        ),
    ),
    AdmissionCode.LOOKED_AT_AGAIN: Text(gettext_lazy("Checking…")),
    AdmissionCode.BUDGET_SPENT: Text(
        gettext_lazy("%(team)s has spent its budget for this month, and this size has a price."),
        gettext_lazy("Choose a size without a price, or ask an operator for a larger budget."),
    ),
    AdmissionCode.POOL_MAINTENANCE: Text(
        gettext_lazy("%(pool)s is in maintenance until about %(until)s: %(reason)s"),
        gettext_lazy("Start it after %(until)s, or choose a flavor of another pool."),
        _until,
    ),
    AdmissionCode.SITE_MAINTENANCE: Text(
        gettext_lazy("The site is in maintenance until about %(until)s: %(reason)s"),
        gettext_lazy("Start it after %(until)s. Running workspaces continue."),
        _until,
    ),
    AdmissionCode.NO_ENABLED_POOL: Text(
        gettext_lazy("No pool is enabled for this size."),
        gettext_lazy("Choose another size, or ask an operator to enable a pool."),
    ),
    AdmissionCode.NO_POOL_RUNS_IT: Text(gettext_lazy("%(pool)s cannot run it: %(message)s")),
    AdmissionCode.NO_NODE_REPORTED: Text(
        gettext_lazy("No node has reported yet."),
        gettext_lazy(
            "Wait a few seconds. If the problem persists, ask an operator to check the node workers."
        ),
    ),
    AdmissionCode.NO_NODE_HAS_PROGRAM: Text(
        gettext_lazy("%(template)s needs %(program)s, which is not installed on any node."),
        "%(action)s",
        _program,
    ),
    AdmissionCode.NO_NODE_HAS_SOFTWARE: Text(
        gettext_lazy("%(template)s needs %(needs)s. No node with these accelerators has it."),
        gettext_lazy("Choose another size or template, or ask an operator to update the NVIDIA driver."),
        _software,
    ),
    AdmissionCode.NO_NODE_SHOWS_FOLDERS: Text(
        gettext_lazy("%(template)s needs these folders, which no suitable node provides: %(folders)s."),
        gettext_lazy("Choose another template, or ask an operator to add them to BERTH_MOUNTS of a node."),
        joined_lists("folders"),
    ),
    AdmissionCode.NO_NODE_HOLDS_SHARES: Text(
        gettext_lazy("No suitable node can enforce GPU shares."),
        gettext_lazy("Choose a size with a whole GPU or a MIG instance, or ask an operator."),
    ),
    AdmissionCode.NO_NODE_LARGE_ENOUGH: Text(
        gettext_lazy("No node is large enough: %(nodes)s."), _SMALLER, _nodes
    ),
    Rule.LEDGER: Text(
        gettext_lazy("%(team)s has no GPU-hours left."),
        gettext_lazy("Request GPU-hours together with the workspace, which starts after approval."),
        _blocker,
    ),
    Rule.USER_CAP: Text(
        gettext_lazy(
            "The workspace needs %(wanted)s. Your limit in %(team)s is %(limit)s, with %(free)s left."
        ),
        "%(action)s",
        _blocker,
    ),
    Rule.TEAM_LIMIT: Text(
        gettext_lazy(
            "The workspace needs %(wanted)s. The limit of %(team)s is %(limit)s, with %(free)s left."
        ),
        "%(action)s",
        _blocker,
    ),
    Rule.COHORT: Text(
        gettext_lazy(
            "The workspace needs %(wanted)s. %(team)s can borrow %(free)s from its cohort.%(holders)s"
        ),
        "%(action)s",
        _blocker,
    ),
    Rule.SITE_LIMIT: Text(
        gettext_lazy(
            "The workspace needs %(wanted)s. The site limit is %(limit)s, with %(free)s left.%(holders)s"
        ),
        "%(action)s",
        _blocker,
    ),
    Rule.BOOKING: Text(
        gettext_lazy("The workspace needs %(wanted)s. %(free)s free, but reserved for other teams."),
        "%(action)s",
        _blocker,
    ),
    Rule.ORDER: Text(
        gettext_lazy("The free capacity is held for requests ahead in the queue."), "%(action)s", _blocker
    ),
    Rule.CAPACITY: Text(gettext_lazy("Waiting for capacity: %(nodes)s.%(holders)s"), "%(action)s", _nodes),
    Rule.PLACEMENT: Text(gettext_lazy("Waiting for capacity: %(nodes)s.%(holders)s"), "%(action)s", _nodes),
}
