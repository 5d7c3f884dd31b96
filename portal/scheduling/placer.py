"""Connects the queue to the placement engine: quota may be free where no single node is."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from uuid import UUID

from portal.quota.limits.types import Amounts
from portal.scheduling import capacity, choice
from portal.scheduling.capacity import PoolNodes
from portal.scheduling.choice import Explanation, Prices
from portal.scheduling.engine.codes import PlacementCode
from portal.scheduling.engine.model import Workload
from portal.scheduling.engine.placement.types import Worth
from portal.scheduling.placement_request import HomeAlong, PlacementRequest, Variant
from provisioning.types import (
    WHOLE_DEVICE_MILLI,
    DeviceGrant,
    NodePlacement,
    Placement,
    ResourceRequest,
)

PoolAllocation = tuple[PoolNodes, Placement, ResourceRequest]
HeldBy = Callable[[Collection[UUID]], Mapping[str, list[tuple[UUID, Placement, ResourceRequest]]]]
Undo = Callable[[], None]
Owner = tuple[str, str]
"""The user and the team of a home."""
NOTHING = ResourceRequest(cpu_milli=0, memory_mib=0, disk_mib=0)


@dataclass(frozen=True, slots=True)
class HomeMoveAhead:
    """A move of the user's home with a start: its size, and the expected seconds."""

    source: str
    target: str
    size_mib: int
    seconds: int


@dataclass(frozen=True, slots=True)
class _Taken:
    """A placement that was taken. `brings` and `uses` name the owner of a home that it brings or uses."""

    allocation: PoolAllocation
    brings: Owner | None
    uses: Owner | None
    moved: HomeAlong | None


class PoolPlacer:
    """Implements `portal.scheduling.engine.scheduler.Placer` over the clusters of several pools.

    `expect` registers the request of a workload id. `undo` gives back what was taken, so that a preview
    leaves no trace.
    """

    def __init__(
        self,
        pools: Mapping[UUID, PoolNodes],
        prices: Prices | None = None,
        held_by: HeldBy | None = None,
    ) -> None:
        """`held_by` returns what workspaces use by id, by default as the database has it."""
        self._pools = pools
        self._held_by = held_by
        self._prices: Prices = prices or {}
        self._requests: dict[str, tuple[PlacementRequest, ...]] = {}
        self._explained: dict[str, Explanation | None] = {}
        self._running: set[str] = set()
        self._unread: set[str] = set()
        self._held: dict[str, list[tuple[UUID, Placement, ResourceRequest]]] = {}
        self._found: dict[str, PoolAllocation] = {}
        self._taken: list[_Taken] = []
        # Nodes of the homes that were taken here and are not stored yet.
        self._new_homes: dict[Owner, str] = {}
        # Requests that are placed away from their home, which moves along, with the seconds of the move.
        self._along: dict[str, int] = {}
        # Free parts withheld on shared devices, while some of their workloads are simulated as gone.
        self._kept_back: dict[tuple[UUID, str], Placement] = {}

    def expect(self, workload_id: str, *placement_requests: PlacementRequest) -> None:
        """Register the request of a workload, before any call of `fits` or `choose`.

        One that lists several flavors has a request for each, in order of `Workload.choice`.
        """
        self._requests[workload_id] = placement_requests

    def _registered(self, workload: Workload) -> PlacementRequest:
        return self._requests[workload.id][workload.choice]

    def explain(self, workload_id: str) -> None:
        """Record why the workload gets its model, if it has a choice, for `explanation_of`."""
        self._explained[workload_id] = None

    def explanation_of(self, workload_id: str) -> Explanation | None:
        """Return why the workload got its model, or None if it had no choice."""
        return self._explained.get(workload_id)

    def runs(self, workload_id: str) -> None:
        """Register a running workload, which can be simulated as gone."""
        self._running.add(workload_id)
        self._unread.add(workload_id)

    def gone(self, workload_id: str) -> None:
        """Forget a running workload that has ended or changed."""
        self._running.discard(workload_id)
        self._unread.discard(workload_id)
        self._held.pop(workload_id, None)
        self._requests.pop(workload_id, None)
        self._found.pop(workload_id, None)

    def held(self) -> Mapping[str, Sequence[tuple[UUID, Placement, ResourceRequest]]]:
        """Return what running workloads use, by id: pool, placement and amounts."""
        self._read_held()
        return self._held

    def fits(self, workload: Workload, gone: Sequence[str]) -> bool:
        with self._without_workloads(gone):
            allocation = self._place_for(workload)
        if allocation is not None and not gone:
            self._found[workload.id] = allocation
        return allocation is not None

    def choose(
        self, workload: Workload, ways: Sequence[Amounts], waiting: Mapping[str, int]
    ) -> Amounts | None:
        """Return the amounts of the best way over all pools, as `choice` compares them."""
        placement_request = self._request_of(workload)
        variants = [variant for variant in placement_request.variants if variant.amounts in ways]
        worth = choice.worth_of(variants, self._prices, waiting)
        place = self._best_place(workload, placement_request, variants, worth)
        if place is None:
            return None
        if workload.id in self._explained:
            self._explained[workload.id] = choice.explain(
                placement_request, variants, place.variant, self._prices, waiting
            )
        self._found[workload.id] = (place.pool, place.placement, place.request)
        return place.variant.amounts

    def best_place(self, placement_request: PlacementRequest) -> choice.Place | None:
        """Return the best place now of a request that is not in the queue, or None."""
        worth = choice.worth_of(placement_request.variants, self._prices, {})
        return choice.best_place(placement_request, placement_request.variants, worth)

    def _place_for(self, workload: Workload) -> PoolAllocation | None:
        """Return where it would go now: its move target if free, else the best place of all pools."""
        placement_request = self._request_of(workload)
        variant = placement_request.variant_of(workload.amounts)
        if (target := placement_request.target) is not None:
            for pool in placement_request.pools:
                request = pool.adapted(variant.request, placement_request.software)
                if pool.pool.pk == target.pool and pool.takes(target.placement, request):
                    return pool, target.placement, request
        place = self._best_place(workload, placement_request, (variant,), None)
        return None if place is None else (place.pool, place.placement, place.request)

    def _best_place(
        self,
        workload: Workload,
        placement_request: PlacementRequest,
        variants: Sequence[Variant],
        worth: Worth | None,
    ) -> choice.Place | None:
        """Return the best place; for a home that another workload here brings, preferably beside it.

        If there is no room beside it, the start is found to be elsewhere when it is written, and waits. A
        request whose home leaves its node waits, too.
        """
        if placement_request.home and _owner_of(workload) in self._new_homes:
            return None
        node = self._new_homes.get(_owner_of(workload)) if placement_request.new_home else None
        if node is not None:
            at_home = placement_request.at_home(node)
            amounts = [variant.amounts for variant in variants]
            there = [variant for variant in at_home.variants if variant.amounts in amounts]
            if (place := choice.best_place(at_home, there, worth)) is not None:
                return place
        return choice.best_place(placement_request, variants, worth)

    def take(self, workload: Workload) -> None:
        """Take the placement that `fits` or `choose` has just found."""
        allocation = self._found[workload.id]
        pool, placement, request = allocation
        pool.cluster.commit(placement, request)
        brings = self._brings_home(workload, pool, placement)
        if brings is not None:
            pool.expect_home(placement)
            self._new_homes[brings] = placement.nodes[0].node
        pool.changed()
        placement_request = self._request_of(workload)
        uses = _owner_of(workload) if placement_request.home else None
        moved = self._registered(workload).home_along if workload.id in self._along else None
        self._taken.append(_Taken(allocation, brings, uses, moved))

    def _brings_home(self, workload: Workload, pool: PoolNodes, placement: Placement) -> Owner | None:
        """Return the owner of the home that the workload brings to its node, or None if it brings none."""
        if not (self._request_of(workload).new_home and pool.homes_apart) or len(placement.nodes) != 1:
            return None
        owner = _owner_of(workload)
        return None if owner in self._new_homes else owner

    def _request_of(self, workload: Workload) -> PlacementRequest:
        """Return the registered request, or the one away from its home if the home moves along."""
        placement_request = self._registered(workload)
        along = placement_request.home_along
        return along.request if along is not None and workload.id in self._along else placement_request

    def has_home(self, workload: Workload) -> bool:
        """Return whether the request starts on the node of its user's home only, unless the home moves."""
        return bool(self._registered(workload).home)

    def home_move_s(self, workload: Workload) -> int | None:
        """Return the expected seconds of a move of the home, or None if the home cannot move now.

        It cannot if another start uses or moves it, or if its node is out of service.
        """
        along = self._registered(workload).home_along
        owner = _owner_of(workload)
        if along is None or owner in self._new_homes or not _serves_homes(along.pool, along.source):
            return None
        if any(taken.uses == owner for taken in self._taken):
            return None
        return along.decisive_s(self._leaving_mib(along))

    def _leaving_mib(self, along: HomeAlong) -> int:
        """Return the size of the homes that other starts take along from the same node."""
        others = (taken.moved for taken in self._taken if taken.moved is not None)
        return sum(
            other.size_mib for other in others if other.pool is along.pool and other.source == along.source
        )

    def take_home_along(self, workload: Workload, along: bool) -> None:
        """Place the request away from its home from now on, or at its home again."""
        home_along = self._registered(workload).home_along
        if along and home_along is not None:
            self._along[workload.id] = home_along.seconds(self._leaving_mib(home_along))
        else:
            self._along.pop(workload.id, None)

    def home_move_of(self, workload: Workload) -> HomeMoveAhead | None:
        """Return the move of the home with a start that was taken, or None if its home stays."""
        along = self._registered(workload).home_along
        if along is None or workload.id not in self._along:
            return None
        placement = self._found[workload.id][1]
        return HomeMoveAhead(along.source, placement.nodes[0].node, along.size_mib, self._along[workload.id])

    def keeps(self, reserved: Workload, gone: Sequence[str], other: Workload, left: Sequence[str]) -> bool:
        """Return whether `reserved` fits once `gone` have left and `other` is placed with `left` gone."""
        with self._without_workloads(left):
            placed = self._place_for(other)
            if placed is None:
                return False
            pool, placement, request = placed
            pool.cluster.commit(placement, request)
            try:
                with self._without_workloads([name for name in gone if name not in left]):
                    return self._place_for(reserved) is not None
            finally:
                pool.cluster.release(placement, request)

    def place_of(self, workload_id: str) -> tuple[PoolNodes, Placement]:
        """Return the placement of a workload that was taken."""
        pool, placement, _ = self._found[workload_id]
        return pool, placement

    @contextmanager
    def trial(self) -> Iterator[None]:
        """Undo all registrations and placements at the end of the context."""
        requests, allocations, taken = dict(self._requests), dict(self._found), len(self._taken)
        explained, along = dict(self._explained), dict(self._along)
        try:
            yield
        finally:
            self.undo(taken)
            self._requests, self._found, self._explained = requests, allocations, explained
            self._along = along

    @contextmanager
    def without(self, gone: Sequence[str]) -> Iterator[None]:
        """Set the clusters as if the named workloads had left, for other calls inside the context."""
        with self._without_workloads(gone):
            self._release_all(gone)
            try:
                yield
            finally:
                self._release_all(gone)

    def _release_all(self, gone: Sequence[str]) -> None:
        for name in gone:
            for pool_pk, _placement, _request in self._held.get(name, ()):
                if pool_pk in self._pools:
                    self._pools[pool_pk].changed()

    def undo(self, but: int = 0) -> None:
        """Give back what was taken, latest first, except for the first `but`."""
        while len(self._taken) > but:
            taken = self._taken.pop()
            pool, placement, request = taken.allocation
            pool.cluster.release(placement, request)
            if taken.brings is not None:
                pool.expect_home(placement, -1)
                del self._new_homes[taken.brings]
            pool.changed()
        if not but:
            self._along.clear()

    @contextmanager
    def _without_workloads(self, gone: Sequence[str]) -> Iterator[None]:
        """Set the clusters as if the named workloads had left."""
        if not gone:
            yield
            return
        self._read_held()
        undo: list[Undo] = []
        try:
            for name in gone:
                self._release(name, undo)
            yield
        finally:
            _put_back(undo)

    @contextmanager
    def stepping(self) -> Iterator[Callable[[Workload, Sequence[str]], bool]]:
        """Yield a function that acts as `fits` and reuses releases of the common prefix of `gone`."""
        self._read_held()
        left: list[tuple[str, list[Undo]]] = []

        def fits(workload: Workload, gone: Sequence[str]) -> bool:
            same = 0
            while same < min(len(left), len(gone)) and left[same][0] == gone[same]:
                same += 1
            while len(left) > same:
                _put_back(left.pop()[1])
            for name in gone[same:]:
                undo: list[Undo] = []
                left.append((name, undo))
                self._release(name, undo)
            return self._place_for(workload) is not None

        try:
            yield fits
        finally:
            while left:
                _put_back(left.pop()[1])

    def _read_held(self) -> None:
        """Read the allocations of running workloads lazily, once."""
        if self._unread:
            held_by = self._held_by or capacity.held_by
            self._held |= held_by([UUID(name) for name in self._unread])
            self._unread.clear()

    def _release(self, name: str, undo: list[Undo]) -> None:
        """Release a workload from the clusters. Appends the steps that restore it to `undo`."""
        for pool_pk, placement, request in self._held.get(name, ()):
            pool = self._pools.get(pool_pk)
            if pool is None:
                continue
            shared = _shares(pool, placement)
            for _, uuid in shared:
                if (device := self._kept_back.get((pool_pk, uuid))) is not None:
                    self._hand_out(pool, uuid, device)
                    undo.append(partial(self._keep_back, pool, uuid, device))
            pool.cluster.release(placement, request)
            undo.append(partial(pool.cluster.restore, placement, request))
            for node, uuid in shared:
                if (rest := _remainder(pool, node, uuid)) is not None:
                    self._keep_back(pool, uuid, rest)
                    undo.append(partial(self._hand_out, pool, uuid, rest))

    def _keep_back(self, pool: PoolNodes, uuid: str, rest: Placement) -> None:
        pool.cluster.commit(rest, NOTHING)
        self._kept_back[pool.pool.pk, uuid] = rest

    def _hand_out(self, pool: PoolNodes, uuid: str, rest: Placement) -> None:
        pool.cluster.release(rest, NOTHING)
        del self._kept_back[pool.pool.pk, uuid]


def _serves_homes(pool: PoolNodes, name: str) -> bool:
    """Return whether the node can send its homes to other nodes; a cordoned one can."""
    try:
        unusable = pool.cluster.node(name).unusable
    except KeyError:
        return False
    return unusable is None or unusable.code == PlacementCode.NODE_CORDONED


def _owner_of(workload: Workload) -> Owner:
    return workload.user, workload.team


def _shares(pool: PoolNodes, placement: Placement) -> list[tuple[str, str]]:
    """Return node and UUID of shared devices that need a scrub before reuse."""
    if not pool.pool.scrub_required:
        return []
    return [
        (part.node, grant.uuid)
        for part in placement.nodes
        for grant in part.devices
        if grant.milli < WHOLE_DEVICE_MILLI
    ]


def _remainder(pool: PoolNodes, node: str, uuid: str) -> Placement | None:
    """Return the free part of a device that is still in use; None if it is empty or unusable."""
    device = next(candidate for candidate in pool.cluster.node(node).devices if candidate.uuid == uuid)
    if device.unusable or not 0 < device.free_milli < WHOLE_DEVICE_MILLI:
        return None
    grant = DeviceGrant(uuid, device.free_milli, max(0, device.free_memory_mib))
    return Placement((NodePlacement(node, (grant,)),))


def _put_back(undo: list[Undo]) -> None:
    while undo:
        undo.pop()()
