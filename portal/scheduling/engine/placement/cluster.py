"""The placement engine: a snapshot of nodes that places requests one after the other.

Every decision considers all nodes, but is cheap: scores are cached per request shape, and only nodes that
have changed since are scored again. The result depends only on the snapshot, the mix and the policy: an
updated `Cluster` decides like one rebuilt from the same state.
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
from portal.scheduling.engine.placement.scoring.base import LEVEL_BITS, NO_GAIN
from portal.scheduling.engine.placement.topology import Bond, tightest_group
from portal.scheduling.engine.placement.types import (
    Candidate,
    DeviceCapacity,
    ModelPreference,
    NodeCapacity,
    Placed,
    Unplaceable,
)
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
"""Number of requests for which the reasons of all nodes are cached."""
_BATCH_ROWS = 1024
"""Number of nodes scored per batch, so that intermediate results stay in the processor's cache."""
_MIN_ROWS_TO_GROUP = 2048
"""Minimum number of nodes at which identical nodes are grouped and scored once."""
_MAX_REMEMBERED_CHANGES = 256
"""Number of changes that are remembered. Older score rows are refreshed by a scan of all nodes."""
_LARGEST_GROUP = 63
# From the highest bit: the bond between devices, no warning, small size of the group, the policy's level, and
# the tie-break. Together they stay below 2**62.
_GROUP_BITS = 6
_NO_WARNING_UNIT = 1 << _GROUP_BITS
_BOND_UNIT = _NO_WARNING_UNIT << 1
# The cost of MIG instances, from the highest bit below _SOUND: slot fractions lost to all profiles, layout
# changes, emptiness of the GPUs.
_MIG_STEPS = 512
_MIG_LOSSES = 1 << 16
_LEVEL_MASK = (1 << LEVEL_BITS) - 1
_VALUE_BITS = 6
_HOMES_FILL_NODE = 32
"""Levels that a node loses for a new home if its homes need the whole node: the levels of two GPUs."""


@dataclass(slots=True)
class _RequestScores:
    """Scores of all nodes for one request, and the device to take first.

    `by_layout`: the request gets MIG instances, which the policy does not score. `new_instances`: it may get
    instances that do not exist yet.
    """

    score: Ints
    first: Ints
    filters: tuple[Filter, ...]
    by_layout: bool
    new_instances: bool = False
    seen: int = -1


@dataclass(slots=True)
class _Explained:
    """Why each node rejects a request (None: it fits), in snapshot order, as of `seen`."""

    reasons: list[Reason | None]
    seen: int = -1


class Cluster:
    """Nodes and their free capacity. Not thread-safe."""

    def __init__(
        self, nodes: Sequence[NodeCapacity], *, policy: str = DEFAULT_POLICY, mix: RequestMix = DEFAULT_MIX
    ) -> None:
        """Raise ValueError for an unknown policy or a duplicate node name."""
        self._policy_name = policy
        self._mix = mix
        self._profiles = mix.mig_profiles()
        self._build(nodes)

    def _build(self, nodes: Sequence[NodeCapacity]) -> None:
        self._nodes = NodeArrays(nodes)
        self._policy = policy_named(self._policy_name, self._nodes, self._mix)
        self._peers = Peers(self._nodes)
        self._rows: dict[tuple[ResourceRequest, bool], _RequestScores] = {}
        self._explained: dict[ResourceRequest, _Explained] = {}
        self._clock = 0
        self._touched = np.zeros(len(nodes), np.int64)
        # Rows of the latest changes in order; each advances the clock by one.
        self._lately: deque[int] = deque(maxlen=_MAX_REMEMBERED_CHANGES)
        # Reused by all decisions: allocating an array of this size each time is slow.
        self._total = np.zeros(len(nodes), np.int64)
        self._bonded = bool(self._nodes.bonded.any())

    def weight_by_scarcity(self, mix: RequestMix) -> RequestMix:
        """Return the mix, weighted by the current scarcity of the capacity that each shape can use."""
        return weight_by_scarcity([(self, mix)])[0]

    def set_mix(self, mix: RequestMix) -> None:
        """Replace the mix for later decisions. Committed placements stay unchanged."""
        if mix == self._mix:
            return
        self._mix = mix
        self._profiles = mix.mig_profiles()
        self._policy = policy_named(self._policy_name, self._nodes, mix)
        self._rows.clear()

    def decide(self, request: ResourceRequest, *, repartition: bool = False) -> Placed | Unplaceable:
        """Return the placement of the request, or the reason of every node in snapshot order.

        With `repartition`, the placement may first change the MIG layout of idle slots, if there is no idle
        instance or a new one fits better. Raises ValueError for an invalid request, such as one with a
        negative amount.
        """
        placement = self.find(request, repartition=repartition)
        return self.explain(request) if placement is None else Placed(placement)

    def find(
        self, request: ResourceRequest, *, repartition: bool = False, new_home: bool = False
    ) -> Placement | None:
        """Return the placement like `decide`, or None, without computing reasons.

        With `new_home`, the request brings a home that stays on the node.
        """
        row = self._scores(request, repartition)
        chosen = self._chosen_rows(row, request, None, new_home)
        return Placement(tuple(self._grant(best, row, request) for best in chosen)) if chosen else None

    def best(
        self,
        request: ResourceRequest,
        *,
        repartition: bool = False,
        preference: ModelPreference | None = None,
        new_home: bool = False,
    ) -> Candidate | None:
        """Return the best place with its rank among clusters, or None.

        `preference` compares the models of a request that may get several; such a request has one node. With
        `new_home`, the request brings a home that stays on the node.
        """
        row = self._scores(request, repartition)
        chosen = self._chosen_rows(row, request, preference, new_home)
        if not chosen:
            return None
        placement = Placement(tuple(self._grant(best, row, request) for best in chosen))
        level = min(int(row.score[best]) for best in chosen) >> TIE_BITS
        if not (self._policy.gains or row.by_layout):
            # This policy's levels do not measure gains.
            level = level >> LEVEL_BITS << LEVEL_BITS | NO_GAIN
        penalty = int(self._home_levels(row)[chosen[0]]) if new_home and request.nodes == 1 else 0
        model, value_rank = "", 0
        if request.accelerators.count and not row.by_layout:
            first = chosen[0]
            model = self._nodes.devices[first][int(row.first[first])].model
            if preference is not None:
                penalty += preference.penalty.get(model, 0)
                value_rank = preference.value_rank.get(model, 0)
        level -= min(penalty, level & _LEVEL_MASK)
        return Candidate(placement, (level, -value_rank), model)

    @property
    def mixes_models(self) -> bool:
        """Whether a node has devices of several models or sizes."""
        return not self._nodes.uniform

    def _scores(self, request: ResourceRequest, repartition: bool) -> _RequestScores:
        """Return the current scores of all nodes."""
        new = repartition and bool(request.accelerators.mig_profile and request.accelerators.count)
        row = self._rows.get((request, new))
        if row is None:
            row = self._new_row(request, new)
        if len(self._nodes):
            self._refresh(row, request)
        return row

    def _chosen_rows(
        self,
        row: _RequestScores,
        request: ResourceRequest,
        preference: ModelPreference | None,
        new_home: bool,
    ) -> list[int] | None:
        if not len(self._nodes):
            return None
        if request.nodes != 1:
            return self._best_rows(row, request)
        if preference is not None or new_home:
            return self._best_by_preference(row, preference, new_home)
        score = np.add(row.score, self._peers.tie, out=self._total)
        best = int(score.argmax())
        return [best] if score[best] >= 0 else None

    def _best_by_preference(
        self, row: _RequestScores, preference: ModelPreference | None, new_home: bool
    ) -> list[int] | None:
        """Return the best node by its level, minus the cost of its model and its homes.

        On a tie, the least valuable model wins and, for a new home, the smallest home load.
        """
        nodes = self._nodes
        level = row.score >> TIE_BITS
        penalty: Ints = np.zeros(len(nodes), np.int64)
        value_rank: Ints = penalty
        if preference is not None:
            models = [model for _, model in nodes.classes] or [""]
            kinds = np.take_along_axis(nodes.device_class, row.first[:, None], axis=1)[:, 0]
            penalty = np.array([preference.penalty.get(model, 0) for model in models], np.int64)[kinds]
            value_rank = np.array([preference.value_rank.get(model, 0) for model in models], np.int64)[kinds]
        if new_home:
            penalty = penalty + self._home_levels(row)
        rank = level - np.minimum(penalty, level & _LEVEL_MASK)
        rank <<= _VALUE_BITS
        rank -= value_rank
        rank[row.score < 0] = _NEVER
        most = rank.max()
        if most == _NEVER:
            return None
        best = rank == most
        if new_home:
            best &= nodes.home_load == nodes.home_load[best].min()
        return [int(np.where(best, self._peers.tie, -1).argmax())]

    def _home_levels(self, row: _RequestScores) -> Ints:
        """Return how many levels each node loses for a new home; 0 if levels do not measure gains."""
        if row.by_layout or not self._policy.gains:
            return np.zeros(len(self._nodes), np.int64)
        levels: Ints = self._nodes.home_load * _HOMES_FILL_NODE // 1000
        return levels

    def explain(self, request: ResourceRequest) -> Unplaceable:
        """Return why each node rejects the request, in snapshot order."""
        nodes = self._nodes
        explained = self._explained.pop(request, None)
        if explained is None:
            explained = _Explained([None] * len(nodes))
        # In order of last use, with the reasons of nodes that have not changed since.
        self._explained[request] = explained
        if len(self._explained) > _MAX_EXPLAINED:
            del self._explained[next(iter(self._explained))]
        applying = filters.applying(request)
        for row in self._changed_since(explained.seen).tolist():
            state = nodes.state(row) if self._touched[row] else nodes.states[row]
            reason = next(
                (
                    first_reason
                    for node_filter in applying
                    if (first_reason := node_filter.reason(state, request))
                ),
                None,
            )
            explained.reasons[nodes.position[state.name]] = reason
        explained.seen = self._clock
        fitting = explained.reasons.count(None)
        too_few = Reason(PlacementCode.NODES_SHORT, {"needed": request.nodes, "fitting": fitting})
        return Unplaceable(
            tuple((name, explained.reasons[place] or too_few) for name, place in nodes.position.items())
        )

    def commit(self, placement: Placement, request: ResourceRequest) -> None:
        """Take the capacity that `placement` grants.

        Raises ValueError and takes nothing if it is not free.
        """
        self._move(placement, request, 1)

    def release(self, placement: Placement, request: ResourceRequest) -> None:
        """Give back what `commit` took. Raises ValueError if it was not taken."""
        self._move(placement, request, -1)

    def restore(self, placement: Placement, request: ResourceRequest) -> None:
        """Take again what `release` has just given back.

        A node that has shrunk may have more allocated than it has. Nothing is free there, but a simulation
        can still release and restore its workloads. Raises ValueError if its devices have been taken since.
        """
        self._move(placement, request, 1, restored=True)

    def take_home(self, name: str, gpu_milli: int, cpu_milli: int) -> None:
        """Add the average use of a home's owner to a node (or subtract it, if negative).

        Raises KeyError if the node is not in the snapshot.
        """
        row = self._nodes.index[name]
        self._nodes.take_home(row, gpu_milli, cpu_milli)

    def with_requested_share(self, placement: Placement, request: ResourceRequest) -> Placement:
        """Return the placement with device grants reduced to the share that `request` takes."""
        return Placement(tuple(self._place_share(part, request) for part in placement.nodes))

    def _place_share(self, part: NodePlacement, request: ResourceRequest) -> NodePlacement:
        devices = {device.uuid: device for device in self.node(part.node).devices}
        grants = tuple(_device_grant(devices[grant.uuid], request.accelerators) for grant in part.devices)
        return replace(part, devices=grants)

    def update(self, node: NodeCapacity) -> None:
        """Replace the state of one node. Raises KeyError if it is not in the snapshot."""
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
        """Return the current state of one node. Raises KeyError if it is not in the snapshot."""
        row = self._nodes.index[name]
        return self._nodes.state(row) if self._touched[row] else self._nodes.states[row]

    def version(self, name: str) -> int:
        """Return a number that changes with the node. Raises KeyError if it is not in the snapshot."""
        return int(self._touched[self._nodes.index[name]])

    def snapshot(self) -> list[NodeCapacity]:
        """Return the current state of all nodes, in their original order."""
        nodes = self._nodes
        states = [nodes.state(row) if self._touched[row] else nodes.states[row] for row in range(len(nodes))]
        return sorted(states, key=lambda state: nodes.position[state.name])

    def _new_row(self, request: ResourceRequest, new: bool) -> _RequestScores:
        check(request)
        if len(self._rows) >= _MAX_ROWS:
            del self._rows[next(iter(self._rows))]
        count = len(self._nodes)
        applying = tuple(
            node_filter
            for node_filter in filters.applying(request)
            if not new or node_filter is not filters.MIG
        )
        row = _RequestScores(
            np.full(count, _NEVER, np.int64),
            np.zeros(count, np.int64),
            applying,
            bool(request.accelerators.mig_profile and request.accelerators.count),
            new,
        )
        self._rows[request, new] = row
        return row

    def _refresh(self, row: _RequestScores, request: ResourceRequest) -> None:
        """Score the nodes again that changed since the row was last used."""
        if row.seen == self._clock:
            return
        rows = self._changed_since(row.seen)
        row.seen = self._clock
        row.score[rows] = _NEVER
        for node_filter in row.filters:
            rows = rows[node_filter.mask(self._nodes, rows, request)]
            if not len(rows):
                return
        if row.by_layout:
            rows = rows[self._nodes.with_mig[rows]]
            choices = [
                mig.choose(
                    self._nodes.states[node],
                    request.accelerators,
                    self._profiles,
                    repartition=row.new_instances,
                )
                for node in rows.tolist()
            ]
            rows = rows[np.array([choice is not None for choice in choices], np.bool_)]
            levels = self._mig_levels([choice for choice in choices if choice is not None])
        else:
            first, twin = self._representatives(rows)
            for begin in range(0, len(first), _BATCH_ROWS):
                self._score(row, first[begin : begin + _BATCH_ROWS], request)
            if twin is not None:
                row.score[rows], row.first[rows] = row.score[twin], row.first[twin]
            return
        row.score[rows] = levels << TIE_BITS

    def _representatives(self, rows: Ints) -> tuple[Ints, Ints | None]:
        """Return one node of each kind, and for each of `rows` its representative.

        Returns all of `rows` and None if grouping is not worth its cost: for few nodes, or if bonds between
        devices distinguish otherwise identical nodes.
        """
        if len(rows) < _MIN_ROWS_TO_GROUP or self._bonded:
            return rows, None
        contents = self._nodes.contents(rows)
        # Equal contents have equal sums; the comparison below rules out collisions.
        _, first, group = np.unique(
            contents @ _hash_factors(contents.shape[1]), return_index=True, return_inverse=True
        )
        twin = first[group]
        if not (contents == contents[twin]).all():
            return rows, None
        return rows[first], rows[twin]

    def _score(self, row: _RequestScores, rows: Ints, request: ResourceRequest) -> None:
        """Score nodes that fit, except those that grant MIG instances."""
        eligible, healthy = self._nodes.preferred(rows, request)
        levels, row.first[rows] = self._policy.levels(rows, request, eligible)
        raised = healthy.astype(np.int64) * _NO_WARNING_UNIT
        if self._bonded and request.accelerators.count > 1:
            self._raise_bonded(raised, rows, request)
        row.score[rows] = (levels + (raised << LEVEL_BITS)) << TIE_BITS

    def _raise_bonded(self, raised: Ints, rows: Ints, request: ResourceRequest) -> None:
        """Raise the scores of nodes with tightly bonded devices, most for the smallest sufficient group."""
        for place, row in enumerate(rows.tolist()):
            if self._nodes.bonded[row] and (bonded := self._bond(row, request)) is not None:
                bond, size, columns = bonded
                devices = self._nodes.devices[row]
                raised[place] = (Bond.NODE - bond) * _BOND_UNIT
                raised[place] += _NO_WARNING_UNIT * (not any(devices[column].warned for column in columns))
                if bond is not Bond.NODE:
                    raised[place] += _LARGEST_GROUP - min(size, _LARGEST_GROUP)

    def _orders_devices(self, row: int) -> bool:
        """Return whether bonds or warnings, besides the policy, distinguish the devices of the node."""
        return bool(self._nodes.bonded[row] or self._nodes.warned[row].any())

    def _bond(self, row: int, request: ResourceRequest) -> tuple[Bond, int, list[int]] | None:
        accelerators = request.accelerators
        rows = np.array([row])
        eligible = self._nodes.eligible(rows, request)
        order = self._policy.preference(rows, eligible)[0].tolist()
        return tightest_group(
            self._nodes.devices[row], eligible[0], accelerators.count, accelerators.within, order.__getitem__
        )

    def _mig_levels(self, choices: Sequence[MigChoice]) -> Ints:
        """Rank choices by growth of fragmentation on the GPUs' free slots, then changes, then fullness."""
        unit = max(sum(weight for _, weight in self._profiles), 1)
        levels = []
        for choice in choices:
            gain = _MIG_LOSSES // 2 - choice.loss * _MIG_STEPS // unit
            level = min(max(gain, 0), _MIG_LOSSES - 1)
            for many, bits in ((choice.destroyed, 3), (choice.created, 3), (choice.slots_free, 6)):
                most = (1 << bits) - 1
                level = (level << bits) | (most - min(many, most))
            levels.append((_NO_WARNING_UNIT << LEVEL_BITS) * (not choice.warned) + level)
        return np.array(levels, np.int64)

    def _best_rows(self, row: _RequestScores, request: ResourceRequest) -> list[int] | None:
        """Return the best rows for a multi-node request, close together if racks and blocks are known."""
        score = row.score + self._peers.tie
        rows = np.flatnonzero(score >= 0)
        if len(rows) < request.nodes:
            return None
        rows = rows[np.argsort(-score[rows], kind="stable")]
        states = self._nodes.states
        for site in (_rack, _block):
            groups: dict[tuple[str, ...], list[int]] = {}
            for node in rows.tolist():
                if place := site(states[node]):
                    groups.setdefault(place, []).append(node)
            enough = [group for group in groups.values() if len(group) >= request.nodes]
            if enough:
                best = min(
                    enough,
                    key=lambda group: (len(group), [-int(score[node]) for node in group[: request.nodes]]),
                )
                return best[: request.nodes]
        return [int(node) for node in rows[: request.nodes]]

    def _grant(self, row: int, scores: _RequestScores, request: ResourceRequest) -> NodePlacement:
        """Return the request's allocation on the node of `row`. The request must fit."""
        accelerators = request.accelerators
        name = self._nodes.states[row].name
        if not accelerators.count:
            return NodePlacement(name)
        if accelerators.mig_profile:
            choice = mig.choose(
                self._nodes.states[row], accelerators, self._profiles, repartition=scores.new_instances
            )
            return NodePlacement(name, choice.grants, choice.repartitions) if choice else NodePlacement(name)
        if accelerators.count == 1:
            columns = [int(scores.first[row])]
        elif self._orders_devices(row) and (bond := self._bond(row, request)) is not None:
            columns = bond[2]
        else:
            rows = np.array([row])
            columns = self._policy.chosen(rows, request, self._nodes.preferred(rows, request)[0])[0].tolist()
        devices = self._nodes.devices[row]
        columns.sort()
        return NodePlacement(name, tuple(_device_grant(devices[column], accelerators) for column in columns))

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
                # The amount just released may exceed the size of the node.
                self._move_part(part, request, -sign, sign < 0)
            raise

    def _move_part(self, part: NodePlacement, request: ResourceRequest, sign: int, restored: bool) -> None:
        nodes = self._nodes
        if part.node not in nodes.index:
            raise ValueError(f"{part.node} is not in the snapshot")
        row = nodes.index[part.node]
        if part.repartitions:
            # A GPU whose layout changes takes no other work until the snapshot is updated.
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
            nodes.take_outside_arrays(
                row, grant.uuid, sign * grant.milli, sign * grant.memory_mib, restored=restored
            )

    def _changed_since(self, seen: int) -> Ints:
        """Return the rows changed after `seen`, ascending; all rows if never seen."""
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


def _device_grant(device: DeviceCapacity, accelerators: AcceleratorRequest) -> DeviceGrant:
    return DeviceGrant(device.uuid, accelerators.share_milli, granted_mib(device, accelerators))


def check(request: ResourceRequest) -> None:
    """Raise ValueError for an invalid request."""
    accelerators = request.accelerators
    if (
        min(
            request.cpu_milli,
            request.memory_mib,
            request.disk_mib,
            accelerators.count,
            accelerators.memory_mib,
        )
        < 0
    ):
        raise ValueError("a request cannot ask for less than nothing")
    if request.nodes < 1:
        raise ValueError("a request asks for at least one node")
    if not 1 <= accelerators.share_milli <= WHOLE_DEVICE_MILLI:
        raise ValueError("the share of a device lies between 1 and 1000 milli-GPU")
    if accelerators.mig_profile and accelerators.share_milli != WHOLE_DEVICE_MILLI:
        raise ValueError("a MIG instance is handed out whole")
    if accelerators.mig_profile and accelerators.within is not Within.NODE:
        raise ValueError("MIG instances have no bond between them")


@cache
def _hash_factors(count: int) -> Ints:
    """Return pseudo-random odd factors, the same on each call."""
    chance = random.Random(count)
    return np.array([chance.getrandbits(62) | 1 for _ in range(count)], np.int64)


def _rack(node: NodeCapacity) -> tuple[str, ...]:
    return (node.block, node.rack) if node.rack else ()


def _block(node: NodeCapacity) -> tuple[str, ...]:
    return (node.block,) if node.block else ()


def weight_by_scarcity(clusters: Sequence[tuple[Cluster, RequestMix]]) -> list[RequestMix]:
    """Return the mix of each cluster, weighted by the scarcity over all clusters that expect a shape."""
    measured = scarcity.measure([(cluster._nodes, mix) for cluster, mix in clusters])
    return [mix.with_scarcity(scarcities) for (_, mix), scarcities in zip(clusters, measured, strict=True)]
