"""The placement engine: a snapshot of nodes that answers requests, one after the other.

A decision looks at every node, but computes little: for each shape of request a row of scores is kept,
and only nodes that changed since the row was last used are scored again. The answer depends on the
snapshot, the mix and the policy alone; a `Cluster` that has been kept up to date and one that is built
anew from the same state decide the same.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import islice

import numpy as np

from portal.common.reasons.reason import Reason
from portal.scheduling.engine.codes import PlacementCode
from portal.scheduling.engine.placement import filters, mig
from portal.scheduling.engine.placement.arrays import Ints, NodeArrays, granted_mib
from portal.scheduling.engine.placement.filters import Filter
from portal.scheduling.engine.placement.mig import MigChoice
from portal.scheduling.engine.placement.mix import DEFAULT_MIX, RequestMix
from portal.scheduling.engine.placement.peers import TIE_BITS, Peers
from portal.scheduling.engine.placement.scoring import DEFAULT_POLICY, policy_named, scarcity
from portal.scheduling.engine.placement.scoring.base import LEVEL_BITS
from portal.scheduling.engine.placement.topology import Bond, tightest
from portal.scheduling.engine.placement.types import DeviceCapacity, NodeCapacity, Placed, Unplaceable
from provisioning.types import (
    WHOLE_DEVICE_MILLI,
    AcceleratorRequest,
    DeviceGrant,
    NodePlacement,
    Placement,
    ResourceRequest,
    Within,
)

_NEVER = -(1 << 62)
_MAX_ROWS = 1024
_MAX_EXPLAINED = 8
"""Of so many requests the reasons of all nodes are kept."""
_AT_ONCE = 1024
"""So many nodes are scored together: what is worked out on the way stays in the processor's cache."""
_WORTH_GROUPING = 2048
"""From so many nodes on, those that are alike are looked for and scored once."""
_LATELY = 256
"""So many changes are remembered one by one; for what was seen before, all nodes are looked through."""
_LARGEST_GROUP = 63
# From the highest bit: the bond between devices, no warning, how small the group is; below them the policy's
# level and what breaks ties. Together they stay below 2**62.
_GROUP_BITS = 6
_SOUND = 1 << _GROUP_BITS
_BOND_UNIT = _SOUND << 1
# What a choice of MIG instances costs, from the highest bit below _SOUND: steps of a slot lost to all
# profiles, then what has to be changed, then how empty the GPUs are.
_MIG_STEPS = 512
_MIG_LOSSES = 1 << 16


@dataclass(slots=True)
class _Row:
    """What is known about all nodes for one request: the score, and the device to take first.

    With `new_instances` the request may be given MIG instances that are yet to be made.
    """

    score: Ints
    first: Ints
    filters: tuple[Filter, ...]
    new_instances: bool = False
    seen: int = -1


@dataclass(slots=True)
class _Explained:
    """Why no node takes a request (None where one does), in the snapshot's order, as of `seen`."""

    reasons: list[Reason | None]
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
        self._rows: dict[tuple[ResourceRequest, bool], _Row] = {}
        self._explained: dict[ResourceRequest, _Explained] = {}
        self._clock = 0
        self._touched = np.zeros(len(nodes), np.int64)
        # The rows of the last changes, a change of the clock each, in their order.
        self._lately: deque[int] = deque(maxlen=_LATELY)
        # One array for all decisions: one of this size would be asked of the system anew each time.
        self._total = np.zeros(len(nodes), np.int64)
        self._bonded = bool(self._nodes.bonded.any())

    def weigh(self, mix: RequestMix) -> RequestMix:
        """The mix, with how scarce what each shape can use is here and now."""
        return mix.weighed(scarcity.measure(self._nodes, mix))

    def expect(self, mix: RequestMix) -> None:
        """Decide by another mix from now on; what is taken stays taken."""
        if mix == self._mix:
            return
        self._mix = mix
        self._profiles = mix.mig_profiles()
        self._policy = policy_named(self._policy_name, self._nodes, mix)
        self._rows.clear()

    def decide(self, request: ResourceRequest, *, repartition: bool = False) -> Placed | Unplaceable:
        """Where the request goes, or the reason of every node in the snapshot's order.

        With `repartition`, the placement may ask for another MIG layout of idle slots first, where a new
        instance stands better than an idle one, or there is none. Raises
        ValueError for a request that makes no sense, such as one with a negative amount.
        """
        found = self.find(request, repartition=repartition)
        return self.explain(request) if found is None else Placed(found)

    def find(self, request: ResourceRequest, *, repartition: bool = False) -> Placement | None:
        """Like `decide`, without the cost of reasons."""
        new = repartition and bool(request.accelerators.mig_profile and request.accelerators.count)
        row = self._rows.get((request, new))
        if row is None:
            row = self._new_row(request, new)
        if not len(self._nodes):
            return None
        self._refresh(row, request)
        if request.nodes == 1:
            score = np.add(row.score, self._peers.tie, out=self._total)
            best = int(score.argmax())
            if score[best] >= 0:
                return Placement((self._grant(best, row, request),))
        elif (chosen := self._several(row, request)) is not None:
            return Placement(tuple(self._grant(best, row, request) for best in chosen))
        return None

    def explain(self, request: ResourceRequest) -> Unplaceable:
        """Why the request goes nowhere, node by node in the snapshot's order."""
        nodes = self._nodes
        known = self._explained.pop(request, None)
        if known is None:
            known = _Explained([None] * len(nodes))
        # Kept in the order of their last use, with the reasons of nodes that have not changed since.
        self._explained[request] = known
        if len(self._explained) > _MAX_EXPLAINED:
            del self._explained[next(iter(self._explained))]
        applying = filters.applying(request)
        for row in self._changed_since(known.seen).tolist():
            state = nodes.state(row) if self._touched[row] else nodes.states[row]
            found = next((one for each in applying if (one := each.reason(state, request))), None)
            known.reasons[nodes.position[state.name]] = found
        known.seen = self._clock
        fitting = known.reasons.count(None)
        too_few = Reason(PlacementCode.NODES_SHORT, {"needed": request.nodes, "fitting": fitting})
        return Unplaceable(
            tuple((name, known.reasons[place] or too_few) for name, place in nodes.position.items())
        )

    def commit(self, placement: Placement, request: ResourceRequest) -> None:
        """Take what `placement` grants. Raises ValueError, and takes nothing, where it is not free."""
        self._move(placement, request, 1)

    def release(self, placement: Placement, request: ResourceRequest) -> None:
        """Give back what `commit` took. Raises ValueError where it was not taken."""
        self._move(placement, request, -1)

    def restore(self, placement: Placement, request: ResourceRequest) -> None:
        """Take again what `release` has just given back, as it was.

        A node that has become smaller has given out more than it has: nothing there is free, and what runs
        there can be imagined gone, and back. Raises ValueError where its devices have been taken since.
        """
        self._move(placement, request, 1, restored=True)

    def sharing(self, placement: Placement, request: ResourceRequest) -> Placement:
        """The devices of a placement, of which `request` takes its share and not all; node by node."""
        return Placement(tuple(self._sharing(part, request) for part in placement.nodes))

    def _sharing(self, part: NodePlacement, request: ResourceRequest) -> NodePlacement:
        devices = {device.uuid: device for device in self.node(part.node).devices}
        grants = tuple(_granted(devices[grant.uuid], request.accelerators) for grant in part.devices)
        return replace(part, devices=grants)

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

    def node(self, name: str) -> NodeCapacity:
        """One node as it is now; raises KeyError for one that is not in the snapshot."""
        row = self._nodes.index[name]
        return self._nodes.state(row) if self._touched[row] else self._nodes.states[row]

    def version(self, name: str) -> int:
        """Another number after each change of the node; raises KeyError for one not in the snapshot."""
        return int(self._touched[self._nodes.index[name]])

    def snapshot(self) -> list[NodeCapacity]:
        """All nodes as they are now, in the order in which they were given."""
        nodes = self._nodes
        found = [nodes.state(row) if self._touched[row] else nodes.states[row] for row in range(len(nodes))]
        return sorted(found, key=lambda state: nodes.position[state.name])

    def _new_row(self, request: ResourceRequest, new: bool) -> _Row:
        check(request)
        if len(self._rows) >= _MAX_ROWS:
            del self._rows[next(iter(self._rows))]
        count = len(self._nodes)
        applying = tuple(each for each in filters.applying(request) if not new or each is not filters.MIG)
        row = _Row(np.full(count, _NEVER, np.int64), np.zeros(count, np.int64), applying, new)
        self._rows[request, new] = row
        return row

    def _refresh(self, row: _Row, request: ResourceRequest) -> None:
        """Score the nodes again that changed since this row was last looked at."""
        if row.seen == self._clock:
            return
        rows = self._changed_since(row.seen)
        row.seen = self._clock
        row.score[rows] = _NEVER
        for each in row.filters:
            rows = rows[each.mask(self._nodes, rows, request)]
            if not len(rows):
                return
        if request.accelerators.mig_profile and request.accelerators.count:
            rows = rows[self._nodes.with_mig[rows]]
            choices = [
                mig.choose(
                    self._nodes.states[each],
                    request.accelerators,
                    self._profiles,
                    repartition=row.new_instances,
                )
                for each in rows.tolist()
            ]
            rows = rows[np.array([choice is not None for choice in choices], np.bool_)]
            levels = self._mig_levels([choice for choice in choices if choice is not None])
        else:
            first, twin = self._alike(rows)
            for begin in range(0, len(first), _AT_ONCE):
                self._score(row, first[begin : begin + _AT_ONCE], request)
            if twin is not None:
                row.score[rows], row.first[rows] = row.score[twin], row.first[twin]
            return
        row.score[rows] = levels << TIE_BITS

    def _alike(self, rows: Ints) -> tuple[Ints, Ints | None]:
        """One node of each kind, and for each of `rows` the one that is like it in all that is scored.

        None instead, and all of `rows`, where looking for equals is not worth it: for few nodes, and where
        bonds between devices tell equal ones apart.
        """
        if len(rows) < _WORTH_GROUPING or self._bonded:
            return rows, None
        contents = self._nodes.contents(rows)
        # Equal contents have equal sums; that unequal ones have not is compared.
        _, first, group = np.unique(
            contents @ _mixers(contents.shape[1]), return_index=True, return_inverse=True
        )
        twin = first[group]
        if not (contents == contents[twin]).all():
            return rows, None
        return rows[first], rows[twin]

    def _score(self, row: _Row, rows: Ints, request: ResourceRequest) -> None:
        """Score nodes that fit, but for those that hand out MIG instances."""
        eligible, sound = self._nodes.preferred(rows, request)
        levels, row.first[rows] = self._policy.levels(rows, request, eligible)
        raised = sound.astype(np.int64) * _SOUND
        if self._bonded and request.accelerators.count > 1:
            self._raise_bonded(raised, rows, request)
        row.score[rows] = (levels + (raised << LEVEL_BITS)) << TIE_BITS

    def _raise_bonded(self, raised: Ints, rows: Ints, request: ResourceRequest) -> None:
        """Raises nodes on which the devices would be bonded tightly, smallest sufficient group first."""
        for place, row in enumerate(rows.tolist()):
            if self._nodes.bonded[row] and (found := self._bond(row, request)) is not None:
                bond, size, columns = found
                devices = self._nodes.devices[row]
                raised[place] = (Bond.NODE - bond) * _BOND_UNIT
                raised[place] += _SOUND * (not any(devices[column].warned for column in columns))
                if bond is not Bond.NODE:
                    raised[place] += _LARGEST_GROUP - min(size, _LARGEST_GROUP)

    def _orders_devices(self, row: int) -> bool:
        """Whether more than the policy's preference tells the devices of the node apart."""
        return bool(self._nodes.bonded[row] or self._nodes.warned[row].any())

    def _bond(self, row: int, request: ResourceRequest) -> tuple[Bond, int, list[int]] | None:
        wanted = request.accelerators
        rows = np.array([row])
        eligible = self._nodes.eligible(rows, request)
        order = self._policy.preference(rows, eligible)[0].tolist()
        return tightest(self._nodes.devices[row], eligible[0], wanted.count, wanted.within, order.__getitem__)

    def _mig_levels(self, choices: Sequence[MigChoice]) -> Ints:
        """Levels by the growth of fragmentation on the GPUs' free slots, then changes, then fullness."""
        unit = max(sum(weight for _, weight in self._profiles), 1)
        levels = []
        for choice in choices:
            gain = _MIG_LOSSES // 2 - choice.loss * _MIG_STEPS // unit
            level = min(max(gain, 0), _MIG_LOSSES - 1)
            for many, bits in ((choice.destroyed, 3), (choice.created, 3), (choice.slots_free, 6)):
                most = (1 << bits) - 1
                level = (level << bits) | (most - min(many, most))
            levels.append((_SOUND << LEVEL_BITS) * (not choice.warned) + level)
        return np.array(levels, np.int64)

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
            choice = mig.choose(
                self._nodes.states[row], wanted, self._profiles, repartition=known.new_instances
            )
            return NodePlacement(name, choice.grants, choice.repartitions) if choice else NodePlacement(name)
        if wanted.count == 1:
            columns = [int(known.first[row])]
        elif self._orders_devices(row) and (bond := self._bond(row, request)) is not None:
            columns = bond[2]
        else:
            rows = np.array([row])
            columns = self._policy.chosen(rows, request, self._nodes.preferred(rows, request)[0])[0].tolist()
        devices = self._nodes.devices[row]
        columns.sort()
        return NodePlacement(name, tuple(_granted(devices[column], wanted) for column in columns))

    def _move(
        self, placement: Placement, request: ResourceRequest, sign: int, *, restored: bool = False
    ) -> None:
        done: list[NodePlacement] = []
        try:
            for part in placement.nodes:
                self._move_part(part, request, sign, restored)
                done.append(part)
        except (KeyError, ValueError):
            for part in done:
                # What has been given back a moment ago may be more than the node has.
                self._move_part(part, request, -sign, sign < 0)
            raise

    def _move_part(self, part: NodePlacement, request: ResourceRequest, sign: int, restored: bool) -> None:
        nodes = self._nodes
        if part.node not in nodes.index:
            raise ValueError(f"{part.node} is not in the snapshot")
        row = nodes.index[part.node]
        if part.repartitions:
            # A GPU whose layout changes is in nobody else's plan until the snapshot is updated.
            nodes.hold_gpus(row, [change.parent_uuid for change in part.repartitions], sign > 0)
        try:
            self._take_part(row, part, request, sign, restored)
        except ValueError:
            if part.repartitions:
                nodes.hold_gpus(row, [change.parent_uuid for change in part.repartitions], sign < 0)
            raise
        self._changed(row)

    def _take_part(
        self, row: int, part: NodePlacement, request: ResourceRequest, sign: int, restored: bool
    ) -> None:
        nodes = self._nodes
        nodes.take(
            row,
            cpu_milli=sign * request.cpu_milli,
            memory_mib=sign * request.memory_mib,
            disk_mib=sign * request.disk_mib,
            restored=restored,
        )
        moved: list[DeviceGrant] = []
        try:
            for grant in part.devices:
                self._move_device(row, grant, sign, restored)
                moved.append(grant)
        except ValueError:
            for grant in moved:
                self._move_device(row, grant, -sign, sign < 0)
            nodes.take(
                row,
                cpu_milli=-sign * request.cpu_milli,
                memory_mib=-sign * request.memory_mib,
                disk_mib=-sign * request.disk_mib,
                restored=sign < 0,
            )
            raise

    def _move_device(self, row: int, grant: DeviceGrant, sign: int, restored: bool) -> None:
        nodes = self._nodes
        column = nodes.columns[row].get(grant.uuid)
        if column is not None and not nodes.devices[row][column].unusable:
            nodes.take_device(row, column, sign * grant.milli, sign * grant.memory_mib, restored=restored)
        else:
            nodes.take_aside(row, grant.uuid, sign * grant.milli, sign * grant.memory_mib, restored=restored)

    def _changed_since(self, seen: int) -> Ints:
        """The rows that have changed after `seen`, ascending; all of them for what has never been seen."""
        back = self._clock - seen
        if back <= len(self._lately):
            return np.array(sorted(set(islice(reversed(self._lately), back))), np.int64)
        return (self._touched > seen).nonzero()[0]

    def _changed(self, row: int) -> None:
        self._clock += 1
        self._touched[row] = self._clock
        self._lately.append(row)
        self._policy.changed(row)
        self._peers.changed(row)


def _granted(device: DeviceCapacity, wanted: AcceleratorRequest) -> DeviceGrant:
    return DeviceGrant(device.uuid, wanted.share_milli, granted_mib(device, wanted))


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


@cache
def _mixers(count: int) -> Ints:
    """Odd factors without a pattern, the same each time."""
    chance = random.Random(count)
    return np.array([chance.getrandbits(62) | 1 for _ in range(count)], np.int64)


def _rack(node: NodeCapacity) -> tuple[str, ...]:
    return (node.block, node.rack) if node.rack else ()


def _block(node: NodeCapacity) -> tuple[str, ...]:
    return (node.block,) if node.block else ()
