"""Predicates: whether a node can take a request, and if not, why. One predicate per file.

Each module has the same three functions. `applies(request)`: whether the predicate is relevant; `mask(nodes,
rows, request)`: the result for many nodes at once; `reason(node, request)`: why one node fails, or None.
`mask` and `reason` agree. FILTERS is the order of evaluation: a node reports the first reason. Kubernetes
calls these filter plugins.
"""

from __future__ import annotations

from typing import Protocol

from portal.common.reasons.reason import Reason
from portal.scheduling.engine.placement.arrays import Bools, Ints, NodeArrays
from portal.scheduling.engine.placement.filters import (
    bonds,
    cpu,
    devices,
    disk,
    homes,
    labels,
    memory,
    mig,
    needs,
    usable,
)
from portal.scheduling.engine.placement.types import NodeCapacity
from provisioning.types import ResourceRequest


class Filter(Protocol):
    """The interface of a predicate."""

    def applies(self, request: ResourceRequest, /) -> bool: ...

    def mask(self, nodes: NodeArrays, rows: Ints, request: ResourceRequest, /) -> Bools: ...

    def reason(self, node: NodeCapacity, request: ResourceRequest, /) -> Reason | None: ...


MIG: Filter = mig
FILTERS: tuple[Filter, ...] = (homes, usable, labels, needs, cpu, memory, disk, devices, bonds, MIG)


def applying(request: ResourceRequest) -> tuple[Filter, ...]:
    """Return the filters that are relevant to this request, in order of evaluation."""
    return tuple(rule for rule in FILTERS if rule.applies(request))


def reason(node: NodeCapacity, request: ResourceRequest) -> Reason | None:
    """Return the first reason why the node does not fit, or None."""
    return next((rejection for rule in applying(request) if (rejection := rule.reason(node, request))), None)
