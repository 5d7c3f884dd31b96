"""Presents proposals for pages and REST."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from portal.common.formatting import format_duration, format_gpu_hours, format_thousandths
from portal.common.reasons.wording import message_of, reason_of
from portal.reclaim.models import Discontent, ProposalState, RebalanceProposal
from portal.reclaim.rebalancing import services
from portal.reclaim.rebalancing.reading import device_names
from portal.scheduling import moving
from portal.scheduling.models import Move
from portal.scheduling.moves import PlannedMove
from portal.workspaces.models import Workspace
from provisioning.types import Placement

LOOKS = {
    ProposalState.OPEN: ("hourglass", "wait"),
    ProposalState.APPLIED: ("check", "ok"),
    ProposalState.DISMISSED: ("x", "idle"),
    ProposalState.WITHDRAWN: ("clock", "idle"),
}


@dataclass(frozen=True, slots=True)
class MoveRow:
    """A move of a proposal. `workspace` is None if it has been deleted."""

    workspace: Workspace | None
    source: str
    target: str
    source_node: str
    target_node: str
    source_devices: tuple[str, ...]
    target_devices: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ProposalRow:
    """A proposal as text, with its moves."""

    proposal: RebalanceProposal
    moves: tuple[MoveRow, ...]
    reason: str
    gain: str
    interrupts: str
    icon: str
    tone: str
    outcome: str
    can_take_back: bool

    @property
    def is_open(self) -> bool:
        return self.proposal.state == ProposalState.OPEN

    @property
    def names(self) -> str:
        return ", ".join(row.workspace.name for row in self.moves if row.workspace is not None)


def rows(proposals: Sequence[RebalanceProposal]) -> list[ProposalRow]:
    """Return the rows of proposals, with three queries for any number."""
    planned = {row.pk: services.planned_moves(row) for row in proposals}
    every = [move for moves in planned.values() for move in moves]
    workspaces = {
        row.pk: row
        for row in Workspace.objects.select_related("team", "owner", "flavor", "pool").filter(
            pk__in={move.workspace for move in every}
        )
    }
    names = device_names([uuid for move in every for uuid in (*_uuids(move.source), *_uuids(move.target))])
    moved = {
        (move.workspace_id, move.generation): move
        for move in Move.objects.filter(workspace__in=list(workspaces)).order_by("asked_at")
    }
    return [_row(row, planned[row.pk], workspaces, names, moved) for row in proposals]


def _row(
    row: RebalanceProposal,
    planned: Sequence[PlannedMove],
    workspaces: dict[Any, Workspace],
    names: dict[str, tuple[str, int]],
    moved: dict[tuple[Any, int], Move],
) -> ProposalRow:
    icon, tone = LOOKS[ProposalState(row.state)]
    reason = reason_of(row.reason)
    moves = [
        move
        for plan in planned
        if row.state == ProposalState.APPLIED and (move := moved.get((plan.workspace, plan.generation)))
    ]
    return ProposalRow(
        row,
        tuple(
            MoveRow(
                workspaces.get(move.workspace),
                _place(move.source, names),
                _place(move.target, names),
                move.source.nodes[0].node,
                move.target.nodes[0].node,
                _uuids(move.source),
                _uuids(move.target),
            )
            for move in planned
        ),
        message_of(reason) if reason is not None else "",
        _gain(row),
        _interrupts(row, [workspaces[move.workspace] for move in planned if move.workspace in workspaces]),
        icon,
        tone,
        ", ".join(dict.fromkeys(str(move.get_outcome_display()) for move in moves)),
        any(move.left_at is None and move.ended_at is None for move in moves),
    )


def _uuids(place: Placement) -> tuple[str, ...]:
    return tuple(grant.uuid for grant in place.nodes[0].devices)


def _place(place: Placement, names: dict[str, tuple[str, int]]) -> str:
    """Return a node with its device numbers, as on the GPU map."""
    part = place.nodes[0]
    if not part.devices:
        return part.node
    numbers = ", ".join(str(names[grant.uuid][1]) if grant.uuid in names else "?" for grant in part.devices)
    return _("%(node)s, GPU %(numbers)s") % {"node": part.node, "numbers": numbers}


def _gain(row: RebalanceProposal) -> str:
    if row.waiting is None:
        return _("%(percent)s percentage points faster") % {"percent": row.gain}
    gpus = format_thousandths(row.gain, 3)
    named = {"name": row.waiting.name, "team": row.waiting.team.name, "gpus": gpus}
    if not row.waiting.accelerated:
        return _("%(name)s of %(team)s starts") % named
    return _("%(name)s of %(team)s starts with %(gpus)s GPUs") % named


def _interrupts(row: RebalanceProposal, workspaces: Sequence[Workspace]) -> str:
    count = len(row.moves)
    text = ngettext(
        "1 workspace stops after %(notice)s and restarts elsewhere.",
        "%(count)s workspaces stop after %(notice)s and restart elsewhere.",
        count,
    ) % {"count": count, "notice": format_duration(moving.notice_s())}
    if row.lost and any(workspace.loses_work for workspace in workspaces):
        text += " " + _("Up to %(hours)s GPU-hours of work are repeated.") % {
            "hours": format_gpu_hours(row.lost)
        }
    return text


def question(row: ProposalRow) -> dict[str, Any]:
    """Return the context of the page that confirms applying a proposal."""
    notice = format_duration(moving.notice_s())
    loses = [
        _("%(name)s of %(owner)s in %(team)s: app stops in %(notice)s, kernels lose their variables")
        % {
            "name": move.workspace.name,
            "owner": move.workspace.owner.username,
            "team": move.workspace.team.name,
            "notice": notice,
        }
        for move in row.moves
        if move.workspace is not None
    ]
    if row.proposal.lost:
        hours = format_gpu_hours(row.proposal.lost)
        loses.append(_("up to %(hours)s GPU-hours of work, which are repeated") % {"hours": hours})
    return {
        "title": _("Move %(names)s?") % {"names": row.names},
        "loses": loses,
        "stays": [
            _("files in home folders, and queue positions by age"),
            *(
                _("%(source)s → %(target)s: restarts there automatically")
                % {"source": move.source, "target": move.target}
                for move in row.moves
            ),
            _("everything, if the target is no longer free: no workspace stops then"),
        ],
        "yes": _("Move"),
    }


@dataclass(frozen=True, slots=True)
class DiscontentRow:
    """A workspace with a low score, and the reason."""

    workspace: Workspace
    score: int
    reason: str
    since: datetime


def discontent_rows(rows: Sequence[Discontent]) -> list[DiscontentRow]:
    return [DiscontentRow(row.workspace, row.score, low_score_reason(row), row.since) for row in rows]


def low_score_reason(row: Discontent) -> str:
    reason = reason_of(row.reason)
    return message_of(reason) if reason is not None else ""
