"""Breaks ties between nodes of equal level: prefers the nodes that are fullest compared to their peers.

Peers are nodes of the same build. In each group the fullest node has the highest value and the emptiest the
lowest, evenly spaced: choosing the highest leaves the same part of every group untouched. A fixed order of
nodes would pack equally well, but depend on names; "least free" alone would use up small nodes first. Peers
with equal contents are interchangeable, so their order does not matter.
"""

from __future__ import annotations

from bisect import bisect_left, insort

import numpy as np

from portal.scheduling.engine.placement.arrays import Ints, NodeArrays

_STEPS = 1 << 16
_GROUP_BITS = 14
TIE_BITS = 16 + _GROUP_BITS + 1


class Peers:
    """Tie-break values: `tie` has one per node, below 2**TIE_BITS. Call `changed` after each change."""

    def __init__(self, nodes: NodeArrays) -> None:
        self._nodes = nodes
        self.tie: Ints = np.zeros(len(nodes), np.int64)
        self._key = [(nodes.usage_key(row), row) for row in range(len(nodes))]
        members: dict[int, list[int]] = {}
        for row, group in enumerate(nodes.peer_group):
            members.setdefault(group, []).append(row)
        self._sorted: dict[int, list[tuple[int, int]]] = {}
        self._rows: dict[int, Ints] = {}
        self._values: dict[int, Ints] = {}
        for group, rows in members.items():
            keys = sorted(self._key[row] for row in rows)
            count = len(rows)
            steps = _STEPS - (2 * np.arange(count, dtype=np.int64) + 1) * _STEPS // (2 * count)
            self._sorted[group] = keys
            self._rows[group] = np.array([row for _, row in keys], np.int64)
            self._values[group] = (steps << _GROUP_BITS) | (group & ((1 << _GROUP_BITS) - 1))
            self.tie[self._rows[group]] = self._values[group]

    def changed(self, row: int) -> None:
        """Move the node to its new position among its peers."""
        key = (self._nodes.usage_key(row), row)
        group = self._nodes.peer_group[row]
        keys, rows = self._sorted[group], self._rows[group]
        old = bisect_left(keys, self._key[row])
        del keys[old]
        new = bisect_left(keys, key)
        insort(keys, key)
        self._key[row] = key
        if old == new:
            return
        if old < new:
            rows[old:new] = rows[old + 1 : new + 1]
        else:
            rows[new + 1 : old + 1] = rows[new:old].copy()
        rows[new] = row
        low, high = min(old, new), max(old, new) + 1
        self.tie[rows[low:high]] = self._values[group][low:high]
