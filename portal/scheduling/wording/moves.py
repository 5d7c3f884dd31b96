"""Texts that explain why a workspace cannot be moved, or its move cannot be cancelled."""

from __future__ import annotations

from enum import StrEnum

from django.utils.translation import gettext_lazy as _

from portal.common.reasons.reason import Reason
from portal.common.reasons.wording import Params, Text
from portal.scheduling.codes import MoveCode
from portal.scheduling.wording.placement import joined


def _refusal(params: Params) -> Params:
    return {"refusal": joined(params["node"], Reason.from_json(params["reason"]))}


TEXTS: dict[StrEnum, Text] = {
    MoveCode.CHANGED_MEANWHILE: Text(
        _("No workspace was moved because one of them has stopped or changed."),
        _("Wait up to 1 minute for new proposals."),
    ),
    MoveCode.NO_PLACE_ANY_MORE: Text(
        _("The proposal is out of date: its capacity is taken or no workspace waits for it."),
        _("Wait up to 1 minute for new proposals."),
    ),
    MoveCode.NOT_RUNNING: Text(
        _("%(name)s is not running, so it cannot be moved."), _("Choose a running workspace.")
    ),
    MoveCode.STOPS_SOON: Text(
        _("%(name)s has received notice and stops soon."), _("Wait until it runs again.")
    ),
    MoveCode.MOVES_ALREADY: Text(
        _("%(name)s is already being moved to %(node)s."), _("Cancel that move, or wait until it runs again.")
    ),
    MoveCode.ENGINE_PLACES: Text(
        _("The cluster of %(name)s places workspaces itself."), _("Stop the workspace and start it again.")
    ),
    MoveCode.SEVERAL_NODES: Text(_("%(name)s runs on several nodes."), _("Drain one of its nodes instead.")),
    MoveCode.NOT_PLACEABLE: Text(
        _("%(pool)s no longer offers the size of %(name)s, or offers it with several GPU models."),
        _("Stop the workspace and start it again."),
    ),
    MoveCode.HOME_STAYS: Text(
        _("The home folder of %(owner)s is on %(node)s."), _("Move the home folder first.")
    ),
    MoveCode.NO_SUCH_NODE: Text(_("%(pool)s has no node %(node)s."), _("Choose a node of this pool.")),
    MoveCode.SAME_NODE: Text(_("%(name)s already runs on %(node)s."), _("Choose another node.")),
    MoveCode.NODE_CANNOT: Text("%(refusal)s.", _("Choose another node."), prepare=_refusal),
    MoveCode.NO_OTHER_NODE: Text(
        _("No other node of %(pool)s has room for %(name)s."), _("Wait until capacity is free.")
    ),
    MoveCode.OTHERS_FIRST: Text(
        _("The queue or a limit would keep %(name)s from starting on %(node)s."),
        _("Try again once the queue is shorter."),
    ),
    MoveCode.NO_MOVE: Text(_("%(name)s has no pending move to cancel."), _("Reload the page.")),
    MoveCode.MOVE_BEGUN: Text(
        _("The move of %(name)s has begun."), _("Wait until it runs again, then move it back.")
    ),
    MoveCode.MOVES_FOR_REQUEST: Text(
        _("%(name)s moves so that a waiting request can start."),
        _("Cancel the moves of its proposal on the Rebalancing page."),
    ),
}
