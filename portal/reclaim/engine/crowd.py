"""Running workspaces as needed by the search for moves, read per node. Pure."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Protocol

from portal.common.reasons.reason import Reason
from portal.reclaim.engine.placement_health import FULLY
from provisioning.types import Placement, ResourceRequest


@dataclass(frozen=True, slots=True)
class Movable:
    """A workspace on one node.

    - `held`: what it uses of its node.
    - `request`: its request for a new placement in its pool.
    - `milli`: its accelerators in milli-GPU.
    - `score`, `reasons`: its placement health.
    - `free`: False while it is changing or under notice; then it is skipped.
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
        """Return the work to repeat after a move, in milli-GPU-seconds; without accelerators in seconds."""
        return max(self.milli, 1) * max(0, now_s - self.started_s) if self.loses_work else 0


class Crowd(Protocol):
    """Running workspaces, read on demand: there may be 10,000."""

    def discontent(self) -> Sequence[Movable]:
        """Return at least the workspaces with a reason to move."""

    def nodes(self, pool: str) -> Collection[str]:
        """Return the nodes of a pool that are in use."""

    def on(self, pool: str, nodes: Collection[str]) -> Sequence[Movable]:
        """Return the workspaces on these nodes of a pool."""


class Everybody:
    """A crowd from a list."""

    def __init__(self, running: Sequence[Movable]) -> None:
        self._running = running
        self._on: dict[str, dict[str, list[Movable]]] = {}
        for movable in running:
            self._on.setdefault(movable.pool, {}).setdefault(movable.node, []).append(movable)

    def discontent(self) -> Sequence[Movable]:
        return self._running

    def nodes(self, pool: str) -> Collection[str]:
        return self._on.get(pool, {})

    def on(self, pool: str, nodes: Collection[str]) -> Sequence[Movable]:
        there = self._on.get(pool, {})
        return [movable for name in nodes for movable in there.get(name, ())]


def is_movable(movable: Movable, resting: Collection[str]) -> bool:
    """Return whether the workspace itself allows a move."""
    return movable.free and movable.id not in resting and len(movable.placement.nodes) == 1


@dataclass(frozen=True, slots=True)
class Crew:
    """The movable workspaces of a node in order of preference.

    `devices` is their total number of devices; `lost` and `milli` are minimums.
    """

    movable: Sequence[Movable]
    devices: int
    lost: int
    milli: int

    @classmethod
    def of(cls, movable: Sequence[Movable], now_s: int) -> Crew:
        return cls(
            movable,
            len(frozenset[str]().union(*(member.devices for member in movable))),
            min(member.lost(now_s) for member in movable),
            min(member.milli for member in movable),
        )


class Crews:
    """The crews of nodes, preemptible workspaces only. Reads each node once."""

    def __init__(self, people: Crowd, resting: Collection[str], now_s: int) -> None:
        self._people = people
        self._resting = resting
        self._now_s = now_s
        self._asked: set[tuple[str, str]] = set()
        self._crews: dict[tuple[str, str], Crew] = {}

    def nodes(self, pool: str) -> list[str]:
        """Return the nodes that may have a crew."""
        return [
            name
            for name in self._people.nodes(pool)
            if (pool, name) in self._crews or (pool, name) not in self._asked
        ]

    def know(self, pool: str, names: Collection[str]) -> bool:
        """Return whether all of these nodes have been read."""
        return all((pool, name) in self._asked for name in names)

    def ask(self, pool: str, names: Collection[str]) -> None:
        """Read the workspaces on these nodes."""
        fresh: dict[str, list[Movable]] = {name: [] for name in names if (pool, name) not in self._asked}
        for movable in self._people.on(pool, fresh):
            if movable.preemptible and is_movable(movable, self._resting):
                fresh[movable.node].append(movable)
        for name, there in fresh.items():
            self._set(pool, name, there)

    def on(self, pool: str, names: Collection[str]) -> list[Crew]:
        """Return the crews of these nodes, which must have been read."""
        return [crew for name in names if (crew := self._crews.get((pool, name))) is not None]

    def leave(self, pool: str, moved: Collection[str], names: Collection[str]) -> None:
        """Remove the moved workspaces: each moves for one request only."""
        for name in names:
            there = self._crews.pop((pool, name)).movable
            self._set(pool, name, [movable for movable in there if movable.id not in moved])

    def _set(self, pool: str, name: str, there: Sequence[Movable]) -> None:
        now_s = self._now_s
        self._asked.add((pool, name))
        if there:
            # Those without loss first, the largest of them first: so fewer have to leave.
            order = sorted(
                there,
                key=lambda movable: (
                    movable.lost(now_s),
                    -movable.milli,
                    -movable.held.cpu_milli,
                    -movable.started_s,
                    movable.id,
                ),
            )
            self._crews[pool, name] = Crew.of(order, now_s)
