"""Keeps how fast work goes on and where it went on best: a small row for each workspace that tells it.

Written where something has changed that matters; of work that goes on as it did nothing is.
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
from portal.reclaim.engine.pace import SLOW_FOR_S, Pace, Place, is_worth_keeping, observe, slow_work
from portal.reclaim.models import WorkPace
from portal.workspaces.lifecycle import State
from portal.workspaces.models import Workspace

AT_ONCE = 500
UPDATED = ("generation", "paces", "slow_since", "observed_at")
_encode = msgspec.json.Encoder(order="sorted").encode
_decode = msgspec.json.Decoder(dict[str, Pace]).decode


@dataclass(frozen=True, slots=True)
class Told:
    """What the agent of a start of a workspace has told at `at_s`: by name how much is done a second."""

    workspace_id: UUID
    generation: int
    at_s: float
    rates: Mapping[str, float]


def paces_of(text: str) -> dict[str, Pace]:
    """What was kept; nothing where another version has written it."""
    try:
        return _decode(text)
    except msgspec.MsgspecError:
        return {}


def note(told: Sequence[Told]) -> int:
    """Keep what has been told; how many rows were written. No query where nothing was told."""
    return sum(_note(told[first : first + AT_ONCE]) for first in range(0, len(told), AT_ONCE))


def _note(told: Sequence[Told]) -> int:
    rows = WorkPace.objects.filter(workspace__in=[each.workspace_id for each in told])
    kept = {
        pk: (generation, paces_of(text))
        for pk, generation, text in rows.values_list("workspace_id", "generation", "paces")
    }
    # Where a start runs does not change while it runs.
    known = {
        (pk, generation): max(paces.values(), key=lambda pace: pace.at_s).place
        for pk, (generation, paces) in kept.items()
        if paces
    }
    fresh = [each for each in told if (each.workspace_id, each.generation) not in known]
    places = known | _places(fresh) if fresh else known
    changed = []
    for each in told:
        generation, before = kept.get(each.workspace_id, (-1, {}))
        place = places.get((each.workspace_id, each.generation))
        if place is None:
            continue
        after = observe(before, each.rates, place, each.at_s)
        if generation != each.generation or is_worth_keeping(before, after):
            slow = [pace.slow_since_s for pace in after.values() if pace.slow_since_s is not None]
            changed.append(
                WorkPace(
                    workspace_id=each.workspace_id,
                    generation=each.generation,
                    paces=_encode(after).decode(),
                    slow_since=datetime.fromtimestamp(min(slow), UTC) if slow else None,
                    observed_at=datetime.fromtimestamp(each.at_s, UTC),
                )
            )
    # One that was deleted since it was read has no row to belong to.
    there = set(
        Workspace.objects.filter(pk__in=[row.workspace_id for row in changed]).values_list("pk", flat=True)
    )
    WorkPace.objects.bulk_create(
        [row for row in changed if row.workspace_id in there],
        update_conflicts=True,
        unique_fields=["workspace"],
        update_fields=list(UPDATED),
    )
    return len(changed)


def _places(told: Sequence[Told]) -> dict[tuple[UUID, int], Place]:
    """Where these starts run, by workspace and generation, of those that run on one node; two queries."""
    rows = Allocation.objects.filter(
        workspace__in=[each.workspace_id for each in told], released_at=None
    ).values_list("pk", "workspace_id", "generation", "node__name", "cpu_milli", "memory_mib")
    held: dict[tuple[UUID, int], list[Any]] = {}
    for row in rows:
        held.setdefault((row[1], row[2]), []).append(row)
    single = {key: found[0] for key, found in held.items() if len(found) == 1}
    devices: dict[int, list[tuple[str, str, int, int]]] = {}
    parts = AllocatedDevice.objects.filter(allocation__in=[row[0] for row in single.values()], active=True)
    for allocation, uuid, model, milli, memory in parts.values_list(
        "allocation_id", "device__uuid", "device__model", "milli", "memory_mib"
    ):
        devices.setdefault(allocation, []).append((uuid, model, milli, memory))
    return {
        key: Place(
            node,
            frozenset(part[0] for part in devices.get(pk, ())),
            _kind(cpu, memory, sorted(part[1:] for part in devices.get(pk, ()))),
        )
        for key, (pk, _workspace, _generation, node, cpu, memory) in single.items()
    }


def _kind(*amounts: object) -> str:
    return hashlib.sha256(repr(amounts).encode()).hexdigest()[:32]


def slow(now: datetime) -> dict[UUID, tuple[str, Pace]]:
    """Of what runs, whose work is slower than it was elsewhere, and has been for long enough; one query."""
    now_s = now.timestamp()
    rows = WorkPace.objects.filter(
        slow_since__lte=datetime.fromtimestamp(now_s - SLOW_FOR_S, UTC),
        workspace__state=State.RUNNING,
        workspace__generation=F("generation"),
    ).values_list("workspace_id", "paces")
    return {pk: found for pk, text in rows if (found := slow_work(paces_of(text), now_s)) is not None}


@dataclass(frozen=True, slots=True)
class Progress:
    """How fast a workspace's work goes on now: `rate` a second, the best at this place and elsewhere, and the
    node that this was on. `percent` is of the best elsewhere; None: none is known."""

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
    """What a running workspace, which the actor may see, tells of its work, by name."""
    told = workspace.status.activity.get("progress") if workspace.state == State.RUNNING else None
    if not isinstance(told, dict):
        return []
    row = WorkPace.objects.filter(workspace=workspace, generation=workspace.generation).first()
    kept = paces_of(row.paces) if row is not None else {}
    found = []
    for name, rate in sorted(told.items()):
        pace = kept.get(name)
        best = pace.here.rate if pace is not None else None
        other = pace.elsewhere if pace is not None else None
        percent = int(100 * rate / other.rate) if other is not None else None
        elsewhere = other.rate if other is not None else None
        found.append(Progress(name, rate, best, elsewhere, other.node if other is not None else "", percent))
    return found
