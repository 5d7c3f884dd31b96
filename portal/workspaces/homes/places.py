"""Places of homes in pools with several nodes: a home stays on the node it was first placed on.

A home belongs to a user in a team. If the nodes of a pool keep separate homes, the home has one place, and
later workspaces of the user go to that node only. A pool whose nodes share one folder for homes sets
`homes_shared` in its configuration, beside `homes`. Simulated pools have no homes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any
from uuid import UUID

from django.conf import settings
from django.db.models import (
    BigIntegerField,
    BooleanField,
    CharField,
    Exists,
    F,
    OuterRef,
    Q,
    QuerySet,
    Subquery,
    Sum,
    Value,
)
from django.db.models.expressions import Combinable
from django.db.models.functions import Coalesce
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


@dataclass(frozen=True, slots=True)
class HomeLocation:
    """Place of a home: the name of its node, and `lost` if that machine was removed.

    `moving_to` is the target node of a running move. `archived` is set while an archive is created or
    restored, `away` if an archive is the only copy. `movable_mib` is the size of a home that could move now,
    or `None`: it is in use, held, of unknown size, or its last move has failed or was cancelled within
    `PAUSE`. `ahead_mib` is what other moves from the node still have to copy.
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
        """Whether the home is small enough to move with a start that did not ask for it."""
        limit_mib = settings.BERTH_MOVE_HOME_LIMIT_MIB
        return self.movable_mib is not None and self.movable_mib <= limit_mib and limit_mib > 0

    @property
    def usable(self) -> bool:
        """Whether workspaces can start at the home now."""
        return not (self.lost or self.moving_to or self.archived or self.away)


Homes = Mapping[UUID, HomeLocation]
"""Place of a home, by pool."""
NOWHERE: Homes = {}
FEW = 200
PAUSE = timedelta(hours=1)
"""Time after a failed or cancelled move in which no start moves the home."""


def has_separate_homes(pool: Pool) -> bool:
    """Return whether each node of the pool keeps separate homes."""
    return pool.runs_on_node and not pool.simulated and not pool.config.get("homes_shared")


def home_places(owner_id: UUID, team_id: UUID) -> Homes:
    """Return the places of the home of a user in a team, by pool."""
    return home_places_by_user([(owner_id, team_id)]).get((owner_id, team_id), NOWHERE)


def home_places_by_user(
    pairs: Iterable[tuple[UUID, UUID]],
) -> dict[tuple[UUID, UUID], dict[UUID, HomeLocation]]:
    """Return the places of the homes of these users in these teams, with one query."""
    users = {user for user, _team in pairs}
    if not users:
        return {}
    places, lost = HomePlace.objects.all(), LostHome.objects.filter(recreated_at=None).order_by()
    if len(users) <= FEW:
        places, lost = places.filter(owner__in=users), lost.filter(owner__in=users)
    same = {"owner": OuterRef("owner"), "team": OuterRef("team")}
    moves = HomeMove.objects.filter(**same, pool=OuterRef("pool"), state__in=ACTIVE_MOVES)
    archives = HomeArchive.objects.filter(**same, pool=OuterRef("pool"), state__in=ACTIVE_ARCHIVES)
    put_away = HomeArchive.objects.filter(**same, node=OuterRef("node"), away_at__isnull=False)
    named = (
        *("owner_id", "team_id", "pool_id", "name", "is_lost", "to", "held", "put_away"),
        *("size_mib", "stays", "ahead"),
    )
    flag, text, number = BooleanField(), CharField(), BigIntegerField()
    to = Coalesce(Subquery(moves.values("target_name")[:1]), Value(""), output_field=text)
    has_archive, is_put_away = Exists(archives), Exists(put_away)
    rows = places.annotate(
        name=F("node__name"),
        is_lost=Value(False, flag),
        to=to,
        held=has_archive,
        put_away=is_put_away,
        size_mib=Subquery(_sizes().values("used_mib")[:1], output_field=number),
        stays=_stays(),
        ahead=Coalesce(Subquery(_bytes_ahead(), output_field=number), Value(0), output_field=number),
    )
    no, none = Value(False, flag), Value(0, number)
    gone = lost.annotate(
        name=F("node"), is_lost=Value(True, flag), to=Value("", text), held=no, put_away=no,
        size_mib=none, stays=Value(True, flag), ahead=none,
    )  # fmt: skip
    both = rows.values_list(*named).union(gone.values_list(*named), all=True)
    homes_by_user: dict[tuple[UUID, UUID], dict[UUID, HomeLocation]] = {}
    for user, team, pool, node, is_lost, moving_to, archived, away, size_mib, stays, ahead in both:
        home = HomeLocation(node, bool(is_lost), moving_to, bool(archived), bool(away))
        if home.usable and not stays and size_mib is not None:
            # PostgreSQL sums up in decimals.
            home = replace(home, movable_mib=size_mib, ahead_mib=int(ahead) >> 20)
        homes_by_user.setdefault((user, team), {})[pool] = home
    return homes_by_user


def _sizes() -> QuerySet[HomeUsage]:
    """Return the measurement of a home in an outer query, if all of its content was measured."""
    return HomeUsage.objects.filter(
        owner=OuterRef("owner"), team=OuterRef("team"), node=OuterRef("node"), hidden=False
    )


def _stays() -> Combinable:
    """Return whether a home in an outer query cannot move with a start: it is in use or held, or paused."""
    same = {"owner": OuterRef("owner"), "team": OuterRef("team")}
    paused = Q(state=HomeMoveState.FAILED) | Q(state=HomeMoveState.CANCELLED, reason={})
    moves = HomeMove.objects.filter(
        Q(open=True) | Q(paused, ended_at__gt=timezone.now() - PAUSE), **same, pool=OuterRef("pool")
    )
    archives = HomeArchive.objects.filter(**same, pool=OuterRef("pool"), open=True)
    allocations = Allocation.objects.filter(
        workspace__owner=OuterRef("owner"),
        workspace__team=OuterRef("team"),
        node=OuterRef("node"),
        released_at=None,
    )
    return Exists(moves) | Exists(archives) | Exists(allocations)


def _bytes_ahead() -> QuerySet[HomeMove, Any]:
    """Return the bytes that active moves from the node of a home in an outer query still have to copy."""
    active = HomeMove.objects.filter(
        source=OuterRef("node"), state__in=ACTIVE_MOVES, bytes_total__gt=F("bytes_done")
    )
    sums = active.order_by().values("source").annotate(left=Sum(F("bytes_total") - F("bytes_done")))
    return sums.values("left")


def node_of(workspace: Workspace) -> tuple[Pool, str] | None:
    """Return the pool and the node name of the home that the workspace uses, or `None`.

    It is the node of the workspace's last allocation, or else of the owner's last allocation in the team.
    """
    allocations = Allocation.objects.select_related("node__pool").filter(
        node__pool__deleted_at=None, node__retired=False
    )
    own = allocations.filter(workspace=workspace)
    of_home = allocations.filter(workspace__owner=workspace.owner_id, workspace__team=workspace.team_id)
    allocation = own.order_by("-granted_at").first() or of_home.order_by("-granted_at").first()
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
    """Record the homes of workspaces about to be placed, and return those that cannot be placed so.

    `placed` has the node of each workspace. The caller holds the placement lock, so two first placements of
    one home cannot split it. The returned workspaces wait; the next cycle knows their node.
    """
    apart = [placement for placement in placed if has_separate_homes(placement[1])]
    homes = home_places_by_user(
        [(workspace.owner_id, workspace.team_id) for workspace, _pool, _node in apart]
    )
    elsewhere: set[UUID] = set()
    fresh: list[tuple[Workspace, Pool, str]] = []
    for workspace, pool, node in apart:
        home = homes.setdefault((workspace.owner_id, workspace.team_id), {})
        at = home.setdefault(pool.pk, HomeLocation(node))
        if at.node != node or not at.usable:
            elsewhere.add(workspace.pk)
        else:
            fresh.append((workspace, pool, node))
    _note(fresh)
    return elsewhere


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
    # Includes the user's homes in other teams, because what counts is whether the user is active.
    users = {workspace.owner_id for workspace, _pool, _node in placed}
    pools = {pool.pk for _workspace, pool, _node in placed}
    HomePlace.objects.filter(owner__in=users, pool__in=pools).update(used_at=now)
