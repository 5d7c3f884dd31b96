"""Values of the scheduler: the input (a `Snapshot`) and the results.

Amounts are integers by resource name, in the unit of the name (`cpu_milli`, `memory_mib`, `workspaces`;
accelerators in milli-GPU by model, such as `gpu:h100`). Times are UTC seconds.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum

from portal.common.reasons.codes import Rule
from portal.common.reasons.reason import Reason
from portal.quota.limits.types import Amounts, Cohort, Team

FOREVER_S = 1 << 60


class Outcome(StrEnum):
    """The outcome of a request if submitted now."""

    FITS_NOW = "fits_now"
    QUEUED = "queued"
    NEEDS_APPROVAL = "needs_approval"
    IMPOSSIBLE = "impossible"


@dataclass(frozen=True, slots=True)
class Workload:
    """A request for resources, pending or running.

    - `duration_s`: expected or maximum run time.
    - `created_ms`: milliseconds part of the creation time; on a tie, the older request goes first.
    - `place`: key of all other placement conditions (labels, software, pools). Nodes treat two requests with
      equal amounts and equal `place` alike.
    - `nominated`: workloads are being preempted for this request.
    - `backfill_seq`: number of its first `BackfillReservation`, 0 if none. From then on only a higher
      priority or a lower number goes ahead of it.
    - `preempted`: number of times it was preempted.
    - `loses_work`: a preempted workload restarts from the beginning, such as a batch job. It is not preempted
      if waiting costs less than the lost work.
    - `alternatives`: amounts of each way to meet it, if there are several (GPU models). A cycle starts it in
      any of these ways. Estimates and preemption assume `amounts`, which is one of them.
    - `choice`: index of its flavor among those that the request lists, 0 if it lists one.
    - `fallbacks`: the same request on each later flavor, in order of preference. A cycle starts the first
      that fits, unless an earlier one is expected to start within `start_within_s`. Preemption and reserved
      starts are for the request itself, never for a fallback.
    """

    id: str
    team: str
    amounts: Amounts
    user: str = ""
    priority: int = 0
    created_s: int = 0
    created_ms: int = 0
    duration_s: int = 3600
    preemptible: bool = True
    nominated: bool = False
    backfill_seq: int = 0
    preempted: int = 0
    place: str = ""
    loses_work: bool = False
    alternatives: tuple[Amounts, ...] = ()
    choice: int = 0
    fallbacks: tuple[Workload, ...] = ()
    start_within_s: int = 0

    @property
    def flexible(self) -> bool:
        """Whether it can be met in several ways, so that it waits for no single resource."""
        return bool(self.alternatives or self.fallbacks)

    def ways(self) -> tuple[Workload, ...]:
        """Return the request with the amounts of each way to meet it."""
        if not self.alternatives:
            return (self,)
        return tuple(replace(self, amounts=amounts) for amounts in self.alternatives)


@dataclass(frozen=True, slots=True)
class Running:
    """A workload that uses its amounts.

    - `preempt_at_s`: time by which it will have left, if it is being preempted.
    - `preempted_by`: workload or reservation for which it is preempted.
    - `idle_s`: seconds since its accelerators were last used, -1 if unknown.
    """

    workload: Workload
    started_s: int
    preempt_at_s: int | None = None
    preempted_by: str = ""
    idle_s: int = -1

    @property
    def ends_s(self) -> int:
        """The expected end, in UTC seconds."""
        if self.preempt_at_s is not None:
            return self.preempt_at_s
        return self.started_s + self.workload.duration_s


@dataclass(frozen=True, slots=True)
class Reservation:
    """Capacity reserved for a team from `start_s` (inclusive) to `end_s` (exclusive)."""

    id: str
    team: str
    amounts: Amounts
    start_s: int
    end_s: int


@dataclass(frozen=True, slots=True)
class Policy:
    """The site's scheduling rules.

    - `min_run_s`: minimum run before preemption; protection grows with each preemption.
    - `patience_s`: no preemption for a request that would start within this time anyway.
    - `max_wait_s`: a request that has waited this long goes before all younger ones.
    - `due_after`, `share_delay_s`: a request is due `due_after` times its duration after its creation, plus
      `share_delay_s` for each fair share of lent capacity that its team uses. Requests go in order of due
      time.
    - `backfill_depth`: maximum number of requests that a cycle considers behind a reserved start.
    - `overdue_s`: further run time expected of a workload past its expected end.
    """

    preemption: bool = True
    backfill: bool = True
    min_run_s: int = 900
    grace_s: int = 60
    patience_s: int = 900
    max_wait_s: int = 7 * 86400
    due_after: int = 20
    share_delay_s: int = 3 * 86400
    backfill_depth: int = 200
    preemption_attempts: int = 8
    overdue_s: int = 900


@dataclass(frozen=True, slots=True)
class Snapshot:
    """All input of a decision. `capacity` is the site's capacity, `site_limits` are its limits.

    `rates_milli` weights accelerators by resource in the members' use (default: 1000).
    """

    now_s: int
    teams: tuple[Team, ...]
    cohorts: tuple[Cohort, ...] = ()
    running: tuple[Running, ...] = ()
    queued: tuple[Workload, ...] = ()
    reservations: tuple[Reservation, ...] = ()
    capacity: Amounts = field(default_factory=dict)
    site_limits: Amounts = field(default_factory=dict)
    policy: Policy = Policy()
    rates_milli: Amounts = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Eta:
    """When a request is expected to start (UTC seconds), or None. The code of `basis` is a `WaitBasis`.

    `choice` is the flavor on which it is expected to start (`Workload.choice`).
    """

    eta_s: int | None
    basis: Reason
    choice: int = 0


@dataclass(frozen=True, slots=True)
class Holder:
    """A team that uses `amount` of the resource, and its next expected end (None: unknown).

    The amount `idle` has been unused for at least `idle_s` seconds; 0 and -1 if none is known to be idle.
    """

    team: str
    amount: int
    next_end_s: int | None
    idle: int = 0
    idle_s: int = -1


@dataclass(frozen=True, slots=True)
class Blocker:
    """The rule that blocks a request for `wanted` of `resource`, of which `free` of `limit` is left."""

    rule: Rule
    resource: str = ""
    wanted: int = 0
    free: int = 0
    limit: int = 0
    holders: tuple[Holder, ...] = ()


class PreemptionCode(StrEnum):
    """Why a workload is preempted.

    The first three are Kueue's `InClusterQueue`, `InCohortReclamation` and `InCohortFairSharing`. The
    database and REST use `PreemptionCause` instead.
    """

    IN_TEAM = "in_team"
    RECLAIM = "reclaim"
    FAIR_SHARE = "fair_share"
    RESERVATION_BEGUN = "reservation_begun"


@dataclass(frozen=True, slots=True)
class Victim:
    """A running workload to preempt for `beneficiary` (the id of a workload or reservation)."""

    workload: str
    team: str
    reason: PreemptionCode
    beneficiary: str


@dataclass(frozen=True, slots=True)
class BackfillReservation:
    """A blocked request with a reserved start: back-fill must not delay `start_s` (Slurm's term)."""

    workload: str
    start_s: int
    resource: str


@dataclass(frozen=True, slots=True)
class Cycle:
    """The decision of one cycle: starts in order, victims and reserved starts.

    `backfilled` lists the `starts` that overtook a reserved start. `lapsed_nominations` lists requests that
    still do not fit after all their victims have left: they return to the usual order. `chosen` has those
    `starts` that could be met in several ways, with the chosen amounts.
    """

    starts: tuple[str, ...] = ()
    backfilled: frozenset[str] = frozenset()
    victims: tuple[Victim, ...] = ()
    backfill_reservations: tuple[BackfillReservation, ...] = ()
    lapsed_nominations: tuple[str, ...] = ()
    chosen: Mapping[str, Workload] = field(default_factory=dict)

    def started(self, pending: Mapping[str, Workload]) -> list[Workload]:
        """Return the `starts` among the pending requests, as they start."""
        return [self.chosen.get(name) or pending[name] for name in self.starts]


@dataclass(frozen=True, slots=True)
class QueueVerdict:
    """The outcome for one request. `position` counts from 1; if `eta_s` is None, `basis` says why.

    `blocker` is None only if the request fits now; `basis` only if it never starts without a change.
    """

    outcome: Outcome
    position: int = 0
    eta_s: int | None = None
    basis: Reason | None = None
    blocker: Blocker | None = None
    victims: tuple[Victim, ...] = ()
    alternatives: tuple[str, ...] = ()
