"""A slow reference implementation of rebalancing proposals.

Every question is answered by a new cluster made from the site and the steps since; every way to make room is
tried and the cheapest is returned.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from portal.common.reasons.reason import Reason
from portal.reclaim.engine.codes import RebalanceCode
from portal.reclaim.engine.movables import Movable
from portal.reclaim.engine.rebalancing import BlockedRequest, Move, PastMove, Proposal, Rules
from portal.scheduling.engine.placement import filters
from portal.scheduling.engine.placement.cluster import Cluster
from provisioning.types import Placement, ResourceRequest

PLACES_TRIED = 4
Pools = Mapping[str, Callable[[], Cluster]]
MoveOption = tuple[list[Movable], list[Move]]


@dataclass(frozen=True)
class Site:
    """`steps` are the changes of the pools since: pool, place, amounts, and whether they were taken."""

    pools: Pools
    steps: tuple[tuple[str, Placement, ResourceRequest, bool], ...] = ()

    def cluster(self, pool: str) -> Cluster:
        cluster_ = self.pools[pool]()
        for name, place, request, taken in self.steps:
            if name == pool:
                (cluster_.commit if taken else cluster_.release)(place, request)
        return cluster_

    def with_(self, pool: str, place: Placement, request: ResourceRequest) -> Site:
        return replace(self, steps=(*self.steps, (pool, place, request, True)))

    def without(self, removed: Iterable[Movable]) -> Site:
        left = ((workspace.pool, workspace.placement, workspace.allocated, False) for workspace in removed)
        return replace(self, steps=(*self.steps, *left))

    def find(self, pool: str, request: ResourceRequest) -> Placement | None:
        return self.cluster(pool).find(request)

    def fits_on(self, pool: str, name: str, request: ResourceRequest) -> bool:
        return filters.reason(self.cluster(pool).node(name), request) is None


@dataclass(frozen=True)
class Case:
    """The other input of the search, which changes with each proposal."""

    past: Sequence[PastMove]
    now_s: int
    rules: Rules
    scores: Mapping[str | tuple[str, str], int]
    nodes_looked_at: int

    def lost(self, removed: Iterable[Movable]) -> int:
        return sum(workspace.lost_work(self.now_s) for workspace in removed)

    def goes_back(self, workspace: Movable, target: Placement) -> bool:
        recent = [
            move
            for move in self.past
            if move.workspace == workspace.id and self.now_s - move.at_s < self.rules.return_s
        ]
        return any(
            move.devices & devices_of(target) if move.devices else move.node == target.nodes[0].node
            for move in recent
        )


def propose(
    pools: Pools, running: Sequence[Movable], waiting: Sequence[BlockedRequest], case: Case
) -> list[Proposal]:
    site, proposals = Site(pools), list[Proposal]()
    resting = {
        earlier.workspace for earlier in case.past if case.now_s - earlier.at_s < case.rules.cool_down_s
    }
    movable = [workspace for workspace in running if workspace.can_move and workspace.id not in resting]
    for asks in waiting:
        if len(proposals) < case.rules.max_proposals and is_eligible(site, asks, case):
            moves_made = cheapest_moves(site, asks, movable, case)
            if moves_made is not None:
                proposal, site = moves_made
                proposals.append(proposal)
                moved = {move.workspace for move in proposal.moves}
                movable = [workspace for workspace in movable if workspace.id not in moved]
    low = [
        workspace for workspace in movable if workspace.reasons and workspace.score <= case.rules.low_score
    ]
    for workspace in sorted(
        low,
        key=lambda workspace: (workspace.score, case.lost([workspace]), workspace.started_s, workspace.id),
    ):
        target = find_better_place(site, workspace, case)
        if len(proposals) < case.rules.max_proposals and target is not None:
            gain = worth_of(workspace.pool, target, case) - workspace.score
            move = Move(workspace.id, workspace.pool, workspace.placement, target)
            proposals.append(Proposal((move,), workspace.reasons[0], gain, case.lost([workspace])))
            site = site.with_(workspace.pool, target, workspace.request)
    return proposals


def is_eligible(site: Site, asks: BlockedRequest, case: Case) -> bool:
    """Return whether the request has waited long enough, does not start soon, and lacks only a place."""
    soon = asks.eta_s is not None and asks.eta_s <= case.now_s + case.rules.patience_s
    return (
        not soon
        and case.now_s - asks.since_s >= case.rules.min_wait_s
        and all(site.find(pool, request) is None for pool, request in asks.requests)
    )


def cheapest_moves(
    site: Site, asks: BlockedRequest, movable: Sequence[Movable], case: Case
) -> tuple[Proposal, Site] | None:
    """Return the cheapest moves in the first pool where moves can make room.

    The fewest moves are the cheapest, then those losing least work, then the smallest; then the first.
    """
    for pool, request in asks.requests:
        may_go = [workspace for workspace in movable if workspace.pool == pool and workspace.preemptible]
        options = [
            (removed, moves)
            for name in nearest(site, pool, request, may_go, case)
            for removed, moves in move_alternatives(site, pool, name, request, may_go, case)
            if case.lost(removed) <= max(asks.milli, 1) * asks.duration_s
        ]
        if not options:
            continue
        removed, moves = min(
            options,
            key=lambda option: (
                len(option[0]),
                case.lost(option[0]),
                sum(workspace.milli for workspace in option[0]),
            ),
        )
        site = site.without(removed)
        place = site.find(pool, request)
        assert place is not None
        site = site.with_(pool, place, request)
        for move in moves:
            (workspace,) = (workspace for workspace in removed if workspace.id == move.workspace)
            site = site.with_(pool, move.target, workspace.request)
        reason = Reason(RebalanceCode.MAKES_ROOM, {"milli": asks.milli, "moves": len(moves)})
        return Proposal(tuple(moves), reason, max(asks.milli, 1), case.lost(removed), asks.id), site
    return None


def by_cost(candidates: Iterable[Movable], case: Case) -> list[Movable]:
    """Return candidates ordered by cost, the largest first among equals."""
    return sorted(
        candidates,
        key=lambda each: (
            case.lost([each]),
            -each.milli,
            -each.allocated.cpu_milli,
            -each.started_s,
            each.id,
        ),
    )


def nearest(
    site: Site, pool: str, request: ResourceRequest, may_go: Sequence[Movable], case: Case
) -> list[str]:
    """Return the nodes on which movable work holds the short resource, by the smallest shortfall."""
    accelerators, found = request.accelerators, []
    for name in {workspace.node for workspace in may_go}:
        node = site.cluster(pool).node(name)
        crew = by_cost((workspace for workspace in may_go if workspace.node == name), case)
        room = [
            device
            for device in node.devices
            if not device.unusable
            and device.free_milli >= accelerators.share_milli
            and device.model in (accelerators.allowed_models or (device.model,))
        ]
        short = max(0, accelerators.count - len(room))
        cpu_short = max(0, request.cpu_milli - node.free_cpu_milli)
        least_lost = min(case.lost([workspace]) for workspace in crew)
        if short <= len({uuid for workspace in crew for uuid in workspace.devices}):
            found.append((short, cpu_short, least_lost, crew[0].started_s, crew[0].id, name))
    return [name for *_, name in sorted(found)[: case.nodes_looked_at]]


def move_alternatives(
    site: Site, pool: str, name: str, request: ResourceRequest, may_go: Sequence[Movable], case: Case
) -> list[MoveOption]:
    """Return alternative moves off that node: a few large workspaces, or the smallest sufficient ones."""
    crew = by_cost((workspace for workspace in may_go if workspace.node == name), case)
    smallest = sorted(crew, key=lambda workspace: (case.lost([workspace]), workspace.milli, workspace.id))
    of_one_size = len({workspace.milli for workspace in crew}) == 1
    options = []
    for order in (crew,) if of_one_size else (crew, smallest):
        removed = sufficient_moves(site, pool, name, request, order, case)
        moves = targets_of(site, pool, request, removed, case)
        if moves:
            options.append((removed, moves))
    return options


def sufficient_moves(
    site: Site, pool: str, name: str, request: ResourceRequest, order: Sequence[Movable], case: Case
) -> list[Movable]:
    """Return the shortest sufficient prefix, without workspaces that do not help.

    None if there are too many.
    """
    count = 0
    while count < len(order) and not site.without(order[:count]).fits_on(pool, name, request):
        count += 1
    removed = list(order[:count])
    if count > 2 * case.rules.max_moves or not site.without(removed).fits_on(pool, name, request):
        return []
    for workspace in order[:count][::-1]:
        others = [other for other in removed if other is not workspace]
        if site.without(others).fits_on(pool, name, request):
            removed = others
    return removed if len(removed) <= case.rules.max_moves else []


def targets_of(
    site: Site, pool: str, request: ResourceRequest, removed: Sequence[Movable], case: Case
) -> list[Move]:
    """Return targets for all moves once the request is placed, the largest first.

    None if one has no target.
    """
    site = site.without(removed)
    place = site.find(pool, request)
    if place is None:
        return []
    site, moves = site.with_(pool, place, request), []
    for workspace in sorted(
        removed,
        key=lambda workspace: (
            -workspace.milli,
            -workspace.allocated.cpu_milli,
            workspace.started_s,
            workspace.id,
        ),
    ):
        target = site.find(pool, workspace.request)
        if target is None or target == workspace.placement or case.goes_back(workspace, target):
            return []
        site = site.with_(pool, target, workspace.request)
        moves.append(Move(workspace.id, pool, workspace.placement, target))
    return moves


def find_better_place(site: Site, workspace: Movable, case: Case) -> Placement | None:
    """Return the first of the best free places with sufficient gain.

    A sharing workspace gets a GPU of its own.
    """
    accelerators = workspace.request.accelerators
    shares = bool(accelerators.count) and accelerators.share_milli < 1000
    request = (
        replace(workspace.request, accelerators=replace(accelerators, share_milli=1000))
        if shares
        else workspace.request
    )
    for _ in range(PLACES_TRIED):
        place = site.find(workspace.pool, request)
        if place is None:
            return None
        target = with_share(place, workspace.request) if shares else place
        gain = worth_of(workspace.pool, target, case) - workspace.score
        if (
            gain >= case.rules.min_gain
            and improves_place(workspace, target)
            and not case.goes_back(workspace, target)
        ):
            return target
        site = site.with_(workspace.pool, place, request)
    return None


def with_share(place: Placement, request: ResourceRequest) -> Placement:
    milli, memory = request.accelerators.share_milli, request.accelerators.memory_mib
    (part,) = place.nodes
    grants = tuple(replace(grant, milli=milli, memory_mib=memory) for grant in part.devices)
    return Placement((replace(part, devices=grants),))


def improves_place(workspace: Movable, target: Placement) -> bool:
    """Return whether the move leaves the node, or changes devices if only devices are the problem."""
    if target.nodes[0].node != workspace.node:
        return True
    node_is_wrong = any(blames_node(reason) for reason in workspace.reasons)
    return bool(workspace.devices) and not node_is_wrong and not workspace.devices & devices_of(target)


def blames_node(reason: Reason) -> bool:
    if reason.code is RebalanceCode.WORK_SLOWER:
        return reason.params["sign"] in ("overcommitted", "node_short")
    return reason.code in (
        RebalanceCode.OVERCOMMITTED, RebalanceCode.SHORT_OF_CPU, RebalanceCode.SHORT_OF_MEMORY
    )  # fmt: skip


def worth_of(pool: str, place: Placement, case: Case) -> int:
    keys: list[str | tuple[str, str]] = [*devices_of(place), (pool, place.nodes[0].node)]
    return min(case.scores.get(key, 100) for key in keys)


def devices_of(place: Placement) -> frozenset[str]:
    return frozenset(grant.uuid for part in place.nodes for grant in part.devices)
