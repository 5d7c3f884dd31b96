"""Presenters for the page of a node's homes, with the progress and failures of an evacuation."""

from __future__ import annotations

from dataclasses import dataclass

from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from portal.common.formatting import format_memory
from portal.common.reasons.reason import Reason
from portal.common.reasons.wording import message_of, sentence_of
from portal.fleet.inventory.models import Node
from portal.people.accounts.models import User
from portal.workspaces.homes import evacuations
from portal.workspaces.homes.evacuations import NodeHomeCounts
from portal.workspaces.models import HomeEvacuation, HomeMove, HomeMoveState
from portal.workspaces.problems import stored_sentence

MAX_STAYED_SHOWN = 50


@dataclass(frozen=True, slots=True)
class FailedMoveRow:
    """A failed home move with its reason."""

    move: HomeMove
    why: str


@dataclass(frozen=True, slots=True)
class Progress:
    """Progress of a node's latest evacuation; `total` counts homes that were or will be moved."""

    row: HomeEvacuation
    moved: int
    total: int
    facts: tuple[str, ...]
    problem: str
    stayed: tuple[FailedMoveRow, ...]
    more_stayed: int


@dataclass(frozen=True, slots=True)
class NodeHomes:
    """The homes on a node; `keeps` are sentences about homes that cannot be moved now."""

    counts: NodeHomeCounts
    text: str
    keeps: tuple[str, ...]
    refused: str
    last: Progress | None
    may: bool

    @property
    def can_begin(self) -> bool:
        going = self.last is not None and self.last.row.is_open
        return self.may and not self.refused and not going


def page(actor: User, node: Node) -> NodeHomes:
    """Return the page's data, for operators and auditors. Raises `NotAllowed`."""
    counts = evacuations.homes_on_node(actor, node)
    last = evacuations.latest_evacuation(actor, node)
    return NodeHomes(
        counts=counts,
        text=homes_text(counts),
        keeps=tuple(_keeps(counts)),
        refused=sentence_of(counts.refused) if counts.refused is not None else "",
        last=_progress(last) if last is not None else None,
        may=actor.operates,
    )


def homes_text(counts: NodeHomeCounts) -> str:
    """Return the number and the size of the homes as text."""
    count = ngettext("%(count)d home folder", "%(count)d home folders", counts.homes) % {
        "count": counts.homes
    }
    if not counts.measured:
        return count
    if counts.measured == counts.homes:
        return _("%(homes)s, %(size)s") % {"homes": count, "size": format_memory(counts.used_mib)}
    return _("%(homes)s, %(size)s in %(measured)d measured") % {
        "homes": count,
        "size": format_memory(counts.used_mib),
        "measured": counts.measured,
    }


def _keeps(counts: NodeHomeCounts) -> list[str]:
    lines = []
    if counts.in_use:
        lines.append(
            ngettext(
                "%(count)d is in use. It is moved when its workspaces have stopped.",
                "%(count)d are in use. They are moved when their workspaces have stopped.",
                counts.in_use,
            )
            % {"count": counts.in_use}
        )
    if counts.moving:
        text = ngettext(
            "%(count)d is already being moved or archived.",
            "%(count)d are already being moved or archived.",
            counts.moving,
        )
        lines.append(text % {"count": counts.moving})
    if counts.kept:
        lines.append(
            ngettext(
                "%(count)d of a deleted account is not moved.",
                "%(count)d of deleted accounts are not moved.",
                counts.kept,
            )
            % {"count": counts.kept}
        )
    return lines


def _progress(row: HomeEvacuation) -> Progress:
    moved, left, stayed = row.moved, row.left if row.is_open else 0, row.stayed  # type: ignore[attr-defined]
    facts = [_("%(size)s copied") % {"size": format_memory(row.bytes_done >> 20)}]  # type: ignore[attr-defined]
    if row.is_open and left:
        text = ngettext("%(count)d left", "%(count)d left", left)
        facts.append(text % {"count": left})
    if stayed:
        text = ngettext("%(count)d not moved", "%(count)d not moved", stayed)
        facts.append(text % {"count": stayed})
    rows = list(evacuations.unsuccessful_moves(row)[:MAX_STAYED_SHOWN]) if stayed else []
    return Progress(
        row=row,
        moved=moved,
        total=moved + left + stayed,
        facts=tuple(facts),
        problem=stored_sentence(row.reason),
        stayed=tuple(FailedMoveRow(row, _reason_text(row)) for row in rows),
        more_stayed=max(0, stayed - len(rows)),
    )


def _reason_text(move: HomeMove) -> str:
    if move.state == HomeMoveState.CANCELLED:
        return _("Move cancelled.")
    return message_of(Reason.from_json(move.reason)) if move.reason else _("Move failed.")
