"""Caches of cluster snapshots, since reading 10,000 workloads takes a second.

Like Kueue's cache, each is updated from a feed with generations (`snapshot_feed`) and returns the current
snapshot. Each process has one for previews and one for cycles, so that previews do not wait for a cycle. Only
cycles allocate capacity, one at a time under the placement lock, and each commits before the next one reads,
so no allocation is missed.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import datetime
from functools import partial
from uuid import UUID

from django.db import connection, transaction
from django.db.models import Q
from django.utils import timezone

from portal.fleet.inventory.models import Allocation
from portal.people.accounts.models import Team
from portal.scheduling import capacity, pauses
from portal.scheduling.engine.scheduler import Scheduler
from portal.scheduling.models import ChangeKind, SnapshotChange
from portal.scheduling.snapshot import (
    OVERLAP,
    ClusterSnapshot,
    engine_snapshot,
    enqueue,
    load,
    pending_workloads,
    register,
    running_workloads,
)

MIN_MAX_AGE_S = 60
"""Maximum age of a snapshot that is quick to read.

Limits are read again after this in any case, since grants start and expire with time.
"""
AGE_FACTOR = 100
"""Minimum age before a full read, as a multiple of the duration of the last one."""
MAX_AGE_S = 540
"""Less than the retention of feed entries."""
MAX_CHANGES = 2000
"""Number of changes from which a full read is as fast."""


class SnapshotCache:
    """Keeps one `ClusterSnapshot` up to date for one thread at a time. Undoes trial placements."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._snapshot: ClusterSnapshot | None = None

    @contextmanager
    def use(self, now: datetime | None = None) -> Iterator[ClusterSnapshot]:
        """Yield the current snapshot. After an error it is discarded, since it may be inconsistent."""
        with self._lock:
            now = now or timezone.now()
            snapshot, self._snapshot = self._snapshot, None
            if snapshot is None or not _is_usable(snapshot, now) or not apply_changes(snapshot, now):
                # Release the old one first, so that there are never two in memory.
                snapshot = None
                snapshot = _load(now)
            yield snapshot
            snapshot.placer.undo()
            if not _in_transaction():
                self._snapshot = snapshot
        if self._snapshot is None:
            # The surrounding transaction may still be rolled back.
            transaction.on_commit(partial(self._store, snapshot))

    def _store(self, snapshot: ClusterSnapshot) -> None:
        with self._lock:
            self._snapshot = snapshot

    def forget(self) -> None:
        """Force a full read next time: rows were changed without a feed entry."""
        with self._lock:
            self._snapshot = None


def _is_usable(snapshot: ClusterSnapshot, now: datetime) -> bool:
    if snapshot.valid_until is not None and now >= snapshot.valid_until:
        return False
    age_s = (now - snapshot.read_at).total_seconds()
    return 0 <= age_s < min(MAX_AGE_S, max(MIN_MAX_AGE_S, AGE_FACTOR * snapshot.reading_s))


def apply_changes(snapshot: ClusterSnapshot, now: datetime) -> bool:
    """Apply changes since the snapshot's generation. Returns False if it must be read again in full."""
    fresh = [
        change
        for change in SnapshotChange.objects.filter(pk__gt=snapshot.generation - OVERLAP)
        .order_by("-pk")
        .values_list("pk", "kind", "key")[: OVERLAP + MAX_CHANGES + 1]
        if change[0] not in snapshot.changes
    ]
    kinds = {kind for _, kind, _ in fresh}
    if len(fresh) > MAX_CHANGES or ChangeKind.CAPACITY in kinds:
        return False
    if fresh or int(now.timestamp()) != snapshot.now_s:
        snapshot.discard_forecast()
    snapshot.now = now
    snapshot.scheduler.now_s = snapshot.now_s
    if ChangeKind.MIX in kinds:
        capacity.refresh_mixes(snapshot.pools)
    if ChangeKind.NODE in kinds:
        if _home_rates_changed(snapshot):
            return False
        update_nodes(snapshot, {key for _, kind, key in fresh if kind == ChangeKind.NODE and key})
    if ChangeKind.LIMITS in kinds:
        update_limits(snapshot)
    elif (now - snapshot.limits_at).total_seconds() >= MIN_MAX_AGE_S:
        refresh_limits(snapshot)
    changed = {key for _, kind, key in fresh if kind == ChangeKind.WORKLOAD and key}
    changed |= snapshot.unconfirmed | {key for key, until in snapshot.retry_at.items() if until <= now}
    # Workloads past their expected end may still be there: update the expectation.
    changed |= {
        UUID(name)
        for name, run in snapshot.scheduler.running.items()
        if run.preempt_at_s is not None and run.preempt_at_s <= snapshot.now_s
    }
    snapshot.unconfirmed.clear()
    if changed:
        snapshot.discard_forecast()
        update_workloads(snapshot, changed)
    seen = {key for key, _, _ in fresh}
    snapshot.changes |= seen
    snapshot.generation = max([snapshot.generation, *seen])
    return True


def _home_rates_changed(snapshot: ClusterSnapshot) -> bool:
    """Return whether the measured speed of home moves has changed, which affects all movable homes."""
    rates = capacity.home_rates(pool.pool for pool in snapshot.pools.values())
    return any(pool.home_mib_s != rates.get(key, 0) for key, pool in snapshot.pools.items())


def update_nodes(snapshot: ClusterSnapshot, nodes: Iterable[UUID]) -> None:
    """Read nodes with their devices again, and the totals."""
    capacity.refresh(snapshot.pools, nodes)
    _update_totals(snapshot)


def _update_totals(snapshot: ClusterSnapshot) -> None:
    """Recompute the total capacity. Of devices out of service, only used capacity counts."""
    total = capacity.total_capacity(snapshot.pools.values())
    if total != snapshot.capacity:
        snapshot.capacity = total
        update_limits(snapshot)


def refresh_limits(snapshot: ClusterSnapshot) -> None:
    """Read the limits, and apply them if they have changed."""
    limits = engine_snapshot(snapshot.now, snapshot.capacity, (), ())
    snapshot.limits_at = snapshot.now
    if limits != replace(snapshot.limits, now_s=limits.now_s):
        update_limits(snapshot)


def update_limits(snapshot: ClusterSnapshot) -> None:
    """Apply current limits to all running and pending workloads."""
    before = snapshot.scheduler
    snapshot.limits = engine_snapshot(snapshot.now, snapshot.capacity, (), ())
    snapshot.limits_at = snapshot.now
    snapshot.discard_forecast()
    running = tuple(before.running.values())
    after = snapshot.scheduler = Scheduler(replace(snapshot.limits, running=running), snapshot.placer)
    if (after.usage.capped_teams(), after.pending.in_turns) == (
        before.usage.capped_teams(),
        before.pending.in_turns,
    ):
        # Limits affect the lists of the queue only through capped teams and those whose members take turns.
        after.pending = before.pending
    else:
        for workload in before.pending.items.values():
            after.submit(workload)
    _register_again(snapshot)
    snapshot.team_names = dict(Team.objects.values_list("slug", "name"))


def _register_again(snapshot: ClusterSnapshot) -> None:
    """Update the assumed amounts of requests that can be met in several ways."""
    scheduler = snapshot.scheduler
    for name, pending in list(snapshot.pending_workloads.items()):
        several = pending.workload.alternatives or pending.choices
        if not several or name not in scheduler.pending.items:
            continue
        again = register(scheduler, snapshot.placer, pending)
        if again.workload != pending.workload:
            snapshot.pending_workloads[name] = again
            scheduler.withdraw(name)
            scheduler.submit(again.workload)


def delete_workloads(snapshot: ClusterSnapshot, keys: Iterable[UUID]) -> None:
    """Remove workloads, running or pending."""
    for pk in map(str, keys):
        if pk in snapshot.scheduler.running:
            snapshot.scheduler.finish(pk)
        if pk in snapshot.scheduler.pending.items:
            snapshot.scheduler.withdraw(pk)
        snapshot.pending_workloads.pop(pk, None)
        snapshot.placer.remove_running(pk)
        snapshot.retry_at.pop(UUID(pk), None)


def update_workloads(snapshot: ClusterSnapshot, keys: set[UUID]) -> None:
    """Read workloads again with their nodes. Deleted ones are removed.

    Also reads pending workloads of the same users in pools with homes on nodes, because a home in use stays
    there.
    """
    people = _people_of(snapshot, keys)
    _update_workloads(snapshot, keys)
    people |= _people_of(snapshot, keys)
    others = {
        UUID(name)
        for name, pending in snapshot.pending_workloads.items()
        if (pending.workload.user, pending.workload.team) in people
        and pending.placement_request.home
        and UUID(name) not in keys
    }
    if others:
        _update_workloads(snapshot, others)


def _people_of(snapshot: ClusterSnapshot, keys: Iterable[UUID]) -> set[tuple[str, str]]:
    """Return pairs of user and team for running workloads."""
    running = snapshot.scheduler.running
    workloads = (running[str(key)].workload for key in keys if str(key) in running)
    return {(workload.user, workload.team) for workload in workloads}


def _update_workloads(snapshot: ClusterSnapshot, keys: set[UUID]) -> None:
    delete_workloads(snapshot, keys)
    nodes = Allocation.objects.filter(workspace__in=keys).values_list("node_id", flat=True).distinct()
    if capacity.refresh(snapshot.pools, nodes):
        _update_totals(snapshot)
    condition = Q(pk__in=keys)
    scheduler = snapshot.scheduler
    for run in running_workloads(snapshot.placer, snapshot.now_s, condition):
        scheduler.add_running(run)
    for pending in pending_workloads(snapshot.placement_requests, snapshot.now, snapshot.retry_at, condition):
        if pending.id in scheduler.running:
            # Running workloads were read first: this one was stopped and requested again meanwhile.
            continue
        enqueue(snapshot, pending)


def _in_transaction() -> bool:
    return connection.in_atomic_block


preview_cache = SnapshotCache()
cycle_cache = SnapshotCache()


def forget() -> None:
    """Discard both snapshots."""
    preview_cache.forget()
    cycle_cache.forget()


def _load(now: datetime) -> ClusterSnapshot:
    """Read everything. The objects are excluded from garbage collection, which would visit all of them."""
    began = time.monotonic()
    snapshot = load(now)
    pauses.freeze()
    snapshot.reading_s = time.monotonic() - began
    return snapshot
