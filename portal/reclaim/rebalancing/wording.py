"""Texts about problems of placements, and about why workspaces move or do not move."""

from __future__ import annotations

from enum import StrEnum

from django.utils.translation import gettext_lazy as _
from django.utils.translation import ngettext

from portal.common.formatting import format_cores, format_memory, format_reading, format_thousandths
from portal.common.reasons.wording import Params, Text
from portal.reclaim.engine.codes import RebalanceCode


def _share(params: Params) -> Params:
    return {**params, "share": format_thousandths(params["share_milli"] * 100, 1)}


def _capacity(params: Params) -> Params:
    formatter = format_cores if params["what"] == "cpu" else format_memory
    return {"has": formatter(params["has"]), "given": formatter(params["given"])}


def _format_room(params: Params) -> Params:
    moves = ngettext("1 workspace moves", "%(moves)s workspaces move", params["moves"])
    return {"moving": moves % {"moves": params["moves"]}}


def _pace(params: Params) -> Params:
    signs = {
        "held_down": _("heat or hardware slowed the GPU for part of the time"),
        "neighbours": _("other workspaces were busy on the GPU"),
        "overcommitted": _("the node is overcommitted"),
        "node_short": _("the node is short of CPU or memory"),
    }
    return {
        **params,
        "rate": format_reading(params["rate"]),
        "best": format_reading(params["best"]),
        "sign": signs[params["sign"]],
    }


TEXTS: dict[StrEnum, Text] = {
    RebalanceCode.SLOWED: Text(
        _(
            "Heat or hardware slowed the GPU for %(percent)s %% of 10 minutes: %(clock_mhz)s MHz "
            "instead of %(best_mhz)s MHz."
        )
    ),
    RebalanceCode.CROWDED: Text(
        _(
            "The GPU is %(percent)s %% busy with %(neighbours)s other workspaces, so this workspace gets "
            "less than its %(share)s %%."
        ),
        prepare=_share,
    ),
    RebalanceCode.OVERCOMMITTED: Text(
        _("The node has allocated %(given)s but has only %(has)s."), prepare=_capacity
    ),
    RebalanceCode.WORK_SLOWER: Text(
        _("The work runs at %(percent)s %% of its best speed (%(rate)s of %(best)s %(name)s/s): %(sign)s."),
        prepare=_pace,
    ),
    RebalanceCode.SHORT_OF_CPU: Text(
        _(
            "The node is short of CPU: %(idle)s %% idle over 5 minutes, %(runnable)s runnable "
            "processes on %(cores)s cores."
        )
    ),
    RebalanceCode.SHORT_OF_MEMORY: Text(
        _(
            "The node is short of memory: at most %(left)s %% free over 5 minutes, stalled "
            "%(stalled)s %% of the time."
        )
    ),
    RebalanceCode.MAKES_ROOM: Text(
        _("Free capacity for a queued request is fragmented. The request starts if %(moving)s."),
        prepare=_format_room,
    ),
    RebalanceCode.NO_SUCH_PROPOSAL: Text(_("Proposal not found."), _("Choose a proposal from the list.")),
    RebalanceCode.PROPOSAL_OVER: Text(
        _("This proposal is no longer open."), _("Choose an open proposal from the list.")
    ),
}
