"""Moves homes in quiet hours to balance the expected load of a pool's nodes.

Workspaces start where their homes are. If the homes on a node need more capacity than the node has, users
wait while other nodes are free. Starts also move homes, but only after a user has had to wait.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

from django.conf import settings
from django.db import transaction
from django.db.models import Count, Exists, OuterRef, Q
from django.utils import timezone

from portal.common.actors import SYSTEM
from portal.common.errors import InvalidInput, NotFound, StateConflict
from portal.common.home_load import relative_load
from portal.fleet.inventory.models import Device, Node, Pool
from portal.workspaces.homes import load, moves, places
from portal.workspaces.models import HomeMove, HomeMoveState, HomePlace
from portal.workspaces.models.homes import HOME_USE_MEAN_S

FULL = 500
"""Home load above which homes are moved away from a node, in 1/1000 of the node's capacity."""
MIN_GAIN = 100
"""Minimum decrease of the higher of both loads, in 1/1000, so that small changes move no home back."""


@dataclass(frozen=True, slots=True)
class Move:
    """A home move that balances two nodes. `gain` is in 1/1000 of a node."""

    place_id: int
    target: str
    gain: int
    size_mib: int


def sweep(now: datetime | None = None) -> int:
    """Start up to one move per pool in the hours of `BERTH_BALANCE_HOMES_HOURS`. Returns their number."""
    now = now or timezone.now()
    if now.hour not in settings.BERTH_BALANCE_HOMES_HOURS:
        return 0
    pools = [pool for pool in Pool.objects.filter(deleted_at=None) if places.has_separate_homes(pool)]
    return sum(_balance(pool, now) for pool in pools)


def _balance(pool: Pool, now: datetime) -> bool:
    """Start the move with the largest gain. Returns whether one was started."""
    if HomeMove.objects.filter(pool=pool, open=True).exists():
        return False
    for move in best_moves(pool, now):
        try:
            with transaction.atomic():
                moves.begin(place_id=move.place_id, node=move.target, actor=SYSTEM)
        except (StateConflict, InvalidInput, NotFound):
            # The home has been used, archived or moved meanwhile.
            continue
        return True
    return False


def best_moves(pool: Pool, now: datetime) -> list[Move]:
    """Return possible moves from the fullest node to the emptiest one, largest gain first.

    Only homes that a start would also move automatically are considered. Nodes to which a move failed within
    `places.PAUSE` are excluded.
    """
    nodes = {node.pk: node for node in moves.target_nodes(pool)}
    failed_targets = HomeMove.objects.filter(
        pool=pool, state=HomeMoveState.FAILED, ended_at__gt=now - places.PAUSE
    ).values_list("target_id", flat=True)
    loads = _loads(nodes)
    targets = [pk for pk in loads if pk not in set(failed_targets)]
    if not targets:
        return []
    source, target = max(loads, key=lambda pk: loads[pk]), min(targets, key=lambda pk: loads[pk])
    if loads[source] < max(FULL, loads[target] + MIN_GAIN):
        return []
    devices = _devices([source, target])
    balancing_moves = []
    for place, size_mib in _movable(pool, source):
        use = (place.gpu_milli_s // HOME_USE_MEAN_S, place.cpu_milli_s // HOME_USE_MEAN_S)
        rest = loads[source] - _relative(use, nodes[source], devices)
        gain = loads[source] - max(rest, loads[target] + _relative(use, nodes[target], devices))
        if gain >= MIN_GAIN:
            balancing_moves.append(Move(place.pk, nodes[target].name, gain, size_mib))
    return sorted(balancing_moves, key=lambda move: (-move.gain, move.size_mib, move.place_id))


def _loads(nodes: Mapping[UUID, Node]) -> dict[UUID, int]:
    """Return each node's home load, in 1/1000 of the node's capacity."""
    used, devices = load.by_node(Q(node__in=nodes)), _devices(nodes)
    return {pk: _relative(used.get(pk, (0, 0)), node, devices) for pk, node in nodes.items()}


def _devices(nodes: Iterable[UUID]) -> dict[UUID, int]:
    """Return the number of devices per node, counting MIG instances instead of partitioned GPUs."""
    split = Device.objects.filter(node=OuterRef("node"), parent_uuid=OuterRef("uuid"), present=True)
    rows = Device.objects.filter(~Exists(split), node__in=nodes, present=True).order_by()
    return dict(rows.values_list("node_id").annotate(Count("pk")))


def _relative(use: load.Use, node: Node, devices: Mapping[UUID, int]) -> int:
    """Return the average use relative to the node's capacity, in 1/1000."""
    gpu_milli, cpu_milli = use
    return relative_load(gpu_milli, cpu_milli, devices=devices.get(node.pk, 0), node_cpu_milli=node.cpu_milli)


def _movable(pool: Pool, node: UUID) -> Iterable[tuple[HomePlace, int]]:
    """Return the homes on a node that may move, with their sizes in MiB."""
    rows = list(HomePlace.objects.filter(pool=pool, node=node))
    homes = places.home_places_by_user((place.owner_id, place.team_id) for place in rows)
    for place in rows:
        home = homes[place.owner_id, place.team_id].get(pool.pk)
        if home is not None and home.moves_by_itself:
            yield place, home.movable_mib or 0
