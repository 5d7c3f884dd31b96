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
Way = tuple[list[Movable], list[Move]]


@dataclass(frozen=True)
class Site:
    """`steps` are the changes of the pools since: pool, place, amounts, and whether they were taken."""

    pools: Pools
    steps: tuple[tuple[str, Placement, ResourceRequest, bool], ...] = ()

    def cluster(self, pool: str) -> Cluster:
        made = self.pools[pool]()
        for name, place, request, taken in self.steps:
            if name == pool:
                (made.commit if taken else made.release)(place, request)
        return made

    def with_(self, pool: str, place: Placement, request: ResourceRequest) -> Site:
        return replace(self, steps=(*self.steps, (pool, place, request, True)))

    def without(self, removed: Iterable[Movable]) -> Site:
        left = ((each.pool, each.placement, each.allocated, False) for each in removed)
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
        return sum(each.lost_work(self.now_s) for each in removed)

    def goes_back(self, each: Movable, target: Placement) -> bool:
        recent = [
            move
            for move in self.past
            if move.workspace == each.id and self.now_s - move.at_s < self.rules.return_s
        ]
        return any(
            move.devices & devices_of(target) if move.devices else move.node == target.nodes[0].node
            for move in recent
        )


def propose(
    pools: Pools, running: Sequence[Movable], waiting: Sequence[BlockedRequest], case: Case
) -> list[Proposal]:
    site, found = Site(pools), list[Proposal]()
    resting = {
        earlier.workspace for earlier in case.past if case.now_s - earlier.at_s < case.rules.cool_down_s
    }
    there = [each for each in running if each.can_move and each.id not in resting]
    for asks in waiting:
        if len(found) < case.rules.max_proposals and is_eligible(site, asks, case):
            made = cheapest_moves(site, asks, there, case)
            if made is not None:
                proposal, site = made
                found.append(proposal)
                moved = {move.workspace for move in proposal.moves}
                there = [each for each in there if each.id not in moved]
    low = [each for each in there if each.reasons and each.score <= case.rules.low_score]
    for each in sorted(low, key=lambda each: (each.score, case.lost([each]), each.started_s, each.id)):
        target = find_better_place(site, each, case)
        if len(found) < case.rules.max_proposals and target is not None:
            gain = worth_of(each.pool, target, case) - each.score
            move = Move(each.id, each.pool, each.placement, target)
            found.append(Proposal((move,), each.reasons[0], gain, case.lost([each])))
            site = site.with_(each.pool, target, each.request)
    return found


def is_eligible(site: Site, asks: BlockedRequest, case: Case) -> bool:
    """Return whether the request has waited long enough, does not start soon, and lacks only a place."""
    soon = asks.eta_s is not None and asks.eta_s <= case.now_s + case.rules.patience_s
    return (
        not soon
        and case.now_s - asks.since_s >= case.rules.min_wait_s
        and all(site.find(pool, request) is None for pool, request in asks.requests)
    )


def cheapest_moves(
    site: Site, asks: BlockedRequest, there: Sequence[Movable], case: Case
) -> tuple[Proposal, Site] | None:
    """Return the cheapest moves in the first pool where moves can make room.

    The fewest moves are the cheapest, then those losing least work, then the smallest; then the first.
    """
    for pool, request in asks.requests:
        may_go = [each for each in there if each.pool == pool and each.preemptible]
        ways = [
            (removed, moves)
            for name in nearest(site, pool, request, may_go, case)
            for removed, moves in move_alternatives(site, pool, name, request, may_go, case)
            if case.lost(removed) <= max(asks.milli, 1) * asks.duration_s
        ]
        if not ways:
            continue
        removed, moves = min(
            ways, key=lambda way: (len(way[0]), case.lost(way[0]), sum(each.milli for each in way[0]))
        )
        site = site.without(removed)
        place = site.find(pool, request)
        assert place is not None
        site = site.with_(pool, place, request)
        for move in moves:
            (each,) = (each for each in removed if each.id == move.workspace)
            site = site.with_(pool, move.target, each.request)
        reason = Reason(RebalanceCode.MAKES_ROOM, {"milli": asks.milli, "moves": len(moves)})
        return Proposal(tuple(moves), reason, max(asks.milli, 1), case.lost(removed), asks.id), site
    return None


def by_cost(there: Iterable[Movable], case: Case) -> list[Movable]:
    """Return candidates ordered by cost, the largest first among equals."""
    return sorted(
        there,
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
    for name in {each.node for each in may_go}:
        node = site.cluster(pool).node(name)
        crew = by_cost((each for each in may_go if each.node == name), case)
        room = [
            device
            for device in node.devices
            if not device.unusable
            and device.free_milli >= accelerators.share_milli
            and device.model in (accelerators.allowed_models or (device.model,))
        ]
        short = max(0, accelerators.count - len(room))
        cpu_short = max(0, request.cpu_milli - node.free_cpu_milli)
        least_lost = min(case.lost([each]) for each in crew)
        if short <= len({uuid for each in crew for uuid in each.devices}):
            found.append((short, cpu_short, least_lost, crew[0].started_s, crew[0].id, name))
    return [name for *_, name in sorted(found)[: case.nodes_looked_at]]


def move_alternatives(
    site: Site, pool: str, name: str, request: ResourceRequest, may_go: Sequence[Movable], case: Case
) -> list[Way]:
    """Return alternative moves off that node: a few large workspaces, or the smallest sufficient ones."""
    crew = by_cost((each for each in may_go if each.node == name), case)
    smallest = sorted(crew, key=lambda each: (case.lost([each]), each.milli, each.id))
    of_one_size = len({each.milli for each in crew}) == 1
    ways = []
    for order in (crew,) if of_one_size else (crew, smallest):
        removed = sufficient_moves(site, pool, name, request, order, case)
        moves = targets_of(site, pool, request, removed, case)
        if moves:
            ways.append((removed, moves))
    return ways


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
    for each in order[:count][::-1]:
        others = [other for other in removed if other is not each]
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
    for each in sorted(
        removed, key=lambda each: (-each.milli, -each.allocated.cpu_milli, each.started_s, each.id)
    ):
        target = site.find(pool, each.request)
        if target is None or target == each.placement or case.goes_back(each, target):
            return []
        site = site.with_(pool, target, each.request)
        moves.append(Move(each.id, pool, each.placement, target))
    return moves


def find_better_place(site: Site, each: Movable, case: Case) -> Placement | None:
    """Return the first of the best free places with sufficient gain.

    A sharing workspace gets a GPU of its own.
    """
    accelerators = each.request.accelerators
    shares = bool(accelerators.count) and accelerators.share_milli < 1000
    asked = (
        replace(each.request, accelerators=replace(accelerators, share_milli=1000))
        if shares
        else each.request
    )
    for _ in range(PLACES_TRIED):
        place = site.find(each.pool, asked)
        if place is None:
            return None
        target = with_share(place, each.request) if shares else place
        gain = worth_of(each.pool, target, case) - each.score
        if gain >= case.rules.min_gain and improves_place(each, target) and not case.goes_back(each, target):
            return target
        site = site.with_(each.pool, place, asked)
    return None


def with_share(place: Placement, request: ResourceRequest) -> Placement:
    milli, memory = request.accelerators.share_milli, request.accelerators.memory_mib
    (part,) = place.nodes
    grants = tuple(replace(grant, milli=milli, memory_mib=memory) for grant in part.devices)
    return Placement((replace(part, devices=grants),))


def improves_place(each: Movable, target: Placement) -> bool:
    """Return whether the move leaves the node, or changes devices if only devices are the problem."""
    if target.nodes[0].node != each.node:
        return True
    node_is_wrong = any(blames_node(reason) for reason in each.reasons)
    return bool(each.devices) and not node_is_wrong and not each.devices & devices_of(target)


def blames_node(reason: Reason) -> bool:
    if reason.code is RebalanceCode.WORK_SLOWER:
        return reason.params["sign"] in ("overcommitted", "node_short")
    return reason.code in (
        RebalanceCode.OVERCOMMITTED, RebalanceCode.SHORT_OF_CPU, RebalanceCode.SHORT_OF_MEMORY
    )  # fmt: skip


def worth_of(pool: str, place: Placement, case: Case) -> int:
    ways: list[str | tuple[str, str]] = [*devices_of(place), (pool, place.nodes[0].node)]
    return min(case.scores.get(way, 100) for way in ways)


def devices_of(place: Placement) -> frozenset[str]:
    return frozenset(grant.uuid for part in place.nodes for grant in part.devices)
