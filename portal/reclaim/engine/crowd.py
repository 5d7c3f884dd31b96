"""Who runs, as the search for moves asks for it: of a few nodes, though there may be ten thousand. Pure."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Protocol

from portal.common.reasons.reason import Reason
from portal.reclaim.engine.contentment import FULLY
from provisioning.types import Placement, ResourceRequest


@dataclass(frozen=True, slots=True)
class Movable:
    """A workspace that runs on one node. `request` is what it would be placed with again, in its own pool,
    and `held` what it has of its node. `milli` is what it has of accelerators. `score` and `reasons` are its
    contentment. One that is not `free` to move is not looked at: it is just changing, or asked already.
    """

    id: str
    pool: str
    placement: Placement
    held: ResourceRequest
    request: ResourceRequest
    milli: int = 0
    score: int = FULLY
    reasons: tuple[Reason, ...] = ()
    preemptible: bool = True
    loses_work: bool = False
    started_s: int = 0
    free: bool = True

    @property
    def node(self) -> str:
        return self.placement.nodes[0].node

    @property
    def devices(self) -> frozenset[str]:
        return frozenset(grant.uuid for grant in self.placement.nodes[0].devices)

    def lost(self, now_s: int) -> int:
        """What is done again after a move: milli-GPU-seconds, of one without accelerators CPU time as one."""
        return max(self.milli, 1) * max(0, now_s - self.started_s) if self.loses_work else 0


class Crowd(Protocol):
    """All that runs, of whom only those are asked for who may be in the way: they may be ten thousand."""

    def discontent(self) -> Sequence[Movable]:
        """Those that have a reason to go elsewhere, at least."""

    def nodes(self, pool: str) -> Collection[str]:
        """The nodes of a pool on which somebody runs."""

    def on(self, pool: str, nodes: Collection[str]) -> Sequence[Movable]:
        """All that runs on these nodes of a pool."""


class Everybody:
    """A crowd of those that are given."""

    def __init__(self, running: Sequence[Movable]) -> None:
        self._running = running
        self._on: dict[str, dict[str, list[Movable]]] = {}
        for each in running:
            self._on.setdefault(each.pool, {}).setdefault(each.node, []).append(each)

    def discontent(self) -> Sequence[Movable]:
        return self._running

    def nodes(self, pool: str) -> Collection[str]:
        return self._on.get(pool, {})

    def on(self, pool: str, nodes: Collection[str]) -> Sequence[Movable]:
        there = self._on.get(pool, {})
        return [each for name in nodes for each in there.get(name, ())]


def may_go(each: Movable, resting: Collection[str]) -> bool:
    """Whether it may be moved, as far as it is for itself to say."""
    return each.free and each.id not in resting and len(each.placement.nodes) == 1


@dataclass(frozen=True, slots=True)
class Crew:
    """Those on a node that may move, in the order in which they would: how many devices they have together,
    and the least that one of them has and loses."""

    movable: Sequence[Movable]
    devices: int
    lost: int
    milli: int

    @classmethod
    def of(cls, movable: Sequence[Movable], now_s: int) -> Crew:
        return cls(
            movable,
            len(frozenset[str]().union(*(each.devices for each in movable))),
            min(each.lost(now_s) for each in movable),
            min(each.milli for each in movable),
        )


class Crews:
    """The crews of nodes, of preemptible work alone; each is asked for once."""

    def __init__(self, people: Crowd, resting: Collection[str], now_s: int) -> None:
        self._people = people
        self._resting = resting
        self._now_s = now_s
        self._asked: set[tuple[str, str]] = set()
        self._crews: dict[tuple[str, str], Crew] = {}

    def nodes(self, pool: str) -> list[str]:
        """Where there may be one."""
        return [
            name
            for name in self._people.nodes(pool)
            if (pool, name) in self._crews or (pool, name) not in self._asked
        ]

    def know(self, pool: str, names: Collection[str]) -> bool:
        """Whether all of these nodes have been asked for."""
        return all((pool, name) in self._asked for name in names)

    def ask(self, pool: str, names: Collection[str]) -> None:
        """Ask who runs on these nodes."""
        fresh: dict[str, list[Movable]] = {name: [] for name in names if (pool, name) not in self._asked}
        for each in self._people.on(pool, fresh):
            if each.preemptible and may_go(each, self._resting):
                fresh[each.node].append(each)
        for name, there in fresh.items():
            self._set(pool, name, there)

    def on(self, pool: str, names: Collection[str]) -> list[Crew]:
        """Those of these nodes, which have been asked for."""
        return [crew for name in names if (crew := self._crews.get((pool, name))) is not None]

    def leave(self, pool: str, moved: Collection[str], names: Collection[str]) -> None:
        """Those that move from these nodes do so for nobody else."""
        for name in names:
            there = self._crews.pop((pool, name)).movable
            self._set(pool, name, [each for each in there if each.id not in moved])

    def _set(self, pool: str, name: str, there: Sequence[Movable]) -> None:
        now_s = self._now_s
        self._asked.add((pool, name))
        if there:
            # Those first that cost nothing, of these the largest: so few have to go.
            order = sorted(
                there,
                key=lambda each: (
                    each.lost(now_s), -each.milli, -each.held.cpu_milli, -each.started_s, each.id
                ),
            )  # fmt: skip
            self._crews[pool, name] = Crew.of(order, now_s)
