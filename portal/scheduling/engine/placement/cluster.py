"""The placement engine: a snapshot of nodes that answers requests, one after the other.

A decision looks at every node, but computes little: for each shape of request a row of scores is kept,
and only nodes that changed since the row was last used are scored again. The answer depends on the
snapshot, the mix and the policy alone; a `Cluster` that has been kept up to date and one that is built
anew from the same state decide the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from portal.common.reasons.codes import PlacementCode
from portal.common.reasons.reason import Reason
from portal.scheduling.engine.placement import filters, mig
from portal.scheduling.engine.placement.arrays import Ints, NodeArrays
from portal.scheduling.engine.placement.filters import Filter
from portal.scheduling.engine.placement.mix import DEFAULT_MIX, RequestMix
from portal.scheduling.engine.placement.peers import TIE_BITS, Peers
from portal.scheduling.engine.placement.scoring import DEFAULT_POLICY, policy_named
from portal.scheduling.engine.placement.scoring.base import LEVEL_BITS
from portal.scheduling.engine.placement.scoring.fragmentation import sigmoid_thresholds
from portal.scheduling.engine.placement.topology import tightest
from portal.scheduling.engine.placement.types import NodeCapacity, Placed, Unplaceable
from provisioning.types import (
    WHOLE_DEVICE_MILLI,
    DeviceGrant,
    NodePlacement,
    Placement,
    ResourceRequest,
    Within,
)

_NEVER = -(1 << 62)
_MAX_ROWS = 1024
_LARGEST_GROUP = 63
_NODE_RANK = 2


@dataclass(slots=True)
class _Row:
    """What is known about all nodes for one request: the score, and the device to take first."""

    score: Ints
    first: Ints
    filters: tuple[Filter, ...]
    seen: int = -1


class Cluster:
    """Nodes and what is free on them. Not safe for threads."""

    def __init__(
        self, nodes: Sequence[NodeCapacity], *, policy: str = DEFAULT_POLICY, mix: RequestMix = DEFAULT_MIX
    ) -> None:
        """Raises ValueError for an unknown policy or a node named twice."""
        self._policy_name = policy
        self._mix = mix
        self._profiles = mix.mig_profiles()
        self._build(nodes)

    def _build(self, nodes: Sequence[NodeCapacity]) -> None:
        self._nodes = NodeArrays(nodes)
        self._policy = policy_named(self._policy_name, self._nodes, self._mix)
        self._peers = Peers(self._nodes)
        self._rows: dict[ResourceRequest, _Row] = {}
        self._clock = 0
        self._touched = np.zeros(len(nodes), np.int64)
        self._bonded = bool(self._nodes.bonded.any())

    def decide(self, request: ResourceRequest, *, repartition: bool = False) -> Placed | Unplaceable:
        """Where the request goes, or the reason of every node in the snapshot's order.

        With `repartition`, the placement may ask for another MIG layout of idle slots first. Raises
        ValueError for a request that makes no sense, such as one with a negative amount.
        """
        found = self.find(request, repartition=repartition)
        return self.explain(request) if found is None else Placed(found)

    def find(self, request: ResourceRequest, *, repartition: bool = False) -> Placement | None:
        """Like `decide`, without the cost of reasons."""
        row = self._rows.get(request)
        if row is None:
            row = self._new_row(request)
        if not len(self._nodes):
            return None
        self._refresh(row, request)
        if request.nodes == 1:
            score = row.score + self._peers.tie
            best = int(score.argmax())
            if score[best] >= 0:
                return Placement((self._grant(best, row, request),))
        elif (chosen := self._several(row, request)) is not None:
            return Placement(tuple(self._grant(best, row, request) for best in chosen))
        if repartition and request.accelerators.mig_profile:
            return self._repartitioned(request)
        return None

    def explain(self, request: ResourceRequest) -> Unplaceable:
        """Why the request goes nowhere, node by node in the snapshot's order."""
        states = self.snapshot()
        reasons = [(state.name, filters.reason(state, request)) for state in states]
        fitting = sum(1 for _, reason in reasons if reason is None)
        too_few = Reason(PlacementCode.NODES_SHORT, {"needed": request.nodes, "fitting": fitting})
        return Unplaceable(tuple((name, reason or too_few) for name, reason in reasons))

    def commit(self, placement: Placement, request: ResourceRequest) -> None:
        """Take what `placement` grants. Raises ValueError, and takes nothing, where it is not free."""
        self._move(placement, request, 1)

    def release(self, placement: Placement, request: ResourceRequest) -> None:
        """Give back what `commit` took. Raises ValueError where it was not taken."""
        self._move(placement, request, -1)

    def update(self, node: NodeCapacity) -> None:
        """Replace what is known about one node of the snapshot; raises KeyError for any other."""
        row = self._nodes.index[node.name]
        if self._nodes.same_build(row, node):
            self._nodes.states[row] = node
            self._nodes.load(row)
            self._changed(row)
        else:
            states = self.snapshot()
            states[self._nodes.position[node.name]] = node
            self._build(states)

    def snapshot(self) -> list[NodeCapacity]:
        """All nodes as they are now, in the order in which they were given."""
        nodes = self._nodes
        found = [nodes.state(row) if self._touched[row] else nodes.states[row] for row in range(len(nodes))]
        return sorted(found, key=lambda state: nodes.position[state.name])

    def _new_row(self, request: ResourceRequest) -> _Row:
        check(request)
        if len(self._rows) >= _MAX_ROWS:
            del self._rows[next(iter(self._rows))]
        count = len(self._nodes)
        row = _Row(np.full(count, _NEVER, np.int64), np.zeros(count, np.int64), filters.applying(request))
        self._rows[request] = row
        return row

    def _refresh(self, row: _Row, request: ResourceRequest) -> None:
        """Score the nodes again that changed since this row was last looked at."""
        if row.seen == self._clock:
            return
        rows = (self._touched > row.seen).nonzero()[0]
        row.seen = self._clock
        row.score[rows] = _NEVER
        for each in row.filters:
            rows = rows[each.mask(self._nodes, rows, request)]
            if not len(rows):
                return
        if request.accelerators.mig_profile and request.accelerators.count:
            levels = self._mig_levels(rows, request)
        else:
            eligible = self._nodes.eligible(rows, request)
            levels, row.first[rows] = self._policy.levels(rows, request, eligible)
            if self._bonded and request.accelerators.count > 1:
                levels = levels + self._bond_levels(rows, request)
        row.score[rows] = levels << TIE_BITS

    def _bond_levels(self, rows: Ints, request: ResourceRequest) -> Ints:
        """Raises nodes on which the devices would be bonded tightly, smallest sufficient group first."""
        raised = np.zeros(len(rows), np.int64)
        for place, row in enumerate(rows.tolist()):
            if self._nodes.bonded[row] and (found := self._bond(row, request)) is not None:
                rank, size, _ = found
                if rank < _NODE_RANK:
                    raised[place] = ((_NODE_RANK - rank) << 6) | (_LARGEST_GROUP - min(size, _LARGEST_GROUP))
        return raised << LEVEL_BITS

    def _bond(self, row: int, request: ResourceRequest) -> tuple[int, int, list[int]] | None:
        wanted = request.accelerators
        rows = np.array([row])
        eligible = self._nodes.eligible(rows, request)
        order = self._policy.preference(rows, eligible)[0].tolist()
        return tightest(self._nodes.devices[row], eligible[0], wanted.count, wanted.within, order.__getitem__)

    def _mig_levels(self, rows: Ints, request: ResourceRequest) -> Ints:
        """Levels by the growth of fragmentation on the GPUs' free slots."""
        weight = max(sum(weight for _, weight in self._profiles), 1)
        thresholds = sigmoid_thresholds(8 * weight)
        losses = []
        for row in rows.tolist():
            choice = mig.choose(self._nodes.states[row], request.accelerators, self._profiles)
            losses.append(choice.loss if choice else 0)
        levels: Ints = thresholds.searchsorted(-np.array(losses, np.int64), "right")
        return levels

    def _several(self, row: _Row, request: ResourceRequest) -> list[int] | None:
        """The best rows for a request of several nodes, close together where racks and blocks are known."""
        score = row.score + self._peers.tie
        rows = np.flatnonzero(score >= 0)
        if len(rows) < request.nodes:
            return None
        rows = rows[np.argsort(-score[rows], kind="stable")]
        states = self._nodes.states
        for site in (_rack, _block):
            groups: dict[tuple[str, ...], list[int]] = {}
            for each in rows.tolist():
                if place := site(states[each]):
                    groups.setdefault(place, []).append(each)
            enough = [group for group in groups.values() if len(group) >= request.nodes]
            if enough:
                best = min(
                    enough,
                    key=lambda group: (len(group), [-int(score[each]) for each in group[: request.nodes]]),
                )
                return best[: request.nodes]
        return [int(each) for each in rows[: request.nodes]]

    def _grant(self, row: int, known: _Row, request: ResourceRequest) -> NodePlacement:
        """What the request gets on the node of `row`, which is known to fit."""
        wanted = request.accelerators
        name = self._nodes.states[row].name
        if not wanted.count:
            return NodePlacement(name)
        if wanted.mig_profile:
            choice = mig.choose(self._nodes.states[row], wanted, self._profiles)
            return NodePlacement(name, choice.grants if choice else ())
        if wanted.count == 1:
            columns = [int(known.first[row])]
        elif self._nodes.bonded[row] and (bond := self._bond(row, request)) is not None:
            columns = bond[2]
        else:
            rows = np.array([row])
            columns = self._policy.chosen(rows, request, self._nodes.eligible(rows, request))[0].tolist()
        memory = wanted.memory_mib if wanted.share_milli < WHOLE_DEVICE_MILLI else 0
        devices = self._nodes.devices[row]
        columns.sort()
        return NodePlacement(
            name, tuple(DeviceGrant(devices[column].uuid, wanted.share_milli, memory) for column in columns)
        )

    def _repartitioned(self, request: ResourceRequest) -> Placement | None:
        """A placement that changes MIG layouts: the fewest idle instances destroyed, the least lost."""
        options = []
        for row, state in enumerate(self._nodes.states):
            others = (each for each in filters.applying(request) if each is not filters.MIG)
            if any(each.reason(self._nodes.state(row), request) for each in others):
                continue
            choice = mig.choose(state, request.accelerators, self._profiles, repartition=True)
            if choice is not None:
                options.append((choice.destroyed, choice.loss, -int(self._peers.tie[row]), row, choice))
        if len(options) < request.nodes:
            return None
        options.sort(key=lambda option: option[:4])
        return Placement(
            tuple(
                NodePlacement(self._nodes.states[row].name, choice.grants, choice.repartitions)
                for _, _, _, row, choice in options[: request.nodes]
            )
        )

    def _move(self, placement: Placement, request: ResourceRequest, sign: int) -> None:
        done: list[NodePlacement] = []
        try:
            for part in placement.nodes:
                self._move_part(part, request, sign)
                done.append(part)
        except (KeyError, ValueError):
            for part in done:
                self._move_part(part, request, -sign)
            raise

    def _move_part(self, part: NodePlacement, request: ResourceRequest, sign: int) -> None:
        nodes = self._nodes
        if part.node not in nodes.index:
            raise ValueError(f"{part.node} is not in the snapshot")
        if part.repartitions:
            raise ValueError(f"{part.node}: change the MIG layout first, then update the snapshot")
        row = nodes.index[part.node]
        nodes.take(
            row,
            cpu_milli=sign * request.cpu_milli,
            memory_mib=sign * request.memory_mib,
            disk_mib=sign * request.disk_mib,
        )
        moved: list[DeviceGrant] = []
        try:
            for grant in part.devices:
                self._move_device(row, grant, sign)
                moved.append(grant)
        except ValueError:
            for grant in moved:
                self._move_device(row, grant, -sign)
            nodes.take(
                row,
                cpu_milli=-sign * request.cpu_milli,
                memory_mib=-sign * request.memory_mib,
                disk_mib=-sign * request.disk_mib,
            )
            raise
        self._changed(row)

    def _move_device(self, row: int, grant: DeviceGrant, sign: int) -> None:
        nodes = self._nodes
        column = nodes.columns[row].get(grant.uuid)
        if column is not None and not nodes.devices[row][column].unusable:
            nodes.take_device(row, column, sign * grant.milli, sign * grant.memory_mib)
        else:
            nodes.take_aside(row, grant.uuid, sign * grant.milli, sign * grant.memory_mib)

    def _changed(self, row: int) -> None:
        self._clock += 1
        self._touched[row] = self._clock
        self._policy.changed(row)
        self._peers.changed(row)


def check(request: ResourceRequest) -> None:
    """Raises ValueError for a request that no cluster could make sense of."""
    wanted = request.accelerators
    if min(request.cpu_milli, request.memory_mib, request.disk_mib, wanted.count, wanted.memory_mib) < 0:
        raise ValueError("a request cannot ask for less than nothing")
    if request.nodes < 1:
        raise ValueError("a request asks for at least one node")
    if not 1 <= wanted.share_milli <= WHOLE_DEVICE_MILLI:
        raise ValueError("the share of a device lies between 1 and 1000 milli-GPU")
    if wanted.mig_profile and wanted.share_milli != WHOLE_DEVICE_MILLI:
        raise ValueError("a MIG instance is handed out whole")
    if wanted.mig_profile and wanted.within is not Within.NODE:
        raise ValueError("MIG instances have no bond between them")


def _rack(node: NodeCapacity) -> tuple[str, ...]:
    return (node.block, node.rack) if node.rack else ()


def _block(node: NodeCapacity) -> tuple[str, ...]:
    return (node.block,) if node.block else ()
