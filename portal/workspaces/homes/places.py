"""Places of homes in pools with several nodes: a home stays on the node it was first placed on.

A home belongs to a user in a team. If the nodes of a pool keep separate homes, the home has one place, and
later workspaces of the user go to that node only. A pool whose nodes share one folder for homes sets
`homes_shared` in its configuration, beside `homes`. Simulated pools have no homes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from uuid import UUID

from django.db.models import BooleanField, CharField, Exists, F, OuterRef, Subquery, Value
from django.db.models.functions import Coalesce
from django.utils import timezone

from portal.fleet.inventory.models import Allocation, Node, Pool
from portal.workspaces.models import (
    ACTIVE_ARCHIVES,
    ACTIVE_MOVES,
    HomeArchive,
    HomeMove,
    HomePlace,
    LostHome,
    Workspace,
)


@dataclass(frozen=True, slots=True)
class HomeLocation:
    """Place of a home: the name of its node, and `lost` if that machine was removed.

    `moving_to` is the target node of a running move. `archived` is set while an archive is created or
    restored, `away` if an archive is the only copy.
    """

    node: str
    lost: bool = False
    moving_to: str = ""
    archived: bool = False
    away: bool = False


Homes = Mapping[UUID, HomeLocation]
"""Place of a home, by pool."""
NOWHERE: Homes = {}
FEW = 200


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
    moves = HomeMove.objects.filter(
        owner=OuterRef("owner"), team=OuterRef("team"), pool=OuterRef("pool"), state__in=ACTIVE_MOVES
    )
    archives = HomeArchive.objects.filter(
        owner=OuterRef("owner"), team=OuterRef("team"), pool=OuterRef("pool"), state__in=ACTIVE_ARCHIVES
    )
    put_away = HomeArchive.objects.filter(
        owner=OuterRef("owner"), team=OuterRef("team"), node=OuterRef("node"), away_at__isnull=False
    )
    named = ("owner_id", "team_id", "pool_id", "name", "is_lost", "to", "held", "put_away")
    flag, text = BooleanField(), CharField()
    to = Coalesce(Subquery(moves.values("target_name")[:1]), Value(""), output_field=text)
    has_archive, is_put_away = Exists(archives), Exists(put_away)
    rows = places.annotate(
        name=F("node__name"), is_lost=Value(False, flag), to=to, held=has_archive, put_away=is_put_away
    )
    no = Value(False, flag)
    gone = lost.annotate(name=F("node"), is_lost=Value(True, flag), to=Value("", text), held=no, put_away=no)
    both = rows.values_list(*named).union(gone.values_list(*named), all=True)
    homes_by_user: dict[tuple[UUID, UUID], dict[UUID, HomeLocation]] = {}
    for user, team, pool, node, is_lost, moving_to, archived, away in both:
        home = HomeLocation(node, bool(is_lost), moving_to, bool(archived), bool(away))
        homes_by_user.setdefault((user, team), {})[pool] = home
    return homes_by_user


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
        if home.setdefault(pool.pk, HomeLocation(node)) != HomeLocation(node):
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
