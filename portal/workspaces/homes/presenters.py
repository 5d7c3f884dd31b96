"""Presenters for the pages of home folders and the confirmation page for removing a machine."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from django.db.models import Q, QuerySet
from django.utils import timezone
from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from portal.common.formatting import format_duration, format_memory
from portal.common.reasons.reason import Reason
from portal.common.reasons.wording import sentence_of
from portal.fleet.inventory.models import Node
from portal.fleet.machines.models import MachineState
from portal.people.accounts.models import User
from portal.workspaces.homes import moves as home_moves
from portal.workspaces.homes import places as home_places
from portal.workspaces.homes.lost import may_recreate
from portal.workspaces.lifecycle import State
from portal.workspaces.machine_removal import RemovalLosses
from portal.workspaces.models import (
    ACTIVE_MOVES,
    HomeMove,
    HomeMoveState,
    HomePlace,
    HomeUsage,
    LostHome,
    Workspace,
)

SHOWN = 20


@dataclass(frozen=True, slots=True)
class MoveRow:
    """The last move of a home, if it is active or failed. `may` allows the user to cancel it."""

    move: HomeMove
    progress: str
    percent: int
    left: str
    problem: str
    may: bool


@dataclass(frozen=True, slots=True)
class HomeRow:
    """A home and its size; `used` is empty without a measurement."""

    place: HomePlace
    used: str
    move: MoveRow | None
    targets: tuple[str, ...]
    """Names of nodes that the user can move the home to now."""


@dataclass(frozen=True, slots=True)
class LostHomeRow:
    """A home on a removed machine. `may` allows the user to decide; `waits` means it is undecided."""

    home: LostHome
    used: str
    waits: bool
    may: bool


def places(actor: User, *, everybody: bool) -> QuerySet[HomePlace]:
    """Return the actor's homes, or those of all users."""
    queryset = HomePlace.objects.select_related("owner", "team", "pool", "node")
    queryset = queryset if everybody else queryset.filter(owner=actor)
    return queryset.order_by("team__slug", "owner__username", "pool__slug", "pk")


def rows(actor: User, places: Iterable[HomePlace]) -> list[HomeRow]:
    """Return rows with usage, last move and possible target nodes, with three queries."""
    places = list(places)
    used = {
        (user, team, node): mib
        for user, team, node, mib in HomeUsage.objects.filter(owner__in={place.owner_id for place in places})
        .order_by()
        .values_list("owner_id", "team_id", "node_id", "used_mib")
    }
    moves: dict[tuple[Any, Any, Any], HomeMove] = {}
    shown = HomeMove.objects.filter(
        Q(open=True) | Q(state=HomeMoveState.FAILED), owner__in={place.owner_id for place in places}
    )
    for move in shown.select_related("owner").order_by("asked_at"):
        moves[move.owner_id, move.team_id, move.pool_id] = move
    nodes: dict[Any, list[str]] = {}
    pools = {place.pool_id for place in places if home_places.has_separate_homes(place.pool)}
    free = Node.objects.filter(home_moves.takes_homes(), pool__in=pools)
    for pool, name in free.order_by("name").values_list("pool_id", "name"):
        nodes.setdefault(pool, []).append(name)
    home_rows = []
    for place in places:
        last = moves.get((place.owner_id, place.team_id, place.pool_id))
        can = home_moves.may_move(actor, place.owner_id) and not (last is not None and last.open)
        names = [name for name in nodes.get(place.pool_id, []) if name != place.node.name] if can else []
        size = _size(used.get((place.owner_id, place.team_id, place.node_id)))
        row = move_row(actor, last) if last is not None and last.state != HomeMoveState.DONE else None
        home_rows.append(HomeRow(place, size, row, tuple(names)))
    return home_rows


def move_row(actor: User, move: HomeMove) -> MoveRow:
    problem = ""
    if move.reason:
        with contextlib.suppress(LookupError):
            problem = sentence_of(Reason.from_json(move.reason))
    return MoveRow(
        move,
        _amounts(move),
        _percent(move),
        _remaining_text(move),
        problem,
        move.active and home_moves.may_move(actor, move.owner_id),
    )


def move_waited_for(workspace: Workspace) -> str:
    """Return the progress of a home move that the workspace waits for, or an empty string."""
    if workspace.state != State.PENDING:
        return ""
    of_home = HomeMove.objects.filter(owner=workspace.owner_id, team=workspace.team_id)
    move = of_home.filter(state__in=ACTIVE_MOVES).order_by("asked_at").first()
    return ", ".join(filter(None, (_amounts(move), _remaining_text(move)))) if move is not None else ""


def move_with_start(workspace: Workspace) -> str:
    """Return the progress of the home move that a start waits for, or an empty string."""
    if workspace.state != State.PROVISIONING or not workspace.waits_for_home:
        return ""
    move = workspace.home_moves.filter(state__in=ACTIVE_MOVES).order_by("-asked_at").first()
    if move is None:
        return ""
    text = _("Moving %(size)s of files from %(source)s to %(target)s") % {
        "size": _size(move.bytes_total >> 20),
        "source": move.source_name,
        "target": move.target_name,
    }
    percent = _percent(move)
    return f"{text} · {percent} %" if percent else text


def _percent(move: HomeMove) -> int:
    total = move.bytes_total
    return min(move.bytes_done, total) * 100 // total if total else 0


def _amounts(move: HomeMove) -> str:
    """Return the copied and the total size as text; empty while unknown and after the move."""
    total, done = move.bytes_total, min(move.bytes_done, move.bytes_total)
    if not (total and move.active):
        return ""
    return _("%(done)s of %(total)s") % {"done": _size(done >> 20), "total": _size(total >> 20)}


def _remaining_text(move: HomeMove) -> str:
    """Return the estimated remaining time of the copy as text; empty while unknown."""
    if move.state != HomeMoveState.COPYING or move.started_at is None or not move.bytes_done:
        return ""
    took_s = (timezone.now() - move.started_at).total_seconds()
    left_s = took_s * max(0, move.bytes_total - move.bytes_done) / move.bytes_done
    return _("about %(time)s left") % {"time": format_duration(int(left_s))} if left_s >= 1 else ""


def lost_row(actor: User, lost: LostHome) -> LostHomeRow:
    waits = lost.recreated_at is None
    return LostHomeRow(lost, _size(lost.used_mib), waits, waits and may_recreate(actor, lost))


def _size(mib: int | None) -> str:
    return "" if mib is None else format_memory(mib)


def recreate_question(lost: LostHome) -> dict[str, Any]:
    """Return the context of the confirmation page for a new, empty home."""
    params = {"node": lost.node, "team": lost.team.name, "user": lost.owner.username, "pool": lost.pool.name}
    return {
        "title": _("Create an empty home folder?"),
        "loses": [
            _("access to the old files of %(user)s in %(team)s, which are on %(node)s") % params,
        ],
        "stays": [
            _("the files on the disk of %(node)s, still shown in this list") % params,
            _("workspaces that wait for a home folder in %(pool)s; they then start") % params,
        ],
        "yes": _("Create home folder"),
    }


def remove_question(losses: RemovalLosses) -> dict[str, Any]:
    """Return the context of the confirmation page for removing a machine, with everything that is lost."""
    machine = losses.machine
    params = {"node": machine.name}
    question: dict[str, Any] = {
        "title": _("Remove %(node)s?") % params,
        "loses": [_("its entry in the list of machines"), *_loss_lines(losses)],
        "stays": [
            _("the name, which another machine can use"),
            _("all data on its disk"),
            _("audit log entries"),
        ],
        "yes": _("Remove %(node)s") % params,
        "note": _("For the audit log."),
        "typed": machine.name if losses.any else "",
    }
    if losses.archived:
        question["stays"].append(_archived(losses))
    if machine.state == MachineState.ACTIVE:
        question["refusals"] = [
            _("%(node)s is still joined. Revoke the machine, or run “berth node leave” on it first.") % params
        ]
        question["typed"] = question["reason"] = ""
    return question


def _loss_lines(losses: RemovalLosses) -> list[str]:
    lines = []
    if losses.workspace_count:
        line = ngettext(
            "%(count)d workspace, recorded as lost: %(names)s",
            "%(count)d workspaces, recorded as lost: %(names)s",
            losses.workspace_count,
        )
        lines.append(line % _names_with_count(losses.workspaces, losses.workspace_count))
    if losses.home_count:
        line = ngettext(
            "access to %(count)d home folder that is only there: %(names)s",
            "access to %(count)d home folders that are only there: %(names)s",
            losses.home_count,
        )
        lines.append(line % _names_with_count(losses.homes, losses.home_count))
        if not losses.archived:
            lines.append(_("the only copies of these home folders: they have no archive on another machine"))
    if losses.archive_count:
        line = ngettext(
            "access to %(count)d archive of a home folder",
            "access to %(count)d archives of home folders",
            losses.archive_count,
        )
        lines.append(line % {"count": losses.archive_count})
    if losses.devices:
        line = ngettext(
            "%(count)d device in the inventory",
            "%(count)d devices in the inventory",
            losses.devices,
        )
        lines.append(line % {"count": losses.devices})
    return lines


def _archived(losses: RemovalLosses) -> str:
    """Return a line about the homes that have an archive on another machine."""
    line = ngettext(
        "archives of %(count)d home folder on other machines: %(names)s",
        "archives of %(count)d home folders on other machines: %(names)s",
        len(losses.archived),
    )
    return line % _names_with_count(losses.archived, len(losses.archived))


def _names_with_count(names: Sequence[str], count: int) -> dict[str, Any]:
    shown = ", ".join(names[:SHOWN])
    return {"count": count, "names": shown + (", …" if count > SHOWN else "")}
