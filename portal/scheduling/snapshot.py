"""Reads all input of a scheduling decision from the database.

`load` returns a `ClusterSnapshot`: the pools, the scheduler with all running and pending workloads, and its
placer. A cycle decides on it and writes; a preview leaves it unchanged.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from functools import partial
from typing import Any
from uuid import UUID

from django.conf import settings
from django.db.models import Q
from django.utils import timezone

from portal.catalog.models import Flavor, Template
from portal.fleet.inventory import maintenance_state, resources
from portal.fleet.inventory.models import Allocation
from portal.people.accounts.models import Team
from portal.quota.ledger import selectors as ledger
from portal.quota.limits import limit_tree
from portal.quota.limits.models import ResourceRate, SiteLimit
from portal.quota.reservations import selectors as reservations
from portal.scheduling import capacity, moves
from portal.scheduling.engine import model
from portal.scheduling.engine.outlook import Forecast
from portal.scheduling.engine.scheduler import Scheduler
from portal.scheduling.engine.usage import with_fallbacks
from portal.scheduling.models import SnapshotChange
from portal.scheduling.placement_request import PlacementRequest, PlacementRequests, maintenance_end
from portal.scheduling.placer import PoolPlacer
from portal.scheduling.pool_nodes import PoolNodes
from portal.workspaces.homes import places as home_places
from portal.workspaces.lifecycle import DesiredState, State
from portal.workspaces.models import Workspace
from provisioning.types import WHOLE_DEVICE_MILLI

log = logging.getLogger(__name__)
BACKFILL_DEPTH = 2000
"""Number of requests that a cycle considers behind a reserved start: other models may be free."""
BROKEN_WAIT = timedelta(seconds=30)
OVERLAP = 500
"""Number of latest changes to check again: one may be committed after a later one."""
NO_POOL = "no pool can take it"
ENDS_WITHIN_S = 10
"""Seconds within which a stopping workspace is expected to end."""


@dataclass(frozen=True, slots=True)
class FlavorChoice:
    """A flavor that a request lists, and the request on this flavor."""

    flavor: Flavor
    placement_request: PlacementRequest
    workload: model.Workload


@dataclass(frozen=True, slots=True)
class PendingWorkload:
    """A pending workspace in the queue. `reason` says why no pool can ever take it.

    `choices` has the flavors that it lists in order of preference, if it lists any. `placement_request`
    and `workload` are those of the first that limits and pools could ever allow.
    """

    id: str
    placement_request: PlacementRequest
    workload: model.Workload
    reason: str = ""
    choices: tuple[FlavorChoice, ...] = ()

    @property
    def placement_requests(self) -> tuple[PlacementRequest, ...]:
        """The request on each flavor."""
        return tuple(choice.placement_request for choice in self.choices) or (self.placement_request,)

    @property
    def maintenance(self) -> PoolNodes | None:
        """The first pool to leave maintenance, if all pools that could take it are in maintenance."""
        closed = [pool for request in self.placement_requests if (pool := request.maintenance) is not None]
        if not closed:
            return None
        possible = sum(request.possible for request in self.placement_requests)
        return min(closed, key=maintenance_end) if len(closed) == possible else None

    @classmethod
    def of_choices(cls, choices: Sequence[FlavorChoice], start_within_s: int) -> PendingWorkload:
        """Return a request that lists these flavors, which all have the id of the request."""
        numbered = tuple(
            replace(
                choice,
                workload=replace(choice.workload, choice=number, start_within_s=start_within_s),
            )
            for number, choice in enumerate(choices)
        )
        first = numbered[0]
        possible = any(choice.placement_request.possible for choice in numbered)
        return cls(
            first.workload.id,
            first.placement_request,
            first.workload,
            "" if possible else NO_POOL,
            numbered,
        )


@dataclass(slots=True)
class ClusterSnapshot:
    """The state of all pools, quotas and the queue at `now`. Not thread-safe.

    - `generation`: last change of the feed that is included.
    - `changes`: ids of the last changes, since one may be committed after a later one.
    - `read_at`, `reading_s`: when it was read in full, and how long that took.
    - `limits`, `limits_at`: limits without workloads, and when they were read.
    - `valid_until`: when a maintenance begins or ends next, or None.
    - `retry_at`: pending workloads to skip until the given time.
    - `unconfirmed`: workloads to read again even without a change.
    - `forecast`: the decision of the next cycle if nothing changes, once computed.
    """

    now: datetime
    generation: int
    pools: Mapping[UUID, PoolNodes]
    placement_requests: PlacementRequests
    placer: PoolPlacer
    scheduler: Scheduler
    pending_workloads: dict[str, PendingWorkload]
    capacity: Mapping[str, int]
    team_names: Mapping[str, str]
    read_at: datetime
    limits: model.Snapshot
    limits_at: datetime
    changes: set[int]
    retry_at: dict[UUID, datetime]
    unconfirmed: set[UUID] = field(default_factory=set)
    forecast: Forecast | None = None
    reading_s: float = 0.0
    valid_until: datetime | None = None

    @property
    def now_s(self) -> int:
        return int(self.now.timestamp())

    def discard_forecast(self) -> None:
        """Discard the forecast after a change or as time passes."""
        self.forecast = None

    @contextmanager
    def trial(self) -> Iterator[ClusterSnapshot]:
        """Yield a copy to decide on. All placements are undone at the end."""
        with self.placer.trial():
            scheduler = self.scheduler.clone()
            scheduler.placer = self.placer
            yield replace(
                self,
                scheduler=scheduler,
                pending_workloads=dict(self.pending_workloads),
                unconfirmed=set(),
                forecast=None,
            )


def policy() -> model.Policy:
    """Return the site's rules from the settings."""
    return model.Policy(
        preemption=settings.BERTH_PREEMPTION,
        min_run_s=settings.BERTH_MIN_RUN_S,
        grace_s=settings.BERTH_PREEMPTION_GRACE_S,
        backfill_depth=BACKFILL_DEPTH,
    )


def load(now: datetime | None = None) -> ClusterSnapshot:
    """Read everything. Rows are read as tuples: there may be 10,000 in an interactive request."""
    now = now or timezone.now()
    # Read first: changes made meanwhile are read again.
    changes = set(SnapshotChange.objects.order_by("-pk").values_list("pk", flat=True)[: 2 * OVERLAP])
    plan = maintenance_state.plan(now)
    pools = capacity.load(plan=plan)
    placement_requests = PlacementRequests(pools)
    placer = PoolPlacer(pools, prices())
    total = capacity.total_capacity(pools.values())
    later: dict[UUID, datetime] = {}
    waiting = {pending.id: pending for pending in pending_workloads(placement_requests, now, later)}
    running = list(running_workloads(placer, int(now.timestamp())))
    for run in running:
        # Started by a cycle between the two queries.
        waiting.pop(run.workload.id, None)
    limits = engine_snapshot(now, total, (), ())
    scheduler = Scheduler(replace(limits, running=tuple(running)), placer)
    names = dict(Team.objects.values_list("slug", "name"))
    snapshot = ClusterSnapshot(
        now=now,
        generation=max(changes, default=0),
        pools=pools,
        placement_requests=placement_requests,
        placer=placer,
        scheduler=scheduler,
        pending_workloads={},
        capacity=total,
        team_names=names,
        read_at=now,
        limits=limits,
        limits_at=now,
        changes=changes,
        retry_at=later,
        valid_until=plan.changes_at,
    )
    for pending in waiting.values():
        enqueue(snapshot, pending)
    return snapshot


def engine_snapshot(
    now: datetime,
    total: Mapping[str, int],
    running: Iterable[model.Running],
    queued: Iterable[model.Workload],
) -> model.Snapshot:
    """Return the engine's input: the given workloads with current teams, quotas, reservations and limits."""
    spent = ledger.teams_without_hours()
    return model.Snapshot(
        now_s=int(now.timestamp()),
        teams=tuple(replace(team, funded=team.name not in spent) for team in limit_tree.teams(now)),
        cohorts=tuple(limit_tree.cohorts()),
        running=tuple(running),
        queued=tuple(queued),
        reservations=tuple(model.Reservation(*values) for values in reservations.current_bookings(now)),
        capacity=total,
        site_limits=dict(SiteLimit.objects.values_list("resource", "amount")),
        policy=policy(),
        rates_milli=dict(ResourceRate.objects.values_list("resource", "rate_milli")),
    )


def enqueue(snapshot: ClusterSnapshot, pending: PendingWorkload) -> PendingWorkload:
    """Add a request to the queue, unless no pool can ever take it. Returns it as registered."""
    pending = register(snapshot.scheduler, snapshot.placer, pending)
    snapshot.pending_workloads[pending.id] = pending
    if not pending.reason:
        snapshot.scheduler.submit(pending.workload)
    return pending


def register(scheduler: Scheduler, placer: PoolPlacer, pending: PendingWorkload) -> PendingWorkload:
    """Register a request with the placer, and return it with the amounts of each way to meet it.

    Until it starts, it is assumed to take the model of which the site has most, among those that the limits
    could ever allow.
    """
    if pending.choices:
        return _register_choices(scheduler, placer, pending)
    placer.register(pending.id, pending.placement_request)
    workload = _with_assumed_amounts(scheduler, pending.placement_request, pending.workload)
    return pending if workload is pending.workload else replace(pending, workload=workload)


def _with_assumed_amounts(
    scheduler: Scheduler, placement_request: PlacementRequest, workload: model.Workload
) -> model.Workload:
    """Return the workload with the amounts of each way to meet the request on one flavor."""
    variants = placement_request.variants
    if len(variants) == 1:
        if workload.amounts is variants[0].amounts:
            return workload
        return replace(workload, amounts=variants[0].amounts)
    workload = replace(workload, alternatives=tuple(variant.amounts for variant in variants))
    ways = workload.ways()
    allowed = [way for way in ways if scheduler.usage.permanent_shortfall(way) is None]
    return max(allowed, key=scheduler.usage.copies_at_site) if allowed else ways[0]


def _register_choices(scheduler: Scheduler, placer: PoolPlacer, pending: PendingWorkload) -> PendingWorkload:
    """Register a request that lists flavors: it waits for the first that could ever start."""
    placer.register(pending.id, *pending.placement_requests)
    possible = [choice for choice in pending.choices if choice.placement_request.possible]
    workloads = [
        _with_assumed_amounts(scheduler, choice.placement_request, choice.workload)
        for choice in possible or pending.choices[:1]
    ]
    head = with_fallbacks(scheduler.usage, workloads)
    return replace(pending, workload=head, placement_request=pending.choices[head.choice].placement_request)


def prices() -> dict[str, int]:
    """Return the lowest price of a GPU-hour by resource, in 1/1000 of a cent, of flavors with one model."""
    cheapest: dict[str, int] = {}
    priced = Flavor.objects.filter(enabled=True, price_cents__gt=0, accelerator_count__gt=0, mig_profile="")
    for model_name, cents, count, milli, nodes in priced.exclude(accelerator_model="").values_list(
        "accelerator_model", "price_cents", "accelerator_count", "accelerator_milli", "nodes"
    ):
        assert cents is not None  # by the filter
        price = cents * 1000 * WHOLE_DEVICE_MILLI // (count * milli * nodes)
        resource = resources.gpu(model_name)
        cheapest[resource] = min(price, cheapest.get(resource, price))
    return cheapest


# --- workspaces --------------------------------------------------------------------------------------


RUNNING_COLUMNS = (
    "pk", "team__slug", "owner_id", "amounts", "priority", "requested_at", "expected_s", "preemptible",
    "queue_entry__preemption_count", "placed_at", "preemption__preempt_at", "preemption__preempted_by",
    "state", "state_since", "status__gpu_idle_since", "loses_work", "began_at", "status__engine",
)  # fmt: skip


def running_workloads(placer: PoolPlacer, now_s: int, which: Q | None = None) -> Iterable[model.Running]:
    # Allocations decide: a stopped workspace that is being deleted has released its own.
    holding = Allocation.objects.filter(released_at=None).values("workspace")
    rows: Iterable[Any] = Workspace.objects.filter(which or Q(), pk__in=holding).values_list(*RUNNING_COLUMNS)
    amounts_cache: dict[tuple[tuple[str, int], ...], dict[str, int]] = {}
    for row in rows:
        pk, team, owner, amounts, priority, requested, expected, preemptible, preempted, *rest = row
        placed, preempt_at, preempted_by, state, state_since, idle_since, loses_work, began, engine = rest
        # A workspace that waits at its engine has its whole run ahead.
        started_s = now_s if engine.get("queue") else int((began or placed or requested).timestamp())
        leaving = int(preempt_at.timestamp()) if preempt_at else None
        if state in (State.STOPPING, State.TERMINATING):
            # Already stopping, so it is expected to end shortly without preemption. The estimate does not
            # depend on when it is read.
            since_s = int(state_since.timestamp())
            leaving = since_s + ENDS_WITHIN_S * ((now_s - since_s) // ENDS_WITHIN_S + 1)
        workload = model.Workload(
            id=str(pk),
            team=team,
            # Equal amounts share one object, which speeds up the arrays of a plan.
            amounts=amounts_cache.setdefault(tuple(amounts.items()), amounts),
            user=str(owner),
            priority=priority,
            created_s=int(requested.timestamp()),
            duration_s=max(1, expected),
            preemptible=preemptible,
            preempted=preempted,
            loses_work=loses_work,
        )
        placer.add_running(workload.id)
        idle_s = max(0, now_s - int(idle_since.timestamp())) if idle_since else -1
        yield model.Running(workload, started_s, leaving, preempted_by or "", idle_s)


def pending_workloads(
    placement_requests: PlacementRequests, now: datetime, later: dict[UUID, datetime], which: Q | None = None
) -> Iterable[PendingWorkload]:
    """Yield pending workloads. Skips those that a backend just rejected, and adds them to `retry_at`."""
    rows: list[Any] = []
    waiting = Workspace.objects.filter(which or Q(), state=State.PENDING, desired_state=DesiredState.RUNNING)
    for next_reconcile_at, *row in waiting.values_list(
        "next_reconcile_at", "pk", "team__slug", "owner_id", "template_id", "flavor_id", "resources",
        "team_id", "priority", "requested_at", "expected_s", "preemptible", "queue_entry__nominated",
        "queue_entry__reservation_seq", "queue_entry__preemption_count", "loses_work",
        "move_home", "flavor_choices", "start_within_s",
    ):  # fmt: skip
        if next_reconcile_at is not None and next_reconcile_at > now:
            later[row[0]] = next_reconcile_at
        else:
            rows.append(row)
    templates = Template.objects.in_bulk({row[3] for row in rows})
    flavors = Flavor.objects.select_related("pool").in_bulk({row[4] for row in rows})
    listed = flavors_by_slug(choice["flavor"] for row in rows for choice in row[-2])
    homes = home_places.home_places_by_user([(row[2], row[6]) for row in rows])
    targets = moves.move_targets(now) if rows else {}
    for pk, team, owner, template, flavor, data, team_id, priority, requested, expected, *rest in rows:
        preemptible, nominated, reservation_seq, preempted, loses_work, move_home, stored, within_s = rest
        home, template_row = homes.get((owner, team_id), {}), templates[template]
        # A flavor that has been deleted meanwhile is no choice any more.
        stored = [choice for choice in stored if choice["flavor"] in listed]
        request_of = partial(placement_requests.build, template_row, homes=home, move_home=move_home)
        try:
            placement_request = request_of(flavors[flavor], data)
            others = [request_of(listed[choice["flavor"]], choice["resources"]) for choice in stored]
        except ValueError:
            # A broken row must not block the others; it backs off.
            log.exception("unreadable request of workspace %s", pk)
            Workspace.objects.filter(pk=pk).update(next_reconcile_at=now + BROKEN_WAIT)
            later[pk] = now + BROKEN_WAIT
            continue
        if pk in targets:
            placement_request = replace(placement_request, target=targets[pk])
        variants = placement_request.variants
        workload = model.Workload(
            id=str(pk),
            team=team,
            amounts=variants[0].amounts if len(variants) == 1 else {},
            user=str(owner),
            priority=priority,
            created_s=int(requested.timestamp()),
            created_ms=requested.microsecond // 1000,
            duration_s=max(1, expected),
            preemptible=preemptible,
            nominated=nominated,
            backfill_seq=reservation_seq,
            preempted=preempted,
            loses_work=loses_work,
            place=placement_request.place_key,
        )
        if not others:
            reason = "" if placement_request.possible else NO_POOL
            yield PendingWorkload(str(pk), placement_request, workload, reason)
            continue
        choices = [
            FlavorChoice(
                listed[choice["flavor"]],
                request,
                replace(
                    workload,
                    amounts={},
                    place=request.place_key,
                    preemptible=choice["preemptible"],
                    loses_work=choice["loses_work"],
                ),
            )
            for choice, request in zip(stored, others, strict=True)
        ]
        yield PendingWorkload.of_choices(choices, within_s)


def flavors_by_slug(slugs: Iterable[str]) -> dict[str, Flavor]:
    """Return the existing flavors with these slugs, with their pools. Without slugs, no query runs."""
    names = set(slugs)
    rows = Flavor.objects.select_related("pool").filter(slug__in=names) if names else ()
    return {flavor.slug: flavor for flavor in rows}
