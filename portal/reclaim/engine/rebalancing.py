"""Which running workspaces should go elsewhere, and where: pure, over clusters that answer for placement.

Two things are worth a move. A workspace that is not content goes where it is better off. And where a request
waits although enough is free, but not in one place, those go to other places that stand in its way at the
least cost. Each move has a place, found by the placement engine with all moves before it carried out, so all
that is proposed at once can be done at once.

Nothing goes back and forth: who was moved stays for `cool_down_s`, and does not come back to where it was for
`return_s`; a move has to gain `min_gain`; a request is made room for only by what costs less than it brings.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from portal.common.reasons.reason import Reason
from portal.reclaim.engine.codes import RebalanceCode
from portal.reclaim.engine.contentment import FULLY, is_of_node
from portal.reclaim.engine.crowd import Crew, Crews, Crowd, Everybody, Movable, may_go
from portal.scheduling.engine.placement import filters
from portal.scheduling.engine.placement.cluster import Cluster
from portal.scheduling.engine.placement.types import NodeCapacity
from provisioning.types import DeviceKind, Placement, ResourceRequest

TRIES = 4
"""Places that are looked at for one workspace: the best for placement may be no better for it."""
NODES_LOOKED_AT = 8
"""Of the nodes on which room could be made the nearest to it are looked at."""
ASKED_AHEAD = 32
"""Of so many nodes who runs there is asked for at once, at first."""


@dataclass(frozen=True, slots=True)
class Waiting:
    """A request for one node that only its place keeps waiting, in the order of the queue.

    `requests` are what its pools would be asked for, by pool, the first to be tried first. `eta_s` is when it
    is expected to start without anybody's moving, None where that is not known.
    """

    id: str
    requests: tuple[tuple[str, ResourceRequest], ...]
    milli: int
    duration_s: int
    since_s: int
    eta_s: int | None = None

    @property
    def worth(self) -> int:
        """What it is expected to do, as `Movable.lost` counts."""
        return max(self.milli, 1) * self.duration_s


@dataclass(frozen=True, slots=True)
class Past:
    """A workspace was asked to move at `at_s`, away from these devices of a node."""

    workspace: str
    at_s: int
    node: str
    devices: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Rules:
    """`low` is the contentment up to which somebody is moved, `min_gain` what that has to gain, in percent.

    Nobody moves for a request that starts within `patience_s` anyhow, or has waited for less than
    `least_wait_s`, nor more than `max_moves` for one.
    """

    low: int = 70
    min_gain: int = 20
    cool_down_s: int = 86_400
    return_s: int = 7 * 86_400
    patience_s: int = 1_800
    least_wait_s: int = 60
    max_moves: int = 8
    max_proposals: int = 8


RULES = Rules()


@dataclass(frozen=True, slots=True)
class Move:
    """A workspace goes from one place of its pool to another."""

    workspace: str
    pool: str
    source: Placement
    target: Placement


@dataclass(frozen=True, slots=True)
class Proposal:
    """Moves that belong together. `gain` is in percent of what the workspace could get, or with `waiting`
    the milli-GPU of the request that starts; `lost` is what is done again for it (`Movable.lost`)."""

    moves: tuple[Move, ...]
    reason: Reason
    gain: int
    lost: int = 0
    waiting: str = ""

    @property
    def key(self) -> tuple[str, ...]:
        """Equal for proposals that mean the same: the same workspaces for the same sake."""
        return (self.waiting, *sorted(each.workspace for each in self.moves))


@dataclass(slots=True)
class _Site:
    """The clusters with what is proposed carried out, and how to take it back.

    `known` is what nodes lack for a request, each with the version of the node for which that holds.
    """

    clusters: Mapping[str, Cluster]
    steps: list[tuple[str, Placement, ResourceRequest, bool]] = field(default_factory=list)
    known: dict[tuple[str, ResourceRequest], dict[str, tuple[int, int, int]]] = field(default_factory=dict)

    def commit(self, pool: str, placement: Placement, request: ResourceRequest) -> None:
        self.clusters[pool].commit(placement, request)
        self.steps.append((pool, placement, request, True))

    def release(self, pool: str, placement: Placement, request: ResourceRequest) -> None:
        self.clusters[pool].release(placement, request)
        self.steps.append((pool, placement, request, False))

    def lacks(self, pool: str, request: ResourceRequest, name: str) -> tuple[int, int]:
        """How many devices with room a node has too few for the request, at least, and how much CPU."""
        cluster = self.clusters[pool]
        version, known = cluster.version(name), self.known.setdefault((pool, request), {})
        found = known.get(name)
        if found is None or found[0] != version:
            node = cluster.node(name)
            found = (version, _short(node, request), max(0, request.cpu_milli - node.free_cpu_milli))
            known[name] = found
        return found[1:]

    def undo(self, but: int = 0) -> None:
        while len(self.steps) > but:
            pool, placement, request, taken = self.steps.pop()
            cluster = self.clusters[pool]
            (cluster.release if taken else cluster.restore)(placement, request)


def propose(
    clusters: Mapping[str, Cluster],
    running: Sequence[Movable] | Crowd,
    waiting: Sequence[Waiting],
    past: Iterable[Past],
    now_s: int,
    rules: Rules = RULES,
    scores: Mapping[str | tuple[str, str], int] | None = None,
) -> list[Proposal]:
    """What is worth doing now. The clusters are left as they were.

    `scores` has what devices are worth to who gets them, in percent, by UUID, and nodes, by pool and name;
    what is not in it is not known, and as good as any. Requests that wait come first: they have nothing, and
    the others have something.
    """
    history = list(past)
    resting = {gone.workspace for gone in history if now_s - gone.at_s < rules.cool_down_s}
    left: dict[str, list[Past]] = {}
    for gone in history:
        if now_s - gone.at_s < rules.return_s:
            left.setdefault(gone.workspace, []).append(gone)
    people = Everybody(running) if isinstance(running, Sequence) else running
    site = _Site(clusters)
    try:
        found = _make_room(site, Crews(people, resting, now_s), waiting, left, now_s, rules)
        stay = resting | {move.workspace for proposal in found for move in proposal.moves}
        # What there is no reason for is not measured, and nothing to move for.
        low = [
            each
            for each in people.discontent()
            if each.reasons and each.score <= rules.low and each.pool in clusters and may_go(each, stay)
        ]
        low.sort(key=lambda each: (each.score, each.lost(now_s), each.started_s, each.id))
        for each in low:
            if len(found) >= rules.max_proposals:
                break
            better = _better_off(site, each, left.get(each.id, ()), now_s, rules, scores or {})
            if better is not None:
                found.append(better)
        return found
    finally:
        site.undo()


# --- who is not content ------------------------------------------------------------------------------


def _better_off(
    site: _Site,
    each: Movable,
    left: Sequence[Past],
    now_s: int,
    rules: Rules,
    scores: Mapping[str | tuple[str, str], int],
) -> Proposal | None:
    """A place that gains it enough, while it still has its own: so its new one is free already."""
    before = len(site.steps)
    wanted = each.request.accelerators
    # One that shares a GPU is better off only on one that it has for itself; it still gets its share alone.
    alone = replace(
        each.request, accelerators=replace(wanted, share_milli=1000, memory_mib=wanted.memory_mib)
    )
    shares = wanted.count > 0 and wanted.share_milli < 1000
    asked = alone if shares else each.request
    for _ in range(TRIES):
        place = site.clusters[each.pool].find(asked)
        if place is None:
            break
        target = site.clusters[each.pool].sharing(place, each.request) if shares else place
        gain = _worth(each.pool, target, scores) - each.score
        if gain >= rules.min_gain and _elsewhere(each, target) and not _back(target, left):
            site.undo(before)
            site.commit(each.pool, target, each.request)
            move = Move(each.id, each.pool, each.placement, target)
            return Proposal((move,), each.reasons[0], gain, each.lost(now_s))
        # Not that one: it is taken for the moment, and the next best is asked for.
        site.commit(each.pool, place, asked)
    site.undo(before)
    return None


def _worth(pool: str, target: Placement, scores: Mapping[str | tuple[str, str], int]) -> int:
    """What a place is worth: as much as the least of its devices and its node."""
    of_node = (scores.get((pool, part.node), FULLY) for part in target.nodes)
    return min((*of_node, *(scores.get(uuid, FULLY) for uuid in _devices(target))))


def _devices(place: Placement) -> frozenset[str]:
    return frozenset(grant.uuid for part in place.nodes for grant in part.devices)


def _elsewhere(each: Movable, target: Placement) -> bool:
    """Whether nothing of the new place is the old one: another node, where its node is what is wrong."""
    if target.nodes[0].node != each.node:
        return True
    suffers = any(is_of_node(reason) for reason in each.reasons)
    return bool(each.devices) and not suffers and not _devices(target) & each.devices


def _back(target: Placement, left: Iterable[Past]) -> bool:
    """Whether that leads back to where it has come from."""
    devices = _devices(target)
    return any(
        bool(devices & past.devices) if past.devices else past.node == target.nodes[0].node for past in left
    )


# --- room for who waits ------------------------------------------------------------------------------


def _make_room(
    site: _Site,
    crews: Crews,
    waiting: Sequence[Waiting],
    left: Mapping[str, Sequence[Past]],
    now_s: int,
    rules: Rules,
) -> list[Proposal]:
    found: list[Proposal] = []
    # By what who waits would do with it: for more of that more may be lost.
    in_vain: dict[tuple[str, ResourceRequest], int] = {}
    for asks in waiting:
        if len(found) >= rules.max_proposals:
            break
        soon = asks.eta_s is not None and asks.eta_s - now_s <= rules.patience_s
        if soon or now_s - asks.since_s < rules.least_wait_s:
            continue
        if any(
            pool in site.clusters and site.clusters[pool].find(request) for pool, request in asks.requests
        ):
            # Something else keeps it.
            continue
        for pool, request in asks.requests:
            if pool not in site.clusters or request.nodes != 1:
                continue
            if in_vain.get((pool, request), -1) >= asks.worth:
                continue
            proposal = _room_in(site, pool, request, asks, crews, left, now_s, rules)
            if proposal is None:
                in_vain[pool, request] = asks.worth
                continue
            found.append(proposal)
            # They move for nobody else.
            moved = {move.workspace for move in proposal.moves}
            crews.leave(pool, moved, {move.source.nodes[0].node for move in proposal.moves})
            # The site is another now: what was looked for in vain may be possible.
            in_vain.clear()
            break
    return found


def _room_in(
    site: _Site,
    pool: str,
    request: ResourceRequest,
    asks: Waiting,
    crews: Crews,
    left: Mapping[str, Sequence[Past]],
    now_s: int,
    rules: Rules,
) -> Proposal | None:
    """The cheapest way to make room for it on one node of the pool; what comes of it stays carried out."""
    cluster = site.clusters[pool]
    nearest = _nearest(site, pool, request, crews)
    best: tuple[tuple[int, ...], list[Move], list[Movable]] | None = None
    # No other way is cheaper than one that loses nothing and moves one of the smallest.
    least = min((crew.milli for crew in nearest), default=0)
    cheapest = (1, 0, least)
    for movable in (crew.movable for crew in nearest):
        # A few large ones, or the smallest that do: the cheaper of both.
        smallest = sorted(movable, key=lambda each: (each.lost(now_s), each.milli, each.id))
        sizes = {each.milli for each in movable}
        for order in (movable, smallest) if len(sizes) > 1 else (movable,):
            before = len(site.steps)
            chosen = _who_goes(site, pool, order, request, rules)
            moves = _places(site, pool, request, chosen, left) if chosen else []
            site.undo(before)
            lost = sum(each.lost(now_s) for each in chosen)
            if not moves or lost > asks.worth:
                continue
            cost = (len(moves), lost, sum(each.milli for each in chosen))
            if best is None or cost < best[0]:
                best = cost, moves, chosen
        if best is not None and best[0] <= cheapest:
            break
    if best is None:
        return None
    _, moves, chosen = best
    for each in chosen:
        site.release(pool, each.placement, each.held)
    place = cluster.find(request)
    assert place is not None  # found a moment ago, on the same site
    site.commit(pool, place, request)
    requests = {each.id: each.request for each in chosen}
    for move in moves:
        site.commit(pool, move.target, requests[move.workspace])
    reason = Reason(RebalanceCode.MAKES_ROOM, {"milli": asks.milli, "moves": len(moves)})
    return Proposal(tuple(moves), reason, max(asks.milli, 1), best[0][1], asks.id)


def _nearest(site: _Site, pool: str, request: ResourceRequest, crews: Crews) -> list[Crew]:
    """Those on the nodes that lack the least for the request, of whom those are first who lose the least.

    Who runs on other nodes is not asked for, but for those next to them: a few questions do for any site.
    """
    alike: dict[tuple[int, int], list[str]] = {}
    for name in crews.nodes(pool):
        alike.setdefault(site.lacks(pool, request, name), []).append(name)
    groups = sorted(alike.items())
    found: list[Crew] = []
    ahead = ASKED_AHEAD
    for at, ((short, _cpu_short), names) in enumerate(groups):
        if not crews.know(pool, names):
            following = [name for _lacks, group in groups[at:] for name in group]
            crews.ask(pool, following[: max(ahead, len(names))])
            ahead *= 4
        there = [crew for crew in crews.on(pool, names) if short <= crew.devices]
        found += sorted(there, key=lambda crew: (crew.lost, crew.movable[0].started_s, crew.movable[0].id))
        if len(found) >= NODES_LOOKED_AT:
            break
    return found[:NODES_LOOKED_AT]


def _short(node: NodeCapacity, request: ResourceRequest) -> int:
    """How many more of its devices would have to have room for the request, at least."""
    wanted = request.accelerators
    if not wanted.count or wanted.mig_profile:
        return 0
    models = frozenset(wanted.allowed_models)
    free = sum(
        1
        for device in node.devices
        if device.kind is not DeviceKind.MIG
        and not device.unusable
        and device.free_milli >= wanted.share_milli
        and (not models or device.model in models)
    )
    return max(0, wanted.count - free)


def _who_goes(
    site: _Site, pool: str, movable: Sequence[Movable], request: ResourceRequest, rules: Rules
) -> list[Movable]:
    """The first of these that have to leave for the request to fit there, and none that need not; else none.

    Those that are returned have left the site.
    """
    cluster = site.clusters[pool]
    name = movable[0].node
    gone: list[Movable] = []
    for each in movable:
        if filters.reason(cluster.node(name), request) is None:
            break
        if len(gone) == 2 * rules.max_moves:
            return []
        site.release(pool, each.placement, each.held)
        gone.append(each)
    if filters.reason(cluster.node(name), request) is not None:
        return []
    # Who was sent away first may not have been in the way: the dearest come back first.
    for each in reversed(list(gone)):
        site.commit(pool, each.placement, each.held)
        if filters.reason(cluster.node(name), request) is None:
            gone.remove(each)
        else:
            site.release(pool, each.placement, each.held)
    return gone if len(gone) <= rules.max_moves else []


def _places(
    site: _Site,
    pool: str,
    request: ResourceRequest,
    chosen: Sequence[Movable],
    left: Mapping[str, Sequence[Past]],
) -> list[Move]:
    """Where those go that have left, once the request has its place; none where one finds none."""
    cluster = site.clusters[pool]
    place = cluster.find(request)
    if place is None:
        return []
    site.commit(pool, place, request)
    moves: list[Move] = []
    for each in sorted(chosen, key=lambda each: (-each.milli, -each.held.cpu_milli, each.started_s, each.id)):
        target = cluster.find(each.request)
        if target is None or target == each.placement or _back(target, left.get(each.id, ())):
            return []
        site.commit(pool, target, each.request)
        moves.append(Move(each.id, pool, each.placement, target))
    return moves
