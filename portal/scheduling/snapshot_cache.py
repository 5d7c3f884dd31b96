"""Cluster snapshots that are kept between uses, since reading ten thousand workloads anew takes a second.

As Kueue's cache: it is fed by add, update and delete, each with a generation (`snapshot_feed`), and hands out
the snapshot as of now. Each process has one for previews and one for cycles, so that nobody who only asks
waits for a cycle. Only cycles grant capacity, one at a time under the placement lock, and each has written
its changes before the next one reads: so no grant is missed.
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
    choose_variant,
    load,
    pending_workloads,
    running_workloads,
    under_limits,
)

KEPT_S = 60
"""A snapshot is read anew after this at the latest, where that is quick. Its limits are looked at again in
any case: grants begin and end by time alone."""
READING_RESTS = 100
"""Reading what takes long is followed by a rest of so many times what it took."""
MAX_KEPT_S = 540
"""Less than entries of the feed are kept for."""
MAX_CHANGES = 2000
"""With more changes than that reading it all is as fast."""


class SnapshotCache:
    """Keeps one `ClusterSnapshot` up to date. One thread at a time uses it; trial placements are undone."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._snapshot: ClusterSnapshot | None = None

    @contextmanager
    def use(self, now: datetime | None = None) -> Iterator[ClusterSnapshot]:
        """The present state. After an error nothing is kept: what was half done is not looked at again."""
        with self._lock:
            now = now or timezone.now()
            snapshot, self._snapshot = self._snapshot, None
            if snapshot is None or not _still_good(snapshot, now) or not follow(snapshot, now):
                # What was kept goes before all is read anew, so that there are never two.
                snapshot = None
                snapshot = _load(now)
            yield snapshot
            snapshot.placer.undo()
            if not _in_transaction():
                self._snapshot = snapshot
        if self._snapshot is None:
            # What it has seen of a transaction under way may never come to be.
            transaction.on_commit(partial(self._put_back, snapshot))

    def _put_back(self, snapshot: ClusterSnapshot) -> None:
        with self._lock:
            self._snapshot = snapshot

    def forget(self) -> None:
        """Read anew the next time: rows have been changed without a change in the feed."""
        with self._lock:
            self._snapshot = None


def _still_good(snapshot: ClusterSnapshot, now: datetime) -> bool:
    age_s = (now - snapshot.read_at).total_seconds()
    return 0 <= age_s < min(MAX_KEPT_S, max(KEPT_S, READING_RESTS * snapshot.reading_s))


def follow(snapshot: ClusterSnapshot, now: datetime) -> bool:
    """Take the changes since its generation into a snapshot; False where it has to be read anew."""
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
        snapshot.moves_on()
    snapshot.now = now
    snapshot.scheduler.now_s = snapshot.now_s
    if ChangeKind.MIX in kinds:
        capacity.refresh_mixes(snapshot.pools)
    if ChangeKind.NODE in kinds:
        update_nodes(snapshot, {key for _, kind, key in fresh if kind == ChangeKind.NODE and key})
    if ChangeKind.LIMITS in kinds:
        update_limits(snapshot)
    elif (now - snapshot.limits_at).total_seconds() >= KEPT_S:
        renew_limits(snapshot)
    changed = {key for _, kind, key in fresh if kind == ChangeKind.WORKLOAD and key}
    changed |= snapshot.unsure | {key for key, until in snapshot.later.items() if until <= now}
    # What should be gone by now may still be there: then it is expected any moment again.
    changed |= {
        UUID(name)
        for name, each in snapshot.scheduler.running.items()
        if each.preempt_at_s is not None and each.preempt_at_s <= snapshot.now_s
    }
    snapshot.unsure.clear()
    if changed:
        snapshot.moves_on()
        update_workloads(snapshot, changed)
    seen = {key for key, _, _ in fresh}
    snapshot.changes |= seen
    snapshot.generation = max([snapshot.generation, *seen])
    return True


def update_nodes(snapshot: ClusterSnapshot, nodes: Iterable[UUID]) -> None:
    """Read nodes with their devices again, and what there is in all."""
    capacity.refresh(snapshot.pools, nodes)
    _update_totals(snapshot)


def _update_totals(snapshot: ClusterSnapshot) -> None:
    """Recompute the total capacity: devices out of service count only as far as they are held."""
    there = capacity.totals(snapshot.pools.values())
    if there != snapshot.capacity:
        snapshot.capacity = there
        update_limits(snapshot)


def renew_limits(snapshot: ClusterSnapshot) -> None:
    """Read the limits, and put all under them where they are others than before."""
    limits = under_limits(snapshot.now, snapshot.capacity, (), ())
    snapshot.limits_at = snapshot.now
    if limits != replace(snapshot.limits, now_s=limits.now_s):
        update_limits(snapshot)


def update_limits(snapshot: ClusterSnapshot) -> None:
    """Put all that runs and waits under the limits of now."""
    before = snapshot.scheduler
    snapshot.limits = under_limits(snapshot.now, snapshot.capacity, (), ())
    snapshot.limits_at = snapshot.now
    snapshot.moves_on()
    running = tuple(before.running.values())
    after = snapshot.scheduler = Scheduler(replace(snapshot.limits, running=running), snapshot.placer)
    if after.usage.capped_teams() == before.usage.capped_teams():
        # Limits do not matter to the order of the queue, but for whose requests count as alike.
        after.pending = before.pending
    else:
        for workload in before.pending.items.values():
            after.submit(workload)
    snapshot.team_names = dict(Team.objects.values_list("slug", "name"))


def delete_workloads(snapshot: ClusterSnapshot, keys: Iterable[UUID]) -> None:
    """Take workloads out, wherever they stand."""
    for pk in map(str, keys):
        if pk in snapshot.scheduler.running:
            snapshot.scheduler.finish(pk)
        if pk in snapshot.scheduler.pending.items:
            snapshot.scheduler.withdraw(pk)
        snapshot.pending_workloads.pop(pk, None)
        snapshot.placer.gone(pk)
        snapshot.later.pop(UUID(pk), None)


def update_workloads(snapshot: ClusterSnapshot, keys: set[UUID]) -> None:
    """Read workloads again, with the nodes that they have stood on; those that are gone go."""
    delete_workloads(snapshot, keys)
    nodes = Allocation.objects.filter(workspace__in=keys).values_list("node_id", flat=True).distinct()
    if capacity.refresh(snapshot.pools, nodes):
        _update_totals(snapshot)
    which = Q(pk__in=keys)
    scheduler = snapshot.scheduler
    for each in running_workloads(snapshot.placer, snapshot.now_s, which):
        scheduler.adopt(each)
    for pending in pending_workloads(snapshot.placement_requests, snapshot.now, snapshot.later, which):
        if pending.id in scheduler.running:
            # Running was read first here: it has been stopped and asked for again meanwhile.
            continue
        chosen = choose_variant(scheduler, snapshot.placer, pending)
        snapshot.pending_workloads[pending.id] = chosen
        if not chosen.reason:
            scheduler.submit(chosen.workload)


def _in_transaction() -> bool:
    return connection.in_atomic_block


previews = SnapshotCache()
cycles = SnapshotCache()


def forget() -> None:
    """Forget both."""
    previews.forget()
    cycles.forget()


def _load(now: datetime) -> ClusterSnapshot:
    """Read it all. What is kept is passed over by collections: each would walk through all of it."""
    began = time.monotonic()
    snapshot = load(now)
    pauses.keep()
    snapshot.reading_s = time.monotonic() - began
    return snapshot
