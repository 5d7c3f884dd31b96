"""Locations of homes in pools with several nodes: a home stays on the node where it was first placed.

A home belongs to a user in a team. If the nodes of a pool keep separate homes, the home is on one node, and
later workspaces of the user start only there. A pool whose nodes share one folder for homes sets
`homes_shared` in its configuration, next to `homes`. Simulated pools have no homes.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any, cast
from uuid import UUID

from django.conf import settings
from django.db.models import F, Q, Sum, UUIDField, Value
from django.utils import timezone

from portal.fleet.inventory.models import Allocation, Node, Pool
from portal.workspaces.models import (
    ACTIVE_ARCHIVES,
    ACTIVE_MOVES,
    HomeArchive,
    HomeMove,
    HomeMoveState,
    HomePlace,
    HomeUsage,
    LostHome,
    Workspace,
)
from provisioning.traits import HomeStorage


@dataclass(frozen=True, slots=True)
class HomeLocation:
    """The location of a home: the name of its node, and `lost` if that machine was removed.

    `moving_to` is the target node of a running move. `archived` is set while an archive is created or
    restored, `away` if an archive is the only copy. `movable_mib` is the size of a home that could move now.
    It is `None` if the home is in use, locked or of unknown size, or if its last move failed or was cancelled
    within `PAUSE`. `ahead_mib` is the amount that other moves from the node still have to copy.
    """

    node: str
    lost: bool = False
    moving_to: str = ""
    archived: bool = False
    away: bool = False
    movable_mib: int | None = None
    ahead_mib: int = 0

    @property
    def moves_by_itself(self) -> bool:
        """Whether a start may move the home without being asked to, because it is small enough."""
        limit_mib = settings.BERTH_MOVE_HOME_LIMIT_MIB
        return self.movable_mib is not None and self.movable_mib <= limit_mib and limit_mib > 0

    @property
    def usable(self) -> bool:
        """Whether workspaces can start at the home now."""
        return not (self.lost or self.moving_to or self.archived or self.away)


Homes = Mapping[UUID, HomeLocation]
"""Locations of one home, by pool."""
NOWHERE: Homes = {}
_Home = tuple[UUID, UUID, UUID]
"""A home by owner, team and pool."""
FEW = 200
PAUSE = timedelta(hours=1)
"""Time after a failed or cancelled move during which starts do not move the home."""


def has_separate_homes(pool: Pool) -> bool:
    """Return whether each node of the pool keeps separate homes."""
    return pool.traits.homes is HomeStorage.NODE and not pool.config.get("homes_shared")


def home_places(owner_id: UUID, team_id: UUID) -> Homes:
    """Return the locations of a user's home in a team, by pool."""
    return home_places_by_user([(owner_id, team_id)]).get((owner_id, team_id), NOWHERE)


def home_places_by_user(
    pairs: Iterable[tuple[UUID, UUID]],
) -> dict[tuple[UUID, UUID], dict[UUID, HomeLocation]]:
    """Return home locations by pool for each pair of user and team.

    Takes one query if nobody has a home. Several plain queries are faster than one with subqueries.
    """
    users = {user for user, _team in pairs}
    if not users:
        return {}
    of_users = Q(owner__in=users) if len(users) <= FEW else Q()
    columns = ("owner_id", "team_id", "pool_id", "node_id", "at")
    places = HomePlace.objects.filter(of_users).annotate(at=F("node__name"))
    lost = LostHome.objects.filter(of_users, recreated_at=None).annotate(
        node_id=Value(None, UUIDField()), at=F("node")
    )
    both = places.values_list(*columns).union(lost.order_by().values_list(*columns), all=True)
    homes_by_user: dict[tuple[UUID, UUID], dict[UUID, HomeLocation]] = {}
    placed: dict[_Home, UUID] = {}
    for owner, team, pool, node, name in both:
        if node is None:
            placed.pop((owner, team, pool), None)
        else:
            placed[owner, team, pool] = node
        homes_by_user.setdefault((owner, team), {})[pool] = HomeLocation(name, lost=node is None)
    for (owner, team, pool), changes in _states(placed, of_users).items():
        homes = homes_by_user[owner, team]
        homes[pool] = replace(homes[pool], **changes)
    return homes_by_user


def _states(placed: Mapping[_Home, UUID], of_users: Q) -> dict[_Home, dict[str, Any]]:
    """Return the other `HomeLocation` fields of homes. `placed` has their nodes."""
    states: defaultdict[_Home, dict[str, Any]] = defaultdict(dict)
    if not placed:
        return states
    in_use = set(
        Allocation.objects.filter(
            Q(workspace__owner__in={owner for owner, _team, _pool in placed}) if of_users else Q(),
            released_at=None,
        ).values_list("workspace__owner", "workspace__team", "node")
    )
    stays = {home for home, node in placed.items() if (*home[:2], node) in in_use}
    paused = Q(state=HomeMoveState.FAILED) | Q(state=HomeMoveState.CANCELLED, reason={})
    moves = HomeMove.objects.filter(
        of_users, Q(open=True) | Q(paused, ended_at__gt=timezone.now() - PAUSE)
    ).values_list("owner_id", "team_id", "pool_id", "state", "target_name")
    for *move_of, state, target in moves:
        home = cast("_Home", tuple(move_of))
        stays.add(home)
        if state in ACTIVE_MOVES and home in placed:
            states[home]["moving_to"] = target
    archives = HomeArchive.objects.filter(of_users, Q(open=True) | Q(away_at__isnull=False)).values_list(
        "owner_id", "team_id", "pool_id", "node_id", "state", "open", "away_at"
    )
    for *archive_of, node, state, is_open, away_at in archives:
        home = cast("_Home", tuple(archive_of))
        if is_open:
            stays.add(home)
        if state in ACTIVE_ARCHIVES and home in placed:
            states[home]["archived"] = True
        if away_at is not None and placed.get(home) == node:
            states[home]["away"] = True
    may_move = {home: node for home, node in placed.items() if home not in stays and home not in states}
    if may_move:
        sizes = {
            (owner, team, node): used_mib
            for owner, team, node, used_mib in HomeUsage.objects.filter(
                of_users, node__in=set(may_move.values()), hidden=False
            ).values_list("owner_id", "team_id", "node_id", "used_mib")
        }
        ahead = _bytes_ahead()
        for home, node in may_move.items():
            if (size_mib := sizes.get((*home[:2], node))) is not None:
                states[home] = {"movable_mib": size_mib, "ahead_mib": ahead.get(node, 0) >> 20}
    return states


def _bytes_ahead() -> dict[UUID, int]:
    """Return the bytes that active moves still have to copy, by source node."""
    active = HomeMove.objects.filter(state__in=ACTIVE_MOVES, bytes_total__gt=F("bytes_done"))
    sums = active.order_by().values("source").annotate(left=Sum(F("bytes_total") - F("bytes_done")))
    # PostgreSQL returns a decimal.
    return {source: int(left) for source, left in sums.values_list("source", "left")}


def node_of(workspace: Workspace) -> tuple[Pool, str] | None:
    """Return the pool and the node name of the home that the workspace uses, or `None`.

    Starts from the workspace's last allocation, or else the owner's last allocation in the team.
    """
    allocations = Allocation.objects.select_related("node__pool").filter(
        node__pool__deleted_at=None, node__retired=False
    )
    own = allocations.filter(workspace=workspace)
    of_home = allocations.filter(workspace__owner=workspace.owner_id, workspace__team=workspace.team_id)
    allocation = own.order_by("-pk").first() or of_home.order_by("-pk").first()
    if allocation is None:
        return None
    # The home may have been moved since.
    place = (
        HomePlace.objects.select_related("node")
        .filter(
            owner=workspace.owner_id, team=workspace.team_id, pool=allocation.node.pool, node__retired=False
        )
        .first()
    )
    return allocation.node.pool, place.node.name if place is not None else allocation.node.name


def record_places(placed: Sequence[tuple[Workspace, Pool, str]]) -> set[UUID]:
    """Record the homes of workspaces about to be placed. Returns those that must not be placed there.

    `placed` has the node of each workspace. The caller holds the placement lock, so two first placements of
    one home cannot split it. The returned workspaces wait for the next cycle, which uses the node of the
    home.
    """
    apart = [placement for placement in placed if has_separate_homes(placement[1])]
    homes = home_places_by_user(
        [(workspace.owner_id, workspace.team_id) for workspace, _pool, _node in apart]
    )
    other_nodes: set[UUID] = set()
    fresh: list[tuple[Workspace, Pool, str]] = []
    for workspace, pool, node in apart:
        home = homes.setdefault((workspace.owner_id, workspace.team_id), {})
        at = home.setdefault(pool.pk, HomeLocation(node))
        if at.node != node or not at.usable:
            other_nodes.add(workspace.pk)
        else:
            fresh.append((workspace, pool, node))
    _note(fresh)
    return other_nodes


def _note(placed: Sequence[tuple[Workspace, Pool, str]]) -> None:
    if not placed:
        return
    nodes = {
        (pool, name): pk
        for pk, pool, name in Node.objects.filter(
            pool__in={pool.pk for _workspace, pool, _node in placed},
            name__in={placement[2] for placement in placed},
        ).values_list("pk", "pool_id", "name")
    }
    now = timezone.now()
    HomePlace.objects.bulk_create(
        [
            HomePlace(
                owner_id=workspace.owner_id,
                team_id=workspace.team_id,
                pool=pool,
                node_id=nodes[pool.pk, node],
                since=now,
            )
            for workspace, pool, node in placed
        ],
        ignore_conflicts=True,
    )
    # Includes the user's homes in other teams, because the time shows whether the user is active.
    users = {workspace.owner_id for workspace, _pool, _node in placed}
    pools = {pool.pk for _workspace, pool, _node in placed}
    HomePlace.objects.filter(owner__in=users, pool__in=pools).update(used_at=now)
