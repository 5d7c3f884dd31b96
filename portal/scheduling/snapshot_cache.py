"""Cluster snapshots that are kept between uses, since reading ten thousand workloads anew takes a second.

As Kueue's cache: it is fed by add, update and delete, each with a generation (`snapshot_feed`), and hands out
the snapshot as of now. Each process has one for previews and one for cycles, so that nobody who only asks
waits for a cycle. Only cycles grant capacity, one at a time under the placement lock, and each has written
its changes before the next one reads: so no grant is missed.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from datetime import datetime
from functools import partial
from uuid import UUID

from django.db import connection, transaction
from django.db.models import Q
from django.utils import timezone

from portal.accounts.models import Team
from portal.inventory.models import Allocation
from portal.scheduling import capacity, snapshot
from portal.scheduling.engine.scheduler import Scheduler
from portal.scheduling.models import ChangeKind, SnapshotChange
from portal.scheduling.snapshot import OVERLAP, Site

KEPT_S = 60
"""A snapshot is read anew after this at the latest: grants begin and end by time alone."""
MAX_CHANGES = 2000
"""With more changes than that reading it all is as fast."""


class SnapshotCache:
    """One kept snapshot. One thread at a time uses it; what was taken in it is given back afterwards."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._kept: Site | None = None

    @contextmanager
    def use(self, now: datetime | None = None) -> Iterator[Site]:
        """The present state. After an error nothing is kept: what was half done is not looked at again."""
        with self._lock:
            now = now or timezone.now()
            site, self._kept = self._kept, None
            age_s = (now - site.read_at).total_seconds() if site is not None else 0.0
            if site is None or not 0 <= age_s < KEPT_S or not follow(site, now):
                site = snapshot.load(now)
            yield site
            site.placer.undo()
            if not _in_transaction():
                self._kept = site
        if self._kept is None:
            # What it has seen of a transaction under way may never come to be.
            transaction.on_commit(partial(self._keep, site))

    def _keep(self, site: Site) -> None:
        with self._lock:
            self._kept = site

    def forget(self) -> None:
        """Read anew the next time: rows have been changed without a change in the feed."""
        with self._lock:
            self._kept = None


def follow(site: Site, now: datetime) -> bool:
    """Take the changes since its generation into a snapshot; False where it has to be read anew."""
    fresh = [
        change
        for change in SnapshotChange.objects.filter(pk__gt=site.generation - OVERLAP)
        .order_by("-pk")
        .values_list("pk", "kind", "key")[: OVERLAP + MAX_CHANGES + 1]
        if change[0] not in site.changes
    ]
    kinds = {kind for _, kind, _ in fresh}
    if len(fresh) > MAX_CHANGES or ChangeKind.CAPACITY in kinds:
        return False
    site.now = now
    site.scheduler.now_s = site.now_s
    if ChangeKind.NODE in kinds:
        update_nodes(site, {key for _, kind, key in fresh if kind == ChangeKind.NODE and key})
    if ChangeKind.LIMITS in kinds:
        update_limits(site)
    changed = {key for _, kind, key in fresh if kind == ChangeKind.WORKLOAD and key}
    changed |= site.unsure | {key for key, until in site.later.items() if until <= now}
    # What should be gone by now may still be there: then it is expected any moment again.
    changed |= {
        UUID(name)
        for name, each in site.scheduler.running.items()
        if each.preempt_at_s is not None and each.preempt_at_s <= site.now_s
    }
    site.unsure.clear()
    if changed:
        update_workloads(site, changed)
    seen = {key for key, _, _ in fresh}
    site.changes |= seen
    site.generation = max([site.generation, *seen])
    return True


def update_nodes(site: Site, nodes: Iterable[UUID]) -> None:
    """Read nodes with their devices again, and what there is in all."""
    capacity.refresh(site.pools, nodes)
    _update_totals(site)


def _update_totals(site: Site) -> None:
    """What is out of use counts by what is held there, so it may change with every holder that goes."""
    there = capacity.totals(site.pools.values())
    if there != site.capacity:
        site.capacity = there
        update_limits(site)


def update_limits(site: Site) -> None:
    """Put all that runs and waits under the limits of now."""
    before = site.scheduler
    site.scheduler = Scheduler(
        snapshot.under_limits(
            site.now, site.capacity, before.running.values(), before.pending.items.values()
        ),
        site.placer,
    )
    site.team_names = dict(Team.objects.values_list("slug", "name"))


def delete_workloads(site: Site, keys: Iterable[UUID]) -> None:
    """Take workloads out, wherever they stand."""
    for pk in map(str, keys):
        if pk in site.scheduler.running:
            site.scheduler.finish(pk)
        if pk in site.scheduler.pending.items:
            site.scheduler.withdraw(pk)
        site.waiters.pop(pk, None)
        site.placer.gone(pk)
        site.later.pop(UUID(pk), None)


def update_workloads(site: Site, keys: set[UUID]) -> None:
    """Read workloads again, with the nodes that they have stood on; those that are gone go."""
    delete_workloads(site, keys)
    nodes = Allocation.objects.filter(workspace__in=keys).values_list("node_id", flat=True).distinct()
    if capacity.refresh(site.pools, nodes):
        _update_totals(site)
    which = Q(pk__in=keys)
    scheduler = site.scheduler
    for each in snapshot.running_workloads(site.placer, site.now_s, which):
        scheduler.adopt(each)
    for waiter in snapshot.pending_workloads(site.asking, site.now, site.later, which):
        if waiter.id in scheduler.running:
            # Running was read first here: it has been stopped and asked for again meanwhile.
            continue
        site.waiters[waiter.id] = waiter
        snapshot.choose_variant(scheduler, site.placer, waiter)
        if not waiter.reason:
            scheduler.submit(waiter.workload)


def _in_transaction() -> bool:
    return connection.in_atomic_block


previews = SnapshotCache()
cycles = SnapshotCache()


def forget() -> None:
    """Forget both."""
    previews.forget()
    cycles.forget()
