"""A placer with the real placement engine, and a clock that runs a site for days."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

from portal.scheduling.engine.model import FOREVER_S, PreemptionCode, Workload
from portal.scheduling.engine.placement.cluster import Cluster
from portal.scheduling.engine.scheduler import Scheduler
from provisioning.types import Placement, ResourceRequest
from tests.scheduling.engine.placement.helpers import gpus, node, wants

GPU = "gpu:h100"


class NodePlacer:
    """Places on nodes with some GPUs each, and keeps reservations there (`backfill.SimulatingPlacer`)."""

    def __init__(self, *sizes: int) -> None:
        self.cluster = Cluster(
            [node(f"n{at}", *gpus(f"n{at}-", *[1000] * size)) for at, size in enumerate(sizes)]
        )
        self.held: dict[str, tuple[Placement, ResourceRequest]] = {}

    @staticmethod
    def request(workload: Workload) -> ResourceRequest:
        return wants(workload.amounts[GPU] // 1000, model="H100")

    def fits(self, workload: Workload, excluded: Sequence[str]) -> bool:
        with self.without(excluded):
            return self.cluster.find(self.request(workload)) is not None

    def take(self, workload: Workload) -> None:
        request = self.request(workload)
        placement = self.cluster.find(request)
        assert placement is not None
        self.cluster.commit(placement, request)
        self.held[workload.id] = (placement, request)

    def fits_beside(
        self, reserved: Workload, ended: Sequence[str], other: Workload, ended_first: Sequence[str]
    ) -> bool:
        request = self.request(other)
        with self.without(ended_first):
            placement = self.cluster.find(request)
            if placement is None:
                return False
            self.cluster.commit(placement, request)
            with self.without([name for name in ended if name not in ended_first]):
                fits = self.cluster.find(self.request(reserved)) is not None
            self.cluster.release(placement, request)
        return fits

    def release(self, name: str) -> None:
        self.cluster.release(*self.held.pop(name))

    @contextmanager
    def without(self, excluded: Iterable[str]) -> Iterator[None]:
        left = [self.held[name] for name in dict.fromkeys(excluded) if name in self.held]
        for grants in left:
            self.cluster.release(*grants)
        yield
        for grants in reversed(left):
            self.cluster.commit(*grants)


@dataclass(slots=True)
class Diary:
    """The history: last start of each workload, number of preemptions, and who preempted whom."""

    began_s: dict[str, int] = field(default_factory=dict)
    preempted: dict[str, int] = field(default_factory=dict)
    taken: list[tuple[str, str, PreemptionCode]] = field(default_factory=list)
    ended: set[str] = field(default_factory=set)
    lapsed: list[str] = field(default_factory=list)


def live(scheduler: Scheduler, arrivals: Sequence[Workload], *, cycles: int = 2000) -> Diary:
    """Run the site until all work is done. Durations are kept; preempted work restarts from its beginning."""
    diary = Diary()
    coming = sorted(arrivals, key=lambda victim: (victim.created_s, victim.id))
    placer = scheduler.placer if isinstance(scheduler.placer, NodePlacer) else None
    for _ in range(cycles):
        following = coming[0].created_s if coming else FOREVER_S
        now_s = min(following, scheduler.next_end())
        if now_s >= FOREVER_S:
            return diary
        for name in scheduler.ended_by(now_s):
            finished = scheduler.finish(name)
            if placer is not None:
                placer.release(name)
            if now_s < finished.started_s + finished.workload.duration_s:
                times = diary.preempted[name] = diary.preempted.get(name, 0) + 1
                scheduler.submit(replace(finished.workload, nominated=False, preempted=times))
            else:
                diary.ended.add(name)
        while coming and coming[0].created_s <= now_s:
            scheduler.submit(coming.pop(0))
        cycle = scheduler.cycle(now_s)
        scheduler.apply(cycle, now_s)
        assert scheduler.usage.violation() == ""
        diary.began_s.update(dict.fromkeys(cycle.starts, now_s))
        diary.lapsed.extend(cycle.lapsed_nominations)
        diary.taken.extend((victim.beneficiary, victim.workload, victim.reason) for victim in cycle.victims)
    raise AssertionError("it never ends")
