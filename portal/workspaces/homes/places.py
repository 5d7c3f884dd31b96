"""Where people's homes lie in pools of several machines: on the node that they were first placed on.

A home belongs to a user in a team. In a pool whose nodes keep homes each for itself it has one place, and
what the user starts there later goes to that node only. A pool whose machines share one folder for homes says
so with `homes_shared` in its configuration, beside `homes`; homes of simulated pools do not exist.
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
class HomeAt:
    """The name of the node on which a home lies; `lost` where that machine was removed.

    `moving_to` is the name of the node to which it is being moved; `archived` while an archive of it is made
    or restored; `away` while it was put away in one.
    """

    node: str
    lost: bool = False
    moving_to: str = ""
    archived: bool = False
    away: bool = False


Homes = Mapping[UUID, HomeAt]
"""By pool, where a home lies."""
NOWHERE: Homes = {}
FEW = 200


def are_apart(pool: Pool) -> bool:
    """Whether each node of the pool keeps homes for itself."""
    return pool.runs_on_node and not pool.simulated and not pool.config.get("homes_shared")


def of_user(owner_id: UUID, team_id: UUID) -> Homes:
    """Where the home of a user in a team lies."""
    return of_users([(owner_id, team_id)]).get((owner_id, team_id), NOWHERE)


def of_users(pairs: Iterable[tuple[UUID, UUID]]) -> dict[tuple[UUID, UUID], dict[UUID, HomeAt]]:
    """Where the homes of these users in these teams lie; one query."""
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
    held, kept = Exists(archives), Exists(put_away)
    rows = places.annotate(name=F("node__name"), is_lost=Value(False, flag), to=to, held=held, put_away=kept)
    no = Value(False, flag)
    gone = lost.annotate(name=F("node"), is_lost=Value(True, flag), to=Value("", text), held=no, put_away=no)
    both = rows.values_list(*named).union(gone.values_list(*named), all=True)
    found: dict[tuple[UUID, UUID], dict[UUID, HomeAt]] = {}
    for user, team, pool, node, is_lost, moving_to, archived, away in both:
        home = HomeAt(node, bool(is_lost), moving_to, bool(archived), bool(away))
        found.setdefault((user, team), {})[pool] = home
    return found


def node_of(workspace: Workspace) -> tuple[Pool, str] | None:
    """The pool and the name of the node on which the home lies that the workspace uses; None for nowhere.

    Where it is or was last; else where the last of its user's workspaces of its team was.
    """
    allocations = Allocation.objects.select_related("node__pool").filter(
        node__pool__deleted_at=None, node__retired=False
    )
    own = allocations.filter(workspace=workspace)
    of_home = allocations.filter(workspace__owner=workspace.owner_id, workspace__team=workspace.team_id)
    found = own.order_by("-granted_at").first() or of_home.order_by("-granted_at").first()
    if found is None:
        return None
    # It may have been moved since.
    place = (
        HomePlace.objects.select_related("node")
        .filter(owner=workspace.owner_id, team=workspace.team_id, pool=found.node.pool, node__retired=False)
        .first()
    )
    return found.node.pool, place.node.name if place is not None else found.node.name


def settle(placed: Sequence[tuple[Workspace, Pool, str]]) -> set[UUID]:
    """Note where homes lie of workspaces that are about to be placed; those that must not be placed so.

    `placed` has the node of each. Under the lock of placement: two that are decided together and for the
    first time do not part a home. Those that are left out wait, and know where the home is the next time.
    """
    apart = [each for each in placed if are_apart(each[1])]
    homes = of_users([(workspace.owner_id, workspace.team_id) for workspace, _pool, _node in apart])
    elsewhere: set[UUID] = set()
    fresh: list[tuple[Workspace, Pool, str]] = []
    for workspace, pool, node in apart:
        home = homes.setdefault((workspace.owner_id, workspace.team_id), {})
        if home.setdefault(pool.pk, HomeAt(node)) != HomeAt(node):
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
            pool__in={pool.pk for _workspace, pool, _node in placed}, name__in={each[2] for each in placed}
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
    # Those of the user in other teams, too: what counts is whether the user still comes.
    users = {workspace.owner_id for workspace, _pool, _node in placed}
    pools = {pool.pk for _workspace, pool, _node in placed}
    HomePlace.objects.filter(owner__in=users, pool__in=pools).update(used_at=now)
