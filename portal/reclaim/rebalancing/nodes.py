"""Size, allocations and spare capacity of nodes."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Annotated, Any
from uuid import UUID

import msgspec
from django.db.models import Sum

from portal.fleet.inventory.models import Allocation, Node
from portal.reclaim.engine.placement_health import UNKNOWN_HEADROOM, Headroom
from provisioning.types import HEADROOM, LimitedResource

MAX_REPORT_AGE = timedelta(minutes=5)
"""Maximum age of a node's report."""
Percent = Annotated[float, msgspec.Meta(ge=0, le=100)]


class _HeadroomReport(msgspec.Struct):
    """The `HEADROOM` part of a node's facts."""

    watched_s: Annotated[int, msgspec.Meta(ge=0)] | None = None
    cores: Annotated[int, msgspec.Meta(ge=1)] | None = None
    runnable: Annotated[float, msgspec.Meta(ge=0, le=1e7)] | None = None
    cpu_idle: Percent | None = None
    cpu_waited: Percent | None = None
    memory_left: Percent | None = None
    memory_stalled: Percent | None = None


@dataclass(frozen=True, slots=True)
class NodeView:
    """The size of a node, and the amounts allocated on it."""

    cpu_milli: int
    cpu_granted_milli: int
    memory_mib: int
    memory_granted_mib: int
    headroom: Headroom = UNKNOWN_HEADROOM


def nodes_of_all(now: datetime) -> dict[tuple[UUID, str], NodeView]:
    """Return the nodes of all pools; two queries."""
    granted = {
        node: (cpu, memory)
        for node, cpu, memory in Allocation.objects.filter(released_at=None)
        .order_by()
        .values_list("node_id")
        .annotate(Sum("cpu_milli"), Sum("memory_mib"))
    }
    rows = Node.objects.filter(pool__deleted_at=None).order_by()
    return {
        (pool, name): NodeView(
            cpu,
            granted.get(pk, (0, 0))[0],
            memory,
            granted.get(pk, (0, 0))[1],
            _headroom(report, limited)
            if report and online and seen_at and now - seen_at <= MAX_REPORT_AGE
            else UNKNOWN_HEADROOM,
        )
        for pk, pool, name, cpu, memory, report, limited, online, seen_at in rows.values_list(
            *("pk", "pool_id", "name", "cpu_milli", "memory_mib"),
            *(f"facts__{HEADROOM}", "limited", "online", "seen_at"),
        )
    }


def _headroom(report: Any, limited: Any) -> Headroom:
    """Return a node's reported spare capacity; empty if any figure is invalid."""
    try:
        seen = msgspec.convert(report, _HeadroomReport)
    except msgspec.ValidationError:
        return UNKNOWN_HEADROOM
    return Headroom(
        seen.watched_s,
        seen.cores,
        seen.runnable,
        seen.cpu_idle,
        seen.cpu_waited,
        LimitedResource.CPU in limited,
        seen.memory_left,
        seen.memory_stalled,
    )
