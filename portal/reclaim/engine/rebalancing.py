"""Proposes which running workspaces should move, and where. Pure, using clusters of the placement engine.

Two things justify a move. A workspace with low placement health moves to a better placement. If a request
waits although enough capacity is free, but scattered, the workspaces in its way move at the least cost. The
placement engine finds each target with all earlier moves applied, so all proposals can be executed at once.

Moves do not oscillate: a moved workspace stays for `cool_down_s`, and does not return to its old devices for
`return_s`. A move must gain `min_gain`, and freeing capacity for a request must cost less than it gains.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from portal.common.reasons.reason import Reason
from portal.reclaim.engine.codes import RebalanceCode
from portal.reclaim.engine.movables import (
    ListedMovables,
    Movable,
    MovableSource,
    NodeMovables,
    PreemptibleMovables,
    is_movable,
)
from portal.reclaim.engine.placement_health import MAX_SCORE, concerns_node
from portal.scheduling.engine.placement import filters
from portal.scheduling.engine.placement.cluster import Cluster
from portal.scheduling.engine.placement.types import NodeCapacity
from provisioning.types import DeviceKind, Placement, ResourceRequest

MAX_PLACEMENTS_TRIED = 4
"""Maximum number of placements tried per workspace: the best one for packing may not be better for it."""
MAX_NODES_TRIED = 8
"""Maximum number of nodes tried for freeing capacity. Nodes that lack the least come first."""
NODES_READ_AHEAD = 32
"""Number of nodes whose workspaces are read in the first batch."""


@dataclass(frozen=True, slots=True)
class BlockedRequest:
    """A request for one node that is blocked by placement only, in queue order.

    `requests` are its requests by pool, in order of preference. `eta_s` is the expected start without moves,
    or None if unknown.
    """

    id: str
    requests: tuple[tuple[str, ResourceRequest], ...]
    milli: int
    duration_s: int
    since_s: int
    eta_s: int | None = None

    @property
    def expected_work(self) -> int:
        """The expected work of the request, in the unit of `Movable.lost_work`."""
        return max(self.milli, 1) * self.duration_s


@dataclass(frozen=True, slots=True)
class PastMove:
    """An earlier move: the workspace left these devices of a node at `at_s`."""

    workspace: str
    at_s: int
    node: str
    devices: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Rules:
    """Thresholds of rebalancing.

    - `low_score`: maximum placement health, in percent, at which a workspace is moved.
    - `min_gain`: minimum gain of a move, in percent.
    - `patience_s`: no moves for a request that would start within this time anyway.
    - `min_wait_s`: minimum waiting time of a request before workspaces move for it.
    - `max_moves`: maximum number of moves for one request.
    """

    low_score: int = 70
    min_gain: int = 20
    cool_down_s: int = 86_400
    return_s: int = 7 * 86_400
    patience_s: int = 1_800
    min_wait_s: int = 60
    max_moves: int = 8
    max_proposals: int = 8


RULES = Rules()


@dataclass(frozen=True, slots=True)
class Move:
    """The move of a workspace within its pool."""

    workspace: str
    pool: str
    source: Placement
    target: Placement


@dataclass(frozen=True, slots=True)
class Proposal:
    """Moves that belong together.

    `gain` is in points of placement health; with `waiting`, the milli-GPU of the request that starts.
    `lost_work` is the work to repeat (`Movable.lost_work`).
    """

    moves: tuple[Move, ...]
    reason: Reason
    gain: int
    lost_work: int = 0
    waiting: str = ""

    @property
    def key(self) -> tuple[str, ...]:
        """A key that is equal for proposals with the same workspaces and the same request."""
        return (self.waiting, *sorted(move.workspace for move in self.moves))


@dataclass(slots=True)
class _TrialClusters:
    """The clusters with all proposals applied, and the steps to undo them.

    `shortfalls` caches what nodes lack for a request, by node version.
    """

    clusters: Mapping[str, Cluster]
    steps: list[tuple[str, Placement, ResourceRequest, bool]] = field(default_factory=list)
    shortfalls: dict[tuple[str, ResourceRequest], dict[str, tuple[int, int, int]]] = field(
        default_factory=dict
    )

    def commit(self, pool: str, placement: Placement, request: ResourceRequest) -> None:
        self.clusters[pool].commit(placement, request)
        self.steps.append((pool, placement, request, True))

    def release(self, pool: str, placement: Placement, request: ResourceRequest) -> None:
        self.clusters[pool].release(placement, request)
        self.steps.append((pool, placement, request, False))

    def shortfall_of(self, pool: str, request: ResourceRequest, name: str) -> tuple[int, int]:
        """Return the minimum number of devices with room and amount of CPU that the node lacks."""
        cluster = self.clusters[pool]
        version, entries = cluster.version(name), self.shortfalls.setdefault((pool, request), {})
        entry = entries.get(name)
        if entry is None or entry[0] != version:
            node = cluster.node(name)
            entry = (
                version,
                _device_shortfall(node, request),
                max(0, request.cpu_milli - node.free_cpu_milli),
            )
            entries[name] = entry
        return entry[1:]

    def undo(self, keep_first: int = 0) -> None:
        while len(self.steps) > keep_first:
            pool, placement, request, taken = self.steps.pop()
            cluster = self.clusters[pool]
            (cluster.release if taken else cluster.restore)(placement, request)


def propose(
    clusters: Mapping[str, Cluster],
    running: Sequence[Movable] | MovableSource,
    waiting: Sequence[BlockedRequest],
    past: Iterable[PastMove],
    now_s: int,
    rules: Rules = RULES,
    scores: Mapping[str | tuple[str, str], int] | None = None,
) -> list[Proposal]:
    """Return the worthwhile proposals. The clusters are unchanged afterwards.

    `scores` rates devices by UUID and nodes by (pool, name), in percent. Missing scores are unknown and count
    as good. Pending requests come first, because running workspaces already have a placement.
    """
    history = list(past)
    resting = {earlier.workspace for earlier in history if now_s - earlier.at_s < rules.cool_down_s}
    left: dict[str, list[PastMove]] = {}
    for earlier in history:
        if now_s - earlier.at_s < rules.return_s:
            left.setdefault(earlier.workspace, []).append(earlier)
    source = ListedMovables(running) if isinstance(running, Sequence) else running
    site = _TrialClusters(clusters)
    try:
        proposals = _free_capacity(
            site, PreemptibleMovables(source, resting, now_s), waiting, left, now_s, rules
        )
        stay = resting | {move.workspace for proposal in proposals for move in proposal.moves}
        # Without a reason, nothing was measured, so there is no cause for a move.
        low = [
            movable
            for movable in source.discontent()
            if movable.reasons
            and movable.score <= rules.low_score
            and movable.pool in clusters
            and is_movable(movable, stay)
        ]
        low.sort(key=lambda movable: (movable.score, movable.lost_work(now_s), movable.started_s, movable.id))
        for movable in low:
            if len(proposals) >= rules.max_proposals:
                break
            better = _find_better_placement(
                site, movable, left.get(movable.id, ()), now_s, rules, scores or {}
            )
            if better is not None:
                proposals.append(better)
        return proposals
    finally:
        site.undo()


# --- workspaces with a low score ---------------------------------------------------------------------


def _find_better_placement(
    site: _TrialClusters,
    movable: Movable,
    left: Sequence[PastMove],
    now_s: int,
    rules: Rules,
    scores: Mapping[str | tuple[str, str], int],
) -> Proposal | None:
    """Return a move with sufficient gain to a target that is free while the workspace still runs."""
    before = len(site.steps)
    accelerators = movable.request.accelerators
    # For a workspace with a share, only an unused GPU is better, although it still gets only its share.
    alone = replace(
        movable.request,
        accelerators=replace(accelerators, share_milli=1000, memory_mib=accelerators.memory_mib),
    )
    shares = accelerators.count > 0 and accelerators.share_milli < 1000
    request = alone if shares else movable.request
    for _ in range(MAX_PLACEMENTS_TRIED):
        place = site.clusters[movable.pool].find(request)
        if place is None:
            break
        target = site.clusters[movable.pool].with_requested_share(place, movable.request) if shares else place
        gain = _placement_score(movable.pool, target, scores) - movable.score
        if gain >= rules.min_gain and _is_elsewhere(movable, target) and not _is_return(target, left):
            site.undo(before)
            site.commit(movable.pool, target, movable.request)
            move = Move(movable.id, movable.pool, movable.placement, target)
            return Proposal((move,), movable.reasons[0], gain, movable.lost_work(now_s))
        # Not good enough. Take it temporarily to find the next best.
        site.commit(movable.pool, place, request)
    site.undo(before)
    return None


def _placement_score(pool: str, target: Placement, scores: Mapping[str | tuple[str, str], int]) -> int:
    """Return the score of a placement: the minimum of its devices and nodes."""
    of_node = (scores.get((pool, part.node), MAX_SCORE) for part in target.nodes)
    return min((*of_node, *(scores.get(uuid, MAX_SCORE) for uuid in _devices(target))))


def _devices(place: Placement) -> frozenset[str]:
    return frozenset(grant.uuid for part in place.nodes for grant in part.devices)


def _is_elsewhere(movable: Movable, target: Placement) -> bool:
    """Return whether the target is another node or, if the node is not the problem, other devices."""
    if target.nodes[0].node != movable.node:
        return True
    node_is_cause = any(concerns_node(reason) for reason in movable.reasons)
    return bool(movable.devices) and not node_is_cause and not _devices(target) & movable.devices


def _is_return(target: Placement, left: Iterable[PastMove]) -> bool:
    """Return whether the target is an earlier placement of the workspace."""
    devices = _devices(target)
    return any(
        bool(devices & past.devices) if past.devices else past.node == target.nodes[0].node for past in left
    )


# --- capacity for pending requests --------------------------------------------------------------------


def _free_capacity(
    site: _TrialClusters,
    movables_by_node: PreemptibleMovables,
    waiting: Sequence[BlockedRequest],
    left: Mapping[str, Sequence[PastMove]],
    now_s: int,
    rules: Rules,
) -> list[Proposal]:
    proposals: list[Proposal] = []
    # Failed searches by expected work, because moves for a request with more work may cost more.
    failed_searches: dict[tuple[str, ResourceRequest], int] = {}
    for blocked in waiting:
        if len(proposals) >= rules.max_proposals:
            break
        soon = blocked.eta_s is not None and blocked.eta_s - now_s <= rules.patience_s
        if soon or now_s - blocked.since_s < rules.min_wait_s:
            continue
        if any(
            pool in site.clusters and site.clusters[pool].find(request) for pool, request in blocked.requests
        ):
            # Something other than placement blocks the request.
            continue
        for pool, request in blocked.requests:
            if pool not in site.clusters or request.nodes != 1:
                continue
            if failed_searches.get((pool, request), -1) >= blocked.expected_work:
                continue
            proposal = _free_capacity_in(site, pool, request, blocked, movables_by_node, left, now_s, rules)
            if proposal is None:
                failed_searches[pool, request] = blocked.expected_work
                continue
            proposals.append(proposal)
            # Each workspace moves for one request only.
            moved = {move.workspace for move in proposal.moves}
            movables_by_node.remove(pool, moved, {move.source.nodes[0].node for move in proposal.moves})
            # The clusters have changed, so failed searches may succeed now.
            failed_searches.clear()
            break
    return proposals


def _free_capacity_in(
    site: _TrialClusters,
    pool: str,
    request: ResourceRequest,
    blocked: BlockedRequest,
    movables_by_node: PreemptibleMovables,
    left: Mapping[str, Sequence[PastMove]],
    now_s: int,
    rules: Rules,
) -> Proposal | None:
    """Return the cheapest way to free capacity on one node of the pool, and apply it to the clusters."""
    cluster = site.clusters[pool]
    nearest = _closest_nodes(site, pool, request, movables_by_node)
    best: tuple[tuple[int, ...], list[Move], list[Movable]] | None = None
    # Nothing is cheaper than moving one of the smallest workspaces without lost work.
    least = min((group.min_milli for group in nearest), default=0)
    cheapest = (1, 0, least)
    for movable in (group.movable for group in nearest):
        # Try a few large workspaces, and the smallest that suffice. The cheaper option wins.
        smallest = sorted(movable, key=lambda member: (member.lost_work(now_s), member.milli, member.id))
        sizes = {member.milli for member in movable}
        for order in (movable, smallest) if len(sizes) > 1 else (movable,):
            before = len(site.steps)
            chosen = _choose_movables(site, pool, order, request, rules)
            moves = _find_targets(site, pool, request, chosen, left) if chosen else []
            site.undo(before)
            lost = sum(member.lost_work(now_s) for member in chosen)
            if not moves or lost > blocked.expected_work:
                continue
            cost = (len(moves), lost, sum(member.milli for member in chosen))
            if best is None or cost < best[0]:
                best = cost, moves, chosen
        if best is not None and best[0] <= cheapest:
            break
    if best is None:
        return None
    _, moves, chosen = best
    for member in chosen:
        site.release(pool, member.placement, member.allocated)
    place = cluster.find(request)
    assert place is not None  # the placement was just found on the same clusters
    site.commit(pool, place, request)
    requests = {member.id: member.request for member in chosen}
    for move in moves:
        site.commit(pool, move.target, requests[move.workspace])
    reason = Reason(RebalanceCode.MAKES_ROOM, {"milli": blocked.milli, "moves": len(moves)})
    return Proposal(tuple(moves), reason, max(blocked.milli, 1), best[0][1], blocked.id)


def _closest_nodes(
    site: _TrialClusters, pool: str, request: ResourceRequest, movables_by_node: PreemptibleMovables
) -> list[NodeMovables]:
    """Return the movable workspaces of the nodes that lack the least for the request, least loss first.

    Reads only these nodes and a few more, so a few queries suffice for any site.
    """
    alike: dict[tuple[int, int], list[str]] = {}
    for name in movables_by_node.nodes(pool):
        alike.setdefault(site.shortfall_of(pool, request, name), []).append(name)
    groups = sorted(alike.items())
    cheapest: list[NodeMovables] = []
    ahead = NODES_READ_AHEAD
    for at, ((short, _cpu_short), names) in enumerate(groups):
        if not movables_by_node.has_read(pool, names):
            following = [name for _lacks, group in groups[at:] for name in group]
            movables_by_node.read(pool, following[: max(ahead, len(names))])
            ahead *= 4
        suitable = [group for group in movables_by_node.on_nodes(pool, names) if short <= group.devices]
        cheapest += sorted(
            suitable, key=lambda group: (group.min_lost_work, group.movable[0].started_s, group.movable[0].id)
        )
        if len(cheapest) >= MAX_NODES_TRIED:
            break
    return cheapest[:MAX_NODES_TRIED]


def _device_shortfall(node: NodeCapacity, request: ResourceRequest) -> int:
    """Return the minimum number of further devices with room that the request needs."""
    accelerators = request.accelerators
    if not accelerators.count or accelerators.mig_profile:
        return 0
    models = frozenset(accelerators.allowed_models)
    free = sum(
        1
        for device in node.devices
        if device.kind is not DeviceKind.MIG
        and not device.unusable
        and device.free_milli >= accelerators.share_milli
        and (not models or device.model in models)
    )
    return max(0, accelerators.count - free)


def _choose_movables(
    site: _TrialClusters, pool: str, movable: Sequence[Movable], request: ResourceRequest, rules: Rules
) -> list[Movable]:
    """Return the workspaces that must leave for the request to fit; empty if impossible.

    Releases the returned workspaces from the clusters.
    """
    cluster = site.clusters[pool]
    name = movable[0].node
    removed: list[Movable] = []
    for candidate in movable:
        if filters.reason(cluster.node(name), request) is None:
            break
        if len(removed) == 2 * rules.max_moves:
            return []
        site.release(pool, candidate.placement, candidate.allocated)
        removed.append(candidate)
    if filters.reason(cluster.node(name), request) is not None:
        return []
    # Some of the earlier workspaces may be unnecessary. Restore them, latest first.
    for candidate in reversed(list(removed)):
        site.commit(pool, candidate.placement, candidate.allocated)
        if filters.reason(cluster.node(name), request) is None:
            removed.remove(candidate)
        else:
            site.release(pool, candidate.placement, candidate.allocated)
    return removed if len(removed) <= rules.max_moves else []


def _find_targets(
    site: _TrialClusters,
    pool: str,
    request: ResourceRequest,
    chosen: Sequence[Movable],
    left: Mapping[str, Sequence[PastMove]],
) -> list[Move]:
    """Return the moves of the released workspaces once the request is placed; empty if one has no target."""
    cluster = site.clusters[pool]
    place = cluster.find(request)
    if place is None:
        return []
    site.commit(pool, place, request)
    moves: list[Move] = []
    for movable in sorted(
        chosen,
        key=lambda movable: (-movable.milli, -movable.allocated.cpu_milli, movable.started_s, movable.id),
    ):
        target = cluster.find(movable.request)
        if target is None or target == movable.placement or _is_return(target, left.get(movable.id, ())):
            return []
        site.commit(pool, target, movable.request)
        moves.append(Move(movable.id, pool, movable.placement, target))
    return moves
