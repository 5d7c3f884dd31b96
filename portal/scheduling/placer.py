"""Joins the queue to the placement engine: quota may be free where no single node is."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from uuid import UUID

from portal.scheduling import capacity
from portal.scheduling.capacity import PoolNodes
from portal.scheduling.engine.model import Workload
from portal.scheduling.placement_request import PlacementRequest, Variant
from provisioning.types import Placement, ResourceRequest

Held = tuple[PoolNodes, Placement, ResourceRequest]


class PoolPlacer:
    """Implements `portal.scheduling.engine.scheduler.Placer` over the clusters of several pools.

    `expect` sets by workload id what is to be placed. What has been taken can be given back by `undo`,
    so that a preview leaves no trace.
    """

    def __init__(self, pools: Mapping[UUID, PoolNodes]) -> None:
        self._pools = pools
        self._requests: dict[str, tuple[PlacementRequest, Variant]] = {}
        self._running: set[str] = set()
        self._unread: set[str] = set()
        self._held: dict[str, list[tuple[UUID, Placement, ResourceRequest]]] = {}
        self._found: dict[str, Held] = {}
        self._taken: list[Held] = []

    def expect(self, workload_id: str, placement_request: PlacementRequest, variant: Variant) -> None:
        """Say what a workload is, before anybody asks whether it fits."""
        self._requests[workload_id] = (placement_request, variant)

    def runs(self, workload_id: str) -> None:
        """Say that a workload runs: it may be imagined gone."""
        self._running.add(workload_id)
        self._unread.add(workload_id)

    def gone(self, workload_id: str) -> None:
        """Say that a workload runs no more, or not as it did."""
        self._running.discard(workload_id)
        self._unread.discard(workload_id)
        self._held.pop(workload_id, None)

    def held(self) -> Mapping[str, Sequence[tuple[UUID, Placement, ResourceRequest]]]:
        """What each that runs holds of its nodes, by workload id: pool, placement and amounts."""
        self._read_held()
        return self._held

    def fits(self, workload: Workload, gone: Sequence[str]) -> bool:
        with self._without(gone):
            found = self._first_place(workload)
        if found is not None and not gone:
            self._found[workload.id] = found
        return found is not None

    def _first_place(self, workload: Workload) -> Held | None:
        """Where it would go now: where it is moved to, else the first of its pools that has room."""
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
        """Take the place that `fits` has just found."""
        pool, placement, request = self._found[workload.id]
        pool.cluster.commit(placement, request)
        pool.changed()
        self._taken.append((pool, placement, request))

    def keeps(self, reserved: Workload, gone: Sequence[str], other: Workload, left: Sequence[str]) -> bool:
        """Whether `reserved` still finds a place with `gone` left once `other` has one with `left` left."""
        with self._without(left):
            placed = self._first_place(other)
            if placed is None:
                return False
            pool, placement, request = placed
            pool.cluster.commit(placement, request)
            try:
                with self._without([name for name in gone if name not in left]):
                    return self._first_place(reserved) is not None
            finally:
                pool.cluster.release(placement, request)

    def place_of(self, workload_id: str) -> tuple[PoolNodes, Placement]:
        """Where a workload that was taken goes."""
        pool, placement, _ = self._found[workload_id]
        return pool, placement

    @contextmanager
    def trial(self) -> Iterator[None]:
        """What is expected and taken meanwhile is forgotten and given back at the end."""
        requests, found, taken = dict(self._requests), dict(self._found), len(self._taken)
        try:
            yield
        finally:
            self.undo(taken)
            self._requests, self._found = requests, found

    @contextmanager
    def without(self, gone: Sequence[str]) -> Iterator[None]:
        """The clusters as if the workloads named had left, for whatever is asked and tried meanwhile."""
        with self._without(gone):
            self._given_back(gone)
            try:
                yield
            finally:
                self._given_back(gone)

    def _given_back(self, gone: Sequence[str]) -> None:
        for name in gone:
            for pool_pk, _placement, _request in self._held.get(name, ()):
                if pool_pk in self._pools:
                    self._pools[pool_pk].changed()

    def undo(self, but: int = 0) -> None:
        """Give back all that was taken but for the first so many, the last first."""
        while len(self._taken) > but:
            pool, placement, request = self._taken.pop()
            pool.cluster.release(placement, request)
            pool.changed()

    @contextmanager
    def _without(self, gone: Sequence[str]) -> Iterator[None]:
        """The clusters as if the workloads named had left."""
        if not gone:
            yield
            return
        self._read_held()
        released: list[Held] = []
        try:
            for name in gone:
                self._release(name, released)
            yield
        finally:
            _put_back(released)

    @contextmanager
    def stepping(self) -> Iterator[Callable[[Workload, Sequence[str]], bool]]:
        """Asks like `fits` of longer and shorter parts of one list: who is in both is not moved again."""
        self._read_held()
        left: list[tuple[str, list[Held]]] = []

        def fits(workload: Workload, gone: Sequence[str]) -> bool:
            same = 0
            while same < min(len(left), len(gone)) and left[same][0] == gone[same]:
                same += 1
            while len(left) > same:
                _put_back(left.pop()[1])
            for name in gone[same:]:
                released: list[Held] = []
                left.append((name, released))
                self._release(name, released)
            return self._first_place(workload) is not None

        try:
            yield fits
        finally:
            while left:
                _put_back(left.pop()[1])

    def _read_held(self) -> None:
        """Read what those hold that run: only where somebody may have to leave, and then once."""
        if self._unread:
            self._held |= capacity.held_by([UUID(name) for name in self._unread])
            self._unread.clear()

    def _release(self, name: str, released: list[Held]) -> None:
        """Take one out of the clusters, and note that in `released`."""
        for pool_pk, placement, request in self._held.get(name, ()):
            pool = self._pools.get(pool_pk)
            if pool is None:
                continue
            pool.cluster.release(placement, request)
            released.append((pool, placement, request))


def _put_back(released: list[Held]) -> None:
    while released:
        pool, placement, request = released.pop()
        pool.cluster.restore(placement, request)
