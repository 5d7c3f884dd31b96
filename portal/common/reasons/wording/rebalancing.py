"""What speaks against the place of a workspace, and why it moves or does not."""

from __future__ import annotations

from enum import StrEnum

from django.utils.translation import gettext_lazy as _
from django.utils.translation import ngettext

from portal.common.formatting import format_cores, format_memory, format_thousandths
from portal.common.reasons.codes import RebalanceCode
from portal.common.reasons.wording import Params, Text


def _share(params: Params) -> Params:
    return {**params, "share": format_thousandths(params["share_milli"] * 100, 1)}


def _capacity(params: Params) -> Params:
    words = format_cores if params["what"] == "cpu" else format_memory
    return {"has": words(params["has"]), "given": words(params["given"])}


def _room(params: Params) -> Params:
    moves = ngettext("one workspace moves", "%(moves)s workspaces move", params["moves"])
    return {"moving": moves % {"moves": params["moves"]}}


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
    RebalanceCode.MAKES_ROOM: Text(
        _("Enough is free for a request that waits, but not in one place: it starts if %(moving)s."),
        prepare=_room,
    ),
    RebalanceCode.CHANGED_MEANWHILE: Text(
        _("One of these workspaces has stopped or changed meanwhile, so nothing was moved."),
        _("The proposals are made anew within a minute."),
    ),
    RebalanceCode.NO_PLACE_ANY_MORE: Text(
        _("What was proposed does not work out any more: a place has been taken, or nobody waits for it."),
        _("The proposals are made anew within a minute."),
    ),
    RebalanceCode.NO_SUCH_PROPOSAL: Text(
        _("There is no such proposal."), _("The list has those that there are.")
    ),
    RebalanceCode.PROPOSAL_OVER: Text(
        _("This proposal is not open any more."), _("The list has those that are.")
    ),
}
