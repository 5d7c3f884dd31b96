"""Running workspaces for the search for moves, read by node. Pure."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Protocol

from portal.common.reasons.reason import Reason
from portal.reclaim.engine.placement_health import MAX_SCORE
from provisioning.types import Placement, ResourceRequest


@dataclass(frozen=True, slots=True)
class Movable:
    """A workspace on one node.

    - `allocated`: its allocation on the node.
    - `request`: its request for a new placement in its pool.
    - `milli`: its accelerators in milli-GPU.
    - `score`, `reasons`: its placement health.
    - `can_move`: False while it is in transition or being preempted; such workspaces are skipped.
    """

    id: str
    pool: str
    placement: Placement
    allocated: ResourceRequest
    request: ResourceRequest
    milli: int = 0
    score: int = MAX_SCORE
    reasons: tuple[Reason, ...] = ()
    preemptible: bool = True
    loses_work: bool = False
    started_s: int = 0
    can_move: bool = True

    @property
    def node(self) -> str:
        return self.placement.nodes[0].node

    @property
    def devices(self) -> frozenset[str]:
        return frozenset(grant.uuid for grant in self.placement.nodes[0].devices)

    def lost_work(self, now_s: int) -> int:
        """Return the work to repeat after a move, in milli-GPU-seconds or, without GPUs, seconds."""
        return max(self.milli, 1) * max(0, now_s - self.started_s) if self.loses_work else 0


class MovableSource(Protocol):
    """Running workspaces, read on demand: there may be 10,000."""

    def discontent(self) -> Sequence[Movable]:
        """Return at least the workspaces with a reason to move."""

    def nodes(self, pool: str) -> Collection[str]:
        """Return the nodes of a pool that are in use."""

    def on_nodes(self, pool: str, nodes: Collection[str]) -> Sequence[Movable]:
        """Return the workspaces on these nodes of a pool."""


class ListedMovables:
    """A `MovableSource` from a list."""

    def __init__(self, running: Sequence[Movable]) -> None:
        self._running = running
        self._on: dict[str, dict[str, list[Movable]]] = {}
        for movable in running:
            self._on.setdefault(movable.pool, {}).setdefault(movable.node, []).append(movable)

    def discontent(self) -> Sequence[Movable]:
        return self._running

    def nodes(self, pool: str) -> Collection[str]:
        return self._on.get(pool, {})

    def on_nodes(self, pool: str, nodes: Collection[str]) -> Sequence[Movable]:
        on_node = self._on.get(pool, {})
        return [movable for name in nodes for movable in on_node.get(name, ())]


def is_movable(movable: Movable, resting: Collection[str]) -> bool:
    """Return whether the workspace itself allows a move."""
    return movable.can_move and movable.id not in resting and len(movable.placement.nodes) == 1


@dataclass(frozen=True, slots=True)
class NodeMovables:
    """The movable workspaces of a node in order of preference.

    `devices` is their total number of devices; `min_lost_work` and `min_milli` are minimums.
    """

    movable: Sequence[Movable]
    devices: int
    min_lost_work: int
    min_milli: int

    @classmethod
    def of(cls, movable: Sequence[Movable], now_s: int) -> NodeMovables:
        return cls(
            movable,
            len(frozenset[str]().union(*(member.devices for member in movable))),
            min(member.lost_work(now_s) for member in movable),
            min(member.milli for member in movable),
        )


class PreemptibleMovables:
    """The preemptible workspaces of nodes that can move. Reads each node once."""

    def __init__(self, source: MovableSource, resting: Collection[str], now_s: int) -> None:
        self._source = source
        self._resting = resting
        self._now_s = now_s
        self._read: set[tuple[str, str]] = set()
        self._by_node: dict[tuple[str, str], NodeMovables] = {}

    def nodes(self, pool: str) -> list[str]:
        """Return the nodes that may have movable workspaces."""
        return [
            name
            for name in self._source.nodes(pool)
            if (pool, name) in self._by_node or (pool, name) not in self._read
        ]

    def has_read(self, pool: str, names: Collection[str]) -> bool:
        """Return whether all of these nodes have been read."""
        return all((pool, name) in self._read for name in names)

    def read(self, pool: str, names: Collection[str]) -> None:
        """Read the workspaces on these nodes."""
        fresh: dict[str, list[Movable]] = {name: [] for name in names if (pool, name) not in self._read}
        for movable in self._source.on_nodes(pool, fresh):
            if movable.preemptible and is_movable(movable, self._resting):
                fresh[movable.node].append(movable)
        for name, on_node in fresh.items():
            self._set(pool, name, on_node)

    def on_nodes(self, pool: str, names: Collection[str]) -> list[NodeMovables]:
        """Return the movable workspaces of these nodes, which must have been read."""
        return [group for name in names if (group := self._by_node.get((pool, name))) is not None]

    def remove(self, pool: str, moved: Collection[str], names: Collection[str]) -> None:
        """Remove the moved workspaces: each moves for one request only."""
        for name in names:
            on_node = self._by_node.pop((pool, name)).movable
            self._set(pool, name, [movable for movable in on_node if movable.id not in moved])

    def _set(self, pool: str, name: str, on_node: Sequence[Movable]) -> None:
        now_s = self._now_s
        self._read.add((pool, name))
        if on_node:
            # Those without lost work first, largest first, so that fewer workspaces have to leave.
            order = sorted(
                on_node,
                key=lambda movable: (
                    movable.lost_work(now_s),
                    -movable.milli,
                    -movable.allocated.cpu_milli,
                    -movable.started_s,
                    movable.id,
                ),
            )
            self._by_node[pool, name] = NodeMovables.of(order, now_s)
