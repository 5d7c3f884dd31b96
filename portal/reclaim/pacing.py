"""Stores the pace of work and where it was best, in one small row per workspace that reports it.

Rows are written only after relevant changes.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

import msgspec
from django.db.models import F

from portal.common.formatting import format_reading
from portal.fleet.inventory.models import AllocatedDevice, Allocation
from portal.reclaim.engine.pace import SLOW_FOR_S, Location, Pace, has_to_be_written, slow_work, update_paces
from portal.reclaim.models import WorkPace
from portal.workspaces.lifecycle import State
from portal.workspaces.models import Workspace

AT_ONCE = 500
UPDATED = ("generation", "paces", "slow_since", "observed_at")
_encode = msgspec.json.Encoder(order="sorted").encode
_decode = msgspec.json.Decoder(dict[str, Pace]).decode


@dataclass(frozen=True, slots=True)
class ReportedRates:
    """The rates that an agent reported for a start at `at_s`, per second by metric."""

    workspace_id: UUID
    generation: int
    at_s: float
    rates: Mapping[str, float]


def parse_paces(text: str) -> dict[str, Pace]:
    """Parse the stored paces; empty if malformed."""
    try:
        return _decode(text)
    except msgspec.MsgspecError:
        return {}


def record_rates(reports: Sequence[ReportedRates]) -> int:
    """Store reported rates. Returns the number of rows written. No query without reports."""
    return sum(_record_rates(reports[first : first + AT_ONCE]) for first in range(0, len(reports), AT_ONCE))


def _record_rates(reports: Sequence[ReportedRates]) -> int:
    rows = WorkPace.objects.filter(workspace__in=[report.workspace_id for report in reports])
    rows_by_pk = {
        pk: (generation, parse_paces(text))
        for pk, generation, text in rows.values_list("workspace_id", "generation", "paces")
    }
    # The placement of a running start does not change.
    pairs = {
        (pk, generation): max(paces.values(), key=lambda pace: pace.at_s).place
        for pk, (generation, paces) in rows_by_pk.items()
        if paces
    }
    fresh = [report for report in reports if (report.workspace_id, report.generation) not in pairs]
    places = pairs | _locations(fresh) if fresh else pairs
    changed = []
    for report in reports:
        generation, before = rows_by_pk.get(report.workspace_id, (-1, {}))
        place = places.get((report.workspace_id, report.generation))
        if place is None:
            continue
        after = update_paces(before, report.rates, place, report.at_s)
        if generation != report.generation or has_to_be_written(before, after):
            slow = [pace.slow_since_s for pace in after.values() if pace.slow_since_s is not None]
            changed.append(
                WorkPace(
                    workspace_id=report.workspace_id,
                    generation=report.generation,
                    paces=_encode(after).decode(),
                    slow_since=datetime.fromtimestamp(min(slow), UTC) if slow else None,
                    observed_at=datetime.fromtimestamp(report.at_s, UTC),
                )
            )
    # A workspace may have been deleted since it was read.
    existing = set(
        Workspace.objects.filter(pk__in=[row.workspace_id for row in changed]).values_list("pk", flat=True)
    )
    WorkPace.objects.bulk_create(
        [row for row in changed if row.workspace_id in existing],
        update_conflicts=True,
        unique_fields=["workspace"],
        update_fields=list(UPDATED),
    )
    return len(changed)


def _locations(reports: Sequence[ReportedRates]) -> dict[tuple[UUID, int], Location]:
    """Return the placements of single-node starts by (workspace, generation); two queries."""
    rows = Allocation.objects.filter(
        workspace__in=[report.workspace_id for report in reports], released_at=None
    ).values_list("pk", "workspace_id", "generation", "node__name", "cpu_milli", "memory_mib")
    rows_by_key: dict[tuple[UUID, int], list[Any]] = {}
    for row in rows:
        rows_by_key.setdefault((row[1], row[2]), []).append(row)
    single = {key: allocations[0] for key, allocations in rows_by_key.items() if len(allocations) == 1}
    devices: dict[int, list[tuple[str, str, int, int]]] = {}
    parts = AllocatedDevice.objects.filter(allocation__in=[row[0] for row in single.values()], active=True)
    for allocation, uuid, model, milli, memory in parts.values_list(
        "allocation_id", "device__uuid", "device__model", "milli", "memory_mib"
    ):
        devices.setdefault(allocation, []).append((uuid, model, milli, memory))
    return {
        key: Location(
            node,
            frozenset(part[0] for part in devices.get(pk, ())),
            _kind(cpu, memory, sorted(part[1:] for part in devices.get(pk, ()))),
        )
        for key, (pk, _workspace, _generation, node, cpu, memory) in single.items()
    }


def _kind(*amounts: object) -> str:
    return hashlib.sha256(repr(amounts).encode()).hexdigest()[:32]


def slow_workspaces(now: datetime) -> dict[UUID, tuple[str, Pace]]:
    """Return running workspaces whose work has been slower than elsewhere for long enough; one query."""
    now_s = now.timestamp()
    rows = WorkPace.objects.filter(
        slow_since__lte=datetime.fromtimestamp(now_s - SLOW_FOR_S, UTC),
        workspace__state=State.RUNNING,
        workspace__generation=F("generation"),
    ).values_list("workspace_id", "paces")
    return {pk: slowest for pk, text in rows if (slowest := slow_work(parse_paces(text), now_s)) is not None}


@dataclass(frozen=True, slots=True)
class Progress:
    """The current pace of a workspace: `rate` per second, the best here and elsewhere, and the best node.

    `percent` is relative to the best elsewhere; None if unknown.
    """

    name: str
    rate: float
    best: float | None
    best_elsewhere: float | None
    best_node: str
    percent: int | None

    @property
    def rate_text(self) -> str:
        return format_reading(self.rate)

    @property
    def elsewhere_text(self) -> str:
        return format_reading(self.best_elsewhere) if self.best_elsewhere is not None else ""


def progress_of(workspace: Workspace) -> list[Progress]:
    """Return the reported pace of a running workspace by metric. The caller checks visibility."""
    rates = workspace.status.activity.get("progress") if workspace.state == State.RUNNING else None
    if not isinstance(rates, dict):
        return []
    row = WorkPace.objects.filter(workspace=workspace, generation=workspace.generation).first()
    paces = parse_paces(row.paces) if row is not None else {}
    progress = []
    for name, rate in sorted(rates.items()):
        pace = paces.get(name)
        best = pace.here.rate if pace is not None else None
        other = pace.elsewhere if pace is not None else None
        percent = int(100 * rate / other.rate) if other is not None else None
        elsewhere = other.rate if other is not None else None
        progress.append(
            Progress(name, rate, best, elsewhere, other.node if other is not None else "", percent)
        )
    return progress
