"""Where people's homes lie in pools of several machines: on the node that they were first placed on.

A home belongs to a user in a team. In a pool whose nodes keep homes each for itself it has one place, and
what the user starts there later goes to that node only. A pool whose machines share one folder for homes says
so with `homes_shared` in its configuration, beside `homes`; homes of simulated pools do not exist.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from uuid import UUID

from django.utils import timezone

from portal.inventory.domain_events import NodeForgotten
from portal.inventory.models import Node, Pool
from portal.workspaces.models import HomePlace, Workspace

Homes = Mapping[UUID, str]
"""By pool, the name of the node on which a home lies."""
NOWHERE: Homes = {}
FEW = 200


def are_apart(pool: Pool) -> bool:
    """Whether each node of the pool keeps homes for itself."""
    return pool.runs_on_node and not pool.simulated and not pool.config.get("homes_shared")


def of_user(user_id: UUID, team_id: UUID) -> Homes:
    """Where the home of a user in a team lies."""
    return of_users([(user_id, team_id)]).get((user_id, team_id), NOWHERE)


def of_users(pairs: Iterable[tuple[UUID, UUID]]) -> dict[tuple[UUID, UUID], dict[UUID, str]]:
    """Where the homes of these users in these teams lie; one query."""
    users = {user for user, _team in pairs}
    if not users:
        return {}
    rows = HomePlace.objects.filter(user__in=users) if len(users) <= FEW else HomePlace.objects.all()
    found: dict[tuple[UUID, UUID], dict[UUID, str]] = {}
    for user, team, pool, node in rows.values_list("user_id", "team_id", "pool_id", "node__name"):
        found.setdefault((user, team), {})[pool] = node
    return found


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
        if home.setdefault(pool.pk, node) != node:
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
                user_id=workspace.owner_id,
                team_id=workspace.team_id,
                pool=pool,
                node_id=nodes[pool.pk, node],
                since=now,
            )
            for workspace, pool, node in placed
        ],
        ignore_conflicts=True,
    )


def node_forgotten(event: NodeForgotten) -> None:
    """An operator has removed what was left of a machine: its homes are elsewhere from now on."""
    HomePlace.objects.filter(node=event.node_id).delete()
