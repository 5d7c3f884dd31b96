"""Texts: what is wrong with a placement, and why a workspace moves or does not."""

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
    words = format_cores if params["what"] == "cpu" else format_memory
    return {"has": words(params["has"]), "given": words(params["given"])}


def _room(params: Params) -> Params:
    moves = ngettext("one workspace moves", "%(moves)s workspaces move", params["moves"])
    return {"moving": moves % {"moves": params["moves"]}}


def _pace(params: Params) -> Params:
    signs = {
        "held_down": _("heat or its hardware held its GPU down for part of the time"),
        "neighbours": _("neighbours on its GPU were at work"),
        "overcommitted": _("its node has given out more than it has"),
        "node_short": _("its node is short of CPU or memory"),
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
            "Heat or its hardware held its GPU down for %(percent)s %% of ten minutes: it ran at "
            "%(clock_mhz)s MHz, and others of its model reach %(best_mhz)s MHz."
        )
    ),
    RebalanceCode.CROWDED: Text(
        _(
            "It shares a GPU that is %(percent)s %% busy with %(neighbours)s others at work, and gets less "
            "of its time than its %(share)s %%."
        ),
        prepare=_share,
    ),
    RebalanceCode.OVERCOMMITTED: Text(
        _("Its node has given out %(given)s and has %(has)s."), prepare=_capacity
    ),
    RebalanceCode.WORK_SLOWER: Text(
        _(
            "Its work goes on at %(percent)s %% of what it did elsewhere (%(rate)s %(name)s a second, and "
            "%(best)s there), and %(sign)s."
        ),
        prepare=_pace,
    ),
    RebalanceCode.SHORT_OF_CPU: Text(
        _(
            "Its node has no CPU to spare: %(idle)s %% was idle in five minutes, and %(runnable)s processes "
            "at a time had work for its %(cores)s cores."
        )
    ),
    RebalanceCode.SHORT_OF_MEMORY: Text(
        _(
            "Its node has no memory to spare: %(left)s %% was left in five minutes at most, and for "
            "%(stalled)s %% of the time all that runs there waited for memory."
        )
    ),
    RebalanceCode.MAKES_ROOM: Text(
        _("Enough is free for a request that waits, but not in one place: it starts if %(moving)s."),
        prepare=_room,
    ),
    RebalanceCode.NO_SUCH_PROPOSAL: Text(
        _("There is no such proposal."), _("The list has those that there are.")
    ),
    RebalanceCode.PROPOSAL_OVER: Text(
        _("This proposal is not open any more."), _("The list has those that are.")
    ),
}
