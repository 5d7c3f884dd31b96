"""Connects the queue to the placement engine, because quota may be free although no single node has room."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from uuid import UUID

from portal.common.reasons.reason import Reason
from portal.fleet.inventory.contact import contact_of_pool
from portal.fleet.inventory.models import Pool
from portal.quota.limits.types import Amounts
from portal.scheduling import capacity, choice
from portal.scheduling.choice import Explanation, Prices
from portal.scheduling.engine.codes import PlacementCode, WaitBasis
from portal.scheduling.engine.model import Workload
from portal.scheduling.engine.placement.types import ModelPreference
from portal.scheduling.placement_request import MovableHome, PlacementRequest, Variant
from portal.scheduling.pool_nodes import PoolNodes
from provisioning.types import (
    WHOLE_DEVICE_MILLI,
    DeviceGrant,
    NodePlacement,
    Placement,
    ResourceRequest,
)

PoolAllocation = tuple[PoolNodes, Placement, ResourceRequest]
ReadAllocations = Callable[[Collection[UUID]], Mapping[str, list[tuple[UUID, Placement, ResourceRequest]]]]
Undo = Callable[[], None]
Owner = tuple[str, str]
"""User and team of a home."""
NOTHING = ResourceRequest(cpu_milli=0, memory_mib=0, disk_mib=0)


@dataclass(frozen=True, slots=True)
class HomeMoveAhead:
    """The home move of a start: the home's size, and the expected duration in seconds."""

    source: str
    target: str
    size_mib: int
    seconds: int


@dataclass(frozen=True, slots=True)
class _TentativePlacement:
    """A placement that `undo` can release. `brings_home_of` and `uses_home_of` are the home's owner."""

    allocation: PoolAllocation
    brings_home_of: Owner | None
    uses_home_of: Owner | None
    moved_home: MovableHome | None


class PoolPlacer:
    """Implements `portal.scheduling.engine.scheduler.Placer` over the clusters of several pools.

    `register` registers the request of a workload id. `undo` releases all placements, so that a preview
    changes nothing.
    """

    def __init__(
        self,
        pools: Mapping[UUID, PoolNodes],
        prices: Prices | None = None,
        read_allocations: ReadAllocations | None = None,
    ) -> None:
        """`read_allocations` returns the workspaces' allocations by id, by default from the database."""
        self._pools = pools
        self._read_allocations = read_allocations
        self._prices: Prices = prices or {}
        self._requests: dict[str, tuple[PlacementRequest, ...]] = {}
        self._explanations: dict[str, Explanation | None] = {}
        self._running: set[str] = set()
        self._unread: set[str] = set()
        self._allocations: dict[str, list[tuple[UUID, Placement, ResourceRequest]]] = {}
        self._found_allocations: dict[str, PoolAllocation] = {}
        self._tentative: list[_TentativePlacement] = []
        # Nodes of new homes that placements here bring and that are not stored yet.
        self._new_homes: dict[Owner, str] = {}
        # Requests that are placed away from their home, with the duration of the home move in seconds.
        self._home_move_s: dict[str, int] = {}
        # Free parts withheld on shared devices, while the simulation assumes that some of their workloads
        # have left.
        self._withheld: dict[tuple[UUID, str], Placement] = {}

    def register(self, workload_id: str, *placement_requests: PlacementRequest) -> None:
        """Register the request of a workload. Call this before `fits` or `choose`.

        A workload that lists several flavors has a request for each, in order of `Workload.choice`.
        """
        self._requests[workload_id] = placement_requests

    def _registered(self, workload: Workload) -> PlacementRequest:
        return self._requests[workload.id][workload.choice]

    def explain(self, workload_id: str) -> None:
        """Record for `explanation_of` why the workload gets its model, if it has a choice."""
        self._explanations[workload_id] = None

    def explanation_of(self, workload_id: str) -> Explanation | None:
        """Return why the workload got its model, or None if it had no choice."""
        return self._explanations.get(workload_id)

    def add_running(self, workload_id: str) -> None:
        """Register a running workload, so that simulations can assume that it has left."""
        self._running.add(workload_id)
        self._unread.add(workload_id)

    def remove_running(self, workload_id: str) -> None:
        """Forget a running workload that has ended or changed."""
        self._running.discard(workload_id)
        self._unread.discard(workload_id)
        self._allocations.pop(workload_id, None)
        self._requests.pop(workload_id, None)
        self._found_allocations.pop(workload_id, None)

    def running_allocations(self) -> Mapping[str, Sequence[tuple[UUID, Placement, ResourceRequest]]]:
        """Return the allocations of running workloads by id: pool, placement and request."""
        self._read_missing_allocations()
        return self._allocations

    def fits(self, workload: Workload, gone: Sequence[str]) -> bool:
        with self._without_workloads(gone):
            allocation = self._find_placement(workload)
        if allocation is not None and not gone:
            self._found_allocations[workload.id] = allocation
        return allocation is not None

    def choose(
        self, workload: Workload, ways: Sequence[Amounts], waiting: Mapping[str, int]
    ) -> Amounts | None:
        """Return the amounts of the best way over all pools, as `choice` compares them."""
        placement_request = self._request_of(workload)
        variants = [variant for variant in placement_request.variants if variant.amounts in ways]
        preference = choice.model_preference(variants, self._prices, waiting)
        place = self._best_placement(workload, placement_request, variants, preference)
        if place is None:
            return None
        if workload.id in self._explanations:
            self._explanations[workload.id] = choice.explain(
                placement_request, variants, place.variant, self._prices, waiting
            )
        self._found_allocations[workload.id] = (place.pool, place.placement, place.request)
        return place.variant.amounts

    def best_placement(self, placement_request: PlacementRequest) -> choice.PoolPlacement | None:
        """Return the best current place for a request that is not in the queue, or None."""
        preference = choice.model_preference(placement_request.variants, self._prices, {})
        return choice.best_placement(placement_request, placement_request.variants, preference)

    def _find_placement(self, workload: Workload) -> PoolAllocation | None:
        """Return where the workload would go now: its move target if free, else the best place."""
        placement_request = self._request_of(workload)
        variant = placement_request.variant_of(workload.amounts)
        if (target := placement_request.target) is not None:
            for pool in placement_request.pools:
                request = pool.with_requirements(variant.request, placement_request.software)
                if pool.pool.pk == target.pool and pool.is_free(target.placement, request):
                    return pool, target.placement, request
        place = self._best_placement(workload, placement_request, (variant,), None)
        return None if place is None else (place.pool, place.placement, place.request)

    def _best_placement(
        self,
        workload: Workload,
        placement_request: PlacementRequest,
        variants: Sequence[Variant],
        preference: ModelPreference | None,
    ) -> choice.PoolPlacement | None:
        """Return the best place. If another workload here brings the same home, prefers that workload's node.

        If that node has no room, the start is rejected when it is written, and the request waits. A request
        whose home leaves its node also waits.
        """
        if placement_request.home and _owner_of(workload) in self._new_homes:
            return None
        node = self._new_homes.get(_owner_of(workload)) if placement_request.new_home else None
        if node is not None:
            at_home = placement_request.at_home(node)
            amounts = [variant.amounts for variant in variants]
            variants_there = [variant for variant in at_home.variants if variant.amounts in amounts]
            if (place := choice.best_placement(at_home, variants_there, preference)) is not None:
                return place
        return choice.best_placement(placement_request, variants, preference)

    def take(self, workload: Workload) -> None:
        """Take the placement that `fits` or `choose` has just found."""
        allocation = self._found_allocations[workload.id]
        pool, placement, request = allocation
        pool.cluster.commit(placement, request)
        pool.count_handed_over(1)
        new_home_owner = self._brings_home(workload, pool, placement)
        if new_home_owner is not None:
            pool.count_new_home(placement)
            self._new_homes[new_home_owner] = placement.nodes[0].node
        pool.invalidate_reasons()
        placement_request = self._request_of(workload)
        home_owner = _owner_of(workload) if placement_request.home else None
        moved_home = self._registered(workload).movable_home if workload.id in self._home_move_s else None
        self._tentative.append(_TentativePlacement(allocation, new_home_owner, home_owner, moved_home))

    def _brings_home(self, workload: Workload, pool: PoolNodes, placement: Placement) -> Owner | None:
        """Return the owner of the home that the workload brings to its node, or None if it brings none."""
        if not (self._request_of(workload).new_home and pool.has_separate_homes) or len(placement.nodes) != 1:
            return None
        owner = _owner_of(workload)
        return None if owner in self._new_homes else owner

    def _request_of(self, workload: Workload) -> PlacementRequest:
        """Return the registered request, or the one away from its home if the home moves along."""
        placement_request = self._registered(workload)
        movable_home = placement_request.movable_home
        return (
            movable_home.request
            if movable_home is not None and workload.id in self._home_move_s
            else placement_request
        )

    def has_home(self, workload: Workload) -> bool:
        """Return whether the request can start only on the node of its user's home, unless the home moves."""
        return bool(self._registered(workload).home)

    def lost_contact(self, workload: Workload) -> Reason | None:
        """Return why the start is unknown if no node that could take the workload reports, else None."""
        silent = self._registered(workload).silent
        return None if silent is None else no_contact_reason(*silent)

    def closed_nodes_in_use(self, workload: Workload) -> bool:
        """Return whether work runs on nodes of the workload's pools that take no new work."""
        return any(pool.closed_nodes_in_use for pool in self._registered(workload).pools)

    def home_move_s(self, workload: Workload) -> int | None:
        """Return the expected duration of the home move in seconds, or None if the home cannot move now.

        The home cannot move if another start uses or moves it, or if its node is out of service.
        """
        movable_home = self._registered(workload).movable_home
        owner = _owner_of(workload)
        if (
            movable_home is None
            or owner in self._new_homes
            or not _can_send_homes(movable_home.pool, movable_home.source)
        ):
            return None
        if any(taken.uses_home_of == owner for taken in self._tentative):
            return None
        return movable_home.rounded_s(self._moving_mib(movable_home))

    def _moving_mib(self, movable_home: MovableHome) -> int:
        """Return the total size in MiB of the homes that other starts move away from the same node."""
        others = (taken.moved_home for taken in self._tentative if taken.moved_home is not None)
        return sum(
            other.size_mib
            for other in others
            if other.pool is movable_home.pool and other.source == movable_home.source
        )

    def set_home_moves(self, workload: Workload, moves: bool) -> None:
        """Place the request away from its home from now on, or at its home again."""
        movable_home = self._registered(workload).movable_home
        if moves and movable_home is not None:
            self._home_move_s[workload.id] = movable_home.seconds(self._moving_mib(movable_home))
        else:
            self._home_move_s.pop(workload.id, None)

    def home_move_of(self, workload: Workload) -> HomeMoveAhead | None:
        """Return the home move of a start that was taken, or None if its home stays."""
        movable_home = self._registered(workload).movable_home
        if movable_home is None or workload.id not in self._home_move_s:
            return None
        placement = self._found_allocations[workload.id][1]
        return HomeMoveAhead(
            movable_home.source,
            placement.nodes[0].node,
            movable_home.size_mib,
            self._home_move_s[workload.id],
        )

    def fits_beside(
        self, reserved: Workload, ended: Sequence[str], other: Workload, ended_first: Sequence[str]
    ) -> bool:
        """Return whether `reserved` fits once `ended` have left, if `other` starts after `ended_first`."""
        with self._without_workloads(ended_first):
            placed = self._find_placement(other)
            if placed is None:
                return False
            pool, placement, request = placed
            pool.cluster.commit(placement, request)
            try:
                with self._without_workloads([name for name in ended if name not in ended_first]):
                    return self._find_placement(reserved) is not None
            finally:
                pool.cluster.release(placement, request)

    def placement_of(self, workload_id: str) -> tuple[PoolNodes, Placement]:
        """Return the placement of a workload that was taken."""
        pool, placement, _ = self._found_allocations[workload_id]
        return pool, placement

    @contextmanager
    def trial(self) -> Iterator[None]:
        """Undo all registrations and placements at the end of the context."""
        requests, allocations, taken = (
            dict(self._requests),
            dict(self._found_allocations),
            len(self._tentative),
        )
        explanations, movable_home = dict(self._explanations), dict(self._home_move_s)
        try:
            yield
        finally:
            self.undo(taken)
            self._requests, self._found_allocations, self._explanations = requests, allocations, explanations
            self._home_move_s = movable_home

    @contextmanager
    def simulate_gone(self, gone: Sequence[str]) -> Iterator[None]:
        """Simulate in this context that these workloads have left."""
        with self._without_workloads(gone):
            self._release_all(gone)
            try:
                yield
            finally:
                self._release_all(gone)

    def _release_all(self, gone: Sequence[str]) -> None:
        for name in gone:
            for pool_pk, _placement, _request in self._allocations.get(name, ()):
                if pool_pk in self._pools:
                    self._pools[pool_pk].invalidate_reasons()

    def undo(self, keep_first: int = 0) -> None:
        """Release the placements taken, latest first, except the first `keep_first`."""
        while len(self._tentative) > keep_first:
            taken = self._tentative.pop()
            pool, placement, request = taken.allocation
            pool.cluster.release(placement, request)
            pool.count_handed_over(-1)
            if taken.brings_home_of is not None:
                pool.count_new_home(placement, -1)
                del self._new_homes[taken.brings_home_of]
            pool.invalidate_reasons()
        if not keep_first:
            self._home_move_s.clear()

    @contextmanager
    def _without_workloads(self, gone: Sequence[str]) -> Iterator[None]:
        """Release these workloads from the clusters in this context."""
        if not gone:
            yield
            return
        self._read_missing_allocations()
        undo: list[Undo] = []
        try:
            for name in gone:
                self._release(name, undo)
            yield
        finally:
            _restore(undo)

    @contextmanager
    def prefix_fits(self) -> Iterator[Callable[[Workload, Sequence[str]], bool]]:
        """Yield a function like `fits` that reuses the releases of the common prefix of `gone`."""
        self._read_missing_allocations()
        left: list[tuple[str, list[Undo]]] = []

        def fits(workload: Workload, gone: Sequence[str]) -> bool:
            same = 0
            while same < min(len(left), len(gone)) and left[same][0] == gone[same]:
                same += 1
            while len(left) > same:
                _restore(left.pop()[1])
            for name in gone[same:]:
                undo: list[Undo] = []
                left.append((name, undo))
                self._release(name, undo)
            return self._find_placement(workload) is not None

        try:
            yield fits
        finally:
            while left:
                _restore(left.pop()[1])

    def _read_missing_allocations(self) -> None:
        """Read the allocations of running workloads that were not read yet."""
        if self._unread:
            read = self._read_allocations or capacity.allocations_by_workspace
            self._allocations |= read([UUID(name) for name in self._unread])
            self._unread.clear()

    def _release(self, name: str, undo: list[Undo]) -> None:
        """Release a workload from the clusters. Appends the steps that restore it to `undo`."""
        for pool_pk, placement, request in self._allocations.get(name, ()):
            pool = self._pools.get(pool_pk)
            if pool is None:
                continue
            shared = _shares(pool, placement)
            for _, uuid in shared:
                if (device := self._withheld.get((pool_pk, uuid))) is not None:
                    self._return_remainder(pool, uuid, device)
                    undo.append(partial(self._withhold_remainder, pool, uuid, device))
            pool.cluster.release(placement, request)
            undo.append(partial(pool.cluster.restore, placement, request))
            for node, uuid in shared:
                if (rest := _remainder(pool, node, uuid)) is not None:
                    self._withhold_remainder(pool, uuid, rest)
                    undo.append(partial(self._return_remainder, pool, uuid, rest))

    def _withhold_remainder(self, pool: PoolNodes, uuid: str, rest: Placement) -> None:
        pool.cluster.commit(rest, NOTHING)
        self._withheld[pool.pool.pk, uuid] = rest

    def _return_remainder(self, pool: PoolNodes, uuid: str, rest: Placement) -> None:
        pool.cluster.release(rest, NOTHING)
        del self._withheld[pool.pool.pk, uuid]


def _can_send_homes(pool: PoolNodes, name: str) -> bool:
    """Return whether the node can send its homes to other nodes. A cordoned node can."""
    try:
        unusable = pool.cluster.node(name).unusable
    except KeyError:
        return False
    return unusable is None or unusable.code == PlacementCode.NODE_CORDONED


def no_contact_reason(pool: Pool, node: str) -> Reason:
    """Return why the start is unknown: the silent pool, or the silent node if the pool itself reports."""
    contact = contact_of_pool(pool)
    since = contact.last.isoformat() if not contact.heard and contact.last is not None else ""
    return Reason(WaitBasis.NO_CONTACT, {"name": node if contact.heard else pool.name, "since": since})


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


def _restore(undo: list[Undo]) -> None:
    while undo:
        undo.pop()()
