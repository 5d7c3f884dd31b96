"""Writes the feed of changes that updates the snapshot caches of all processes.

Each listener writes in the transaction of the change, so both are committed together.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import timedelta
from uuid import UUID

from django.utils import timezone

from portal.catalog.domain_events import EntryChanged
from portal.fleet.inventory.domain_events import CapacityChanged, NodesChanged
from portal.people.accounts.domain_events import TeamDeletionStarted, TeamsChanged
from portal.quota.limits.domain_events import LimitsChanged
from portal.scheduling.models import ChangeKind, SnapshotChange
from portal.workspaces.domain_events import HomesChanged, RequestChanged, StateChanged

KEPT_FOR = timedelta(minutes=10)
"""Longer than the maximum age of a cached snapshot."""


def generation() -> int:
    """Return the id of the last change."""
    return SnapshotChange.objects.order_by("-pk").values_list("pk", flat=True).first() or 0


def workloads(keys: Iterable[UUID]) -> None:
    """Record a change of workloads: their state, rank or preemption."""
    _write(ChangeKind.WORKLOAD, keys)


def state_changed(event: StateChanged) -> None:
    workloads([workspace.pk for workspace in event.workspaces])


def request_changed(event: RequestChanged) -> None:
    workloads([event.workspace.pk])


def nodes_changed(event: NodesChanged | HomesChanged) -> None:
    _write(ChangeKind.NODE, event.nodes)


def capacity_changed(_event: CapacityChanged) -> None:
    SnapshotChange.objects.create(kind=ChangeKind.CAPACITY)


def catalog_changed(_event: EntryChanged) -> None:
    """Record a change of the catalog, so that everything is read again: requirements may have changed."""
    SnapshotChange.objects.create(kind=ChangeKind.CAPACITY)


def limits_changed(_event: LimitsChanged | TeamsChanged | TeamDeletionStarted) -> None:
    SnapshotChange.objects.create(kind=ChangeKind.LIMITS)


def mixes() -> None:
    """Record a change of the expected requests of pools."""
    SnapshotChange.objects.create(kind=ChangeKind.MIX)


def _write(kind: ChangeKind, keys: Iterable[UUID]) -> None:
    SnapshotChange.objects.bulk_create([SnapshotChange(kind=kind, key=key) for key in keys])


def trim() -> int:
    """Delete entries that no cache needs, except the last one. Returns their number."""
    old = SnapshotChange.objects.filter(at__lt=timezone.now() - KEPT_FOR, pk__lt=generation())
    return old.delete()[0]
