"""Moves selected workspaces for operators, to a node or to any other node of their pool.

The preview and the request use the same search. A target must be free while the workspace still runs, and the
queue's simulation must start the workspace there. Workspaces that cannot move do not affect the others.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from uuid import UUID

from django.db import transaction
from django.utils import timezone
from django.utils.translation import gettext as _
from django.utils.translation import gettext_noop

from portal.common.errors import PortalError, StateConflict
from portal.common.idempotency import KeyUse, digest_of
from portal.common.reasons.reason import Reason
from portal.common.texts import strip_nul
from portal.fleet.inventory.models import PlacementLock
from portal.people.accounts.models import User
from portal.people.accounts.policies import require_operator
from portal.scheduling import capacity, hints, moves, moving, snapshot_cache
from portal.scheduling.codes import MoveCode
from portal.scheduling.models import Move, MoveOutcome
from portal.scheduling.moves import PlannedMove, parse_placement
from portal.scheduling.placement_request import PlacementRequest
from portal.scheduling.pool_nodes import PoolNodes
from portal.scheduling.snapshot import ClusterSnapshot
from portal.workspaces import bulk
from portal.workspaces.homes import places as home_places
from portal.workspaces.lifecycle import PreemptionCause, State
from portal.workspaces.models import Workspace
from portal.workspaces.transitions import lock_workspace
from provisioning.traits import Placing
from provisioning.types import Placement, ResourceRequest

MAX_REASON = 1000
MAX_NODE = 253
"""Maximum length of a node name."""
MAX_ROUNDS = 3
"""Maximum number of queue simulations. Each omits the moves that failed in the previous one."""
Verdict = PlannedMove | StateConflict
_Allocations = Mapping[str, list[tuple[UUID, Placement, ResourceRequest]]]


@dataclass(frozen=True, slots=True)
class MovePlan:
    """The move or refusal of each workspace, by id, and when the moved workspaces would stop."""

    verdicts: Mapping[UUID, Verdict]
    stops_at: datetime


def preview(*, actor: User, workspaces: Iterable[Workspace], node: str = "") -> MovePlan:
    """Return the effect that `request` would have. Changes nothing. Raises `NotAllowed`."""
    require_operator(actor)
    now = timezone.now()
    with snapshot_cache.preview_cache.use(now) as snapshot:
        verdicts = _search(snapshot, list(workspaces), node)
    return MovePlan(verdicts, now + timedelta(seconds=moving.notice_s()))


@transaction.atomic
def request(
    *,
    actor: User,
    workspaces: Iterable[UUID],
    node: str = "",
    reason: str = "",
    idempotency_key: str = "",
    seen: Mapping[UUID, str] | None = None,
) -> dict[UUID, PortalError | None]:
    """Request that workspaces move to `node`, by default to any other node of their pool.

    Notifies owners with the `reason`; workspaces stop after the notice period. Returns the refusal or None,
    by id. `seen` has the fingerprints that the actor saw (`bulk.fingerprint`). With an idempotency key, a
    repeated request moves nothing again.

    Must not run inside a transaction that has locked workspaces. Raises `NotAllowed`.
    """
    require_operator(actor)
    keys = list(dict.fromkeys(workspaces))
    # Serialise move requests, so that a repeated request finds the idempotency keys of the first.
    PlacementLock.hold()
    locked = bulk.visible(actor, keys, lock=True)
    results: dict[UUID, PortalError | None] = dict.fromkeys(keys)
    candidates: dict[UUID, KeyUse] = {}
    for key in keys:
        use = KeyUse(actor, f"workspaces.move {key}", idempotency_key, digest_of(node))
        try:
            if key not in locked:
                raise bulk.not_found()
            if idempotency_key and use.answer() is not None:
                continue
            if seen is not None:
                bulk.require_unchanged(locked[key], seen.get(key, ""))
            candidates[key] = use
        except PortalError as error:
            results[key] = error
    if not candidates:
        return results
    with snapshot_cache.cycle_cache.use(timezone.now()) as snapshot:
        verdicts = _search(snapshot, [locked[key] for key in candidates], node)
    results.update({key: verdict for key, verdict in verdicts.items() if isinstance(verdict, PortalError)})
    planned = [verdict for verdict in verdicts.values() if isinstance(verdict, PlannedMove)]
    if planned:
        reason_text = strip_nul(reason).strip()[:MAX_REASON] or _(
            "An operator is moving the workspace to another node."
        )
        moving.announce(actor=actor, planned=planned, rows=locked, reason=reason_text)
        for move in planned if idempotency_key else ():
            candidates[move.workspace].claim()
            candidates[move.workspace].record()
    return results


@transaction.atomic
def cancel(*, actor: User, workspace_id: UUID) -> Workspace:
    """Cancel a workspace's move that has not begun, and notify its owner. Idempotent.

    Returns the locked workspace. Raises `NotAllowed`, `NotFound`, and `StateConflict` like `require_pending`.
    """
    require_operator(actor)
    # The code that stops a workspace for a move holds the same lock, so a move is either cancelled or begun.
    row = lock_workspace(workspace_id)
    if require_pending(row):
        moves.cancel(row, actor=actor, reason=gettext_noop("an operator cancelled the move"))
        # Other requests may have relied on this capacity.
        hints.request_cycle()
    return row


def is_pending(workspace: Workspace) -> bool:
    """Return whether the workspace has a pending move that can be cancelled separately."""
    notice = workspace.preempting
    return (
        workspace.state == State.RUNNING
        and notice is not None
        and notice.cause == PreemptionCause.MOVE
        and not notice.preempted_by
    )


def require_pending(workspace: Workspace) -> bool:
    """Return whether the workspace has a move to cancel; False if its last move was already cancelled.

    Raises `StateConflict` if there is no move, the move has begun, or a waiting request needs the move.
    """
    if is_pending(workspace):
        return True
    name = {"name": workspace.name}
    notice = workspace.preempting
    if workspace.state == State.RUNNING and notice is not None and notice.cause == PreemptionCause.MOVE:
        raise StateConflict(Reason(MoveCode.MOVES_FOR_REQUEST, name), state=workspace.state)
    last = Move.objects.filter(workspace=workspace).order_by("-asked_at", "-pk").first()
    if last is not None and last.ended_at is None and last.left_at is not None:
        raise StateConflict(Reason(MoveCode.MOVE_BEGUN, name), state=workspace.state)
    if (
        last is None
        or notice is not None
        or workspace.state != State.RUNNING
        or (last.generation, last.outcome) != (workspace.generation, MoveOutcome.STAYED)
    ):
        raise StateConflict(Reason(MoveCode.NO_MOVE, name), state=workspace.state)
    return False


def _search(snapshot: ClusterSnapshot, rows: Sequence[Workspace], node: str) -> dict[UUID, Verdict]:
    """Return the move or the refusal of each workspace. Leaves the snapshot unchanged."""
    keys = [row.pk for row in rows]
    allocations = capacity.allocations_by_workspace(keys)
    homes = home_places.home_places_by_user([(row.owner_id, row.team_id) for row in rows])
    under_way = {move.workspace_id: move for move in Move.objects.filter(workspace__in=keys, ended_at=None)}
    taken: list[tuple[PoolNodes, Placement, ResourceRequest]] = []
    verdicts: dict[UUID, Verdict] = {}
    try:
        for row in rows:
            try:
                _require_movable(row, under_way.get(row.pk), allocations)
                ((pool_id, source, _held),) = allocations[str(row.pk)]
                placement_request = snapshot.placement_requests.build(
                    row.template, row.flavor, row.resources, homes=homes.get((row.owner_id, row.team_id), {})
                )
                pool = _pool_of(row, placement_request, pool_id)
                resources = pool.with_requirements(
                    placement_request.variants[0].request, placement_request.software
                )
                target = _target(row, pool, resources, source.nodes[0].node, node, placement_request.home)
            except StateConflict as refusal:
                verdicts[row.pk] = refusal
                continue
            # Two workspaces cannot take the same place.
            pool.cluster.commit(target, resources)
            pool.invalidate_reasons()
            taken.append((pool, target, resources))
            verdicts[row.pk] = PlannedMove(row.pk, row.generation, pool_id, source, target)
    finally:
        for pool, target, resources in reversed(taken):
            pool.cluster.release(target, resources)
            pool.invalidate_reasons()
    return _only_those_that_start(snapshot, rows, verdicts)


def _require_movable(row: Workspace, move: Move | None, allocations: _Allocations) -> None:
    name = {"name": row.name}
    workspace_allocations = allocations.get(str(row.pk), ())
    if row.state != State.RUNNING or not workspace_allocations:
        raise StateConflict(Reason(MoveCode.NOT_RUNNING, name), state=row.state)
    if row.pool is not None and row.pool.traits.placing is Placing.ENGINE:
        raise StateConflict(Reason(MoveCode.ENGINE_PLACES, name))
    if move is not None:
        target = parse_placement(move.target).nodes[0].node
        raise StateConflict(Reason(MoveCode.MOVES_ALREADY, {**name, "node": target}), state=row.state)
    if row.preempting is not None:
        raise StateConflict(Reason(MoveCode.STOPS_SOON, name), state=row.state)
    if len(workspace_allocations) != 1:
        raise StateConflict(Reason(MoveCode.SEVERAL_NODES, name), state=row.state)


def _pool_of(row: Workspace, placement_request: PlacementRequest, pool_id: UUID) -> PoolNodes:
    """Return the workspace's pool, if the same request can be placed there again."""
    pool = next((pool for pool in placement_request.pools if pool.pool.pk == pool_id), None)
    # Different variants have different models, which are charged differently.
    if pool is None or len(placement_request.variants) != 1:
        params = {"name": row.name, "pool": row.pool.name if row.pool is not None else ""}
        raise StateConflict(Reason(MoveCode.NOT_PLACEABLE, params), state=row.state)
    return pool


def _target(
    row: Workspace, pool: PoolNodes, resources: ResourceRequest, source: str, node: str, home: str
) -> Placement:
    """Return a free placement on `node`, by default on the best other node. Raises `StateConflict`."""
    params = {"name": row.name, "pool": pool.pool.name}
    if node == source:
        raise StateConflict(Reason(MoveCode.SAME_NODE, {**params, "node": node}), state=row.state)
    if node and node not in {candidate.name for candidate in pool.nodes}:
        raise StateConflict(Reason(MoveCode.NO_SUCH_NODE, {**params, "node": node}), state=row.state)
    if home and home != node:
        owner = {"owner": row.owner.username, "node": home}
        raise StateConflict(Reason(MoveCode.HOME_STAYS, owner), state=row.state)
    place = pool.find_on(node, resources) if node else pool.find_except(source, resources)
    if isinstance(place, Placement):
        return place
    if place is None:
        raise StateConflict(Reason(MoveCode.NO_OTHER_NODE, params), state=row.state)
    refusal = {"node": node, "reason": place.as_json()}
    raise StateConflict(Reason(MoveCode.NODE_CANNOT, refusal), state=row.state)


def _only_those_that_start(
    snapshot: ClusterSnapshot, rows: Sequence[Workspace], verdicts: dict[UUID, Verdict]
) -> dict[UUID, Verdict]:
    """Refuse the moves that the queue would not carry out in a simulation."""
    accepted = [verdict for verdict in verdicts.values() if isinstance(verdict, PlannedMove)]
    for _round in range(MAX_ROUNDS):
        arriving = moving.arriving(snapshot, accepted) if accepted else []
        settled = len(arriving) == len(accepted)
        accepted = arriving
        if settled:
            break
    else:
        accepted = []
    names = {row.pk: row.name for row in rows}
    starting = {move.workspace for move in accepted}
    for key, verdict in verdicts.items():
        if isinstance(verdict, PlannedMove) and key not in starting:
            params = {"name": names[key], "node": verdict.target.nodes[0].node}
            verdicts[key] = StateConflict(Reason(MoveCode.OTHERS_FIRST, params))
    return verdicts
