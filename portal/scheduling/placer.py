"""Connects the queue to the placement engine: quota may be free where no single node is."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from uuid import UUID

from portal.scheduling import capacity
from portal.scheduling.capacity import PoolNodes
from portal.scheduling.engine.model import Workload
from portal.scheduling.placement_request import PlacementRequest, Variant
from provisioning.types import (
    WHOLE_DEVICE_MILLI,
    DeviceGrant,
    NodePlacement,
    Placement,
    ResourceRequest,
)

PoolAllocation = tuple[PoolNodes, Placement, ResourceRequest]
Undo = Callable[[], None]
NOTHING = ResourceRequest(cpu_milli=0, memory_mib=0, disk_mib=0)


class PoolPlacer:
    """Implements `portal.scheduling.engine.scheduler.Placer` over the clusters of several pools.

    `expect` registers the request of a workload id. `undo` gives back what was taken, so that a preview
    leaves no trace.
    """

    def __init__(self, pools: Mapping[UUID, PoolNodes]) -> None:
        self._pools = pools
        self._requests: dict[str, tuple[PlacementRequest, Variant]] = {}
        self._running: set[str] = set()
        self._unread: set[str] = set()
        self._held: dict[str, list[tuple[UUID, Placement, ResourceRequest]]] = {}
        self._found: dict[str, PoolAllocation] = {}
        self._taken: list[PoolAllocation] = []
        # Free parts withheld on shared devices, while some of their workloads are simulated as gone.
        self._kept_back: dict[tuple[UUID, str], Placement] = {}

    def expect(self, workload_id: str, placement_request: PlacementRequest, variant: Variant) -> None:
        """Register the request of a workload, before any call of `fits`."""
        self._requests[workload_id] = (placement_request, variant)

    def runs(self, workload_id: str) -> None:
        """Register a running workload, which can be simulated as gone."""
        self._running.add(workload_id)
        self._unread.add(workload_id)

    def gone(self, workload_id: str) -> None:
        """Forget a running workload that has ended or changed."""
        self._running.discard(workload_id)
        self._unread.discard(workload_id)
        self._held.pop(workload_id, None)

    def held(self) -> Mapping[str, Sequence[tuple[UUID, Placement, ResourceRequest]]]:
        """Return what running workloads use, by id: pool, placement and amounts."""
        self._read_held()
        return self._held

    def fits(self, workload: Workload, gone: Sequence[str]) -> bool:
        with self._without_workloads(gone):
            allocation = self._first_place(workload)
        if allocation is not None and not gone:
            self._found[workload.id] = allocation
        return allocation is not None

    def _first_place(self, workload: Workload) -> PoolAllocation | None:
        """Return where it would go now: its move target if free, else the first pool with room."""
        placement_request, variant = self._requests[workload.id]
        if (target := placement_request.target) is not None:
            for pool in placement_request.pools:
                request = pool.adapted(variant.request, placement_request.software)
                if pool.pool.pk == target.pool and pool.takes(target.placement, request):
                    return pool, target.placement, request
        for pool in placement_request.pools:
            request = pool.adapted(variant.request, placement_request.software)
            placement = pool.find(request)
            if placement is not None:
                return pool, placement, request
        return None

    def take(self, workload: Workload) -> None:
        """Take the placement that `fits` has just found."""
        pool, placement, request = self._found[workload.id]
        pool.cluster.commit(placement, request)
        pool.changed()
        self._taken.append((pool, placement, request))

    def keeps(self, reserved: Workload, gone: Sequence[str], other: Workload, left: Sequence[str]) -> bool:
        """Return whether `reserved` fits once `gone` have left and `other` is placed with `left` gone."""
        with self._without_workloads(left):
            placed = self._first_place(other)
            if placed is None:
                return False
            pool, placement, request = placed
            pool.cluster.commit(placement, request)
            try:
                with self._without_workloads([name for name in gone if name not in left]):
                    return self._first_place(reserved) is not None
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
        try:
            yield
        finally:
            self.undo(taken)
            self._requests, self._found = requests, allocations

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
            pool, placement, request = self._taken.pop()
            pool.cluster.release(placement, request)
            pool.changed()

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
            return self._first_place(workload) is not None

        try:
            yield fits
        finally:
            while left:
                _put_back(left.pop()[1])

    def _read_held(self) -> None:
        """Read the allocations of running workloads lazily, once."""
        if self._unread:
            self._held |= capacity.held_by([UUID(name) for name in self._unread])
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
