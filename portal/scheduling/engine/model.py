"""The values of the scheduler: what goes in (a `Snapshot`) and what comes out.

Amounts are integers by resource name, in the unit that the name says (`cpu_milli`, `memory_mib`,
`workspaces`; accelerators in milli-GPU by model, such as `gpu:h100`). Times are UTC seconds.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from portal.common.reasons.codes import Rule
from portal.common.reasons.reason import Reason
from portal.quota.limits.types import Amounts, Cohort, Team

FOREVER_S = 1 << 60


class Outcome(StrEnum):
    """What becomes of a request if it is made now."""

    FITS_NOW = "fits_now"
    QUEUED = "queued"
    NEEDS_APPROVAL = "needs_approval"
    IMPOSSIBLE = "impossible"


@dataclass(frozen=True, slots=True)
class Workload:
    """A request. `duration_s` is how long it is expected to run, or may run at most. `created_ms` is the
    part of the second in which it was made: age decides between equals.

    `place` stands for whatever else decides where it may go (labels, programs, pools): of two requests that
    are equal in amounts and in this the nodes take both or neither. `nominated` is set while others
    are being preempted for it. `backfill_seq` is the number of its `BackfillReservation`, 0 where it has
    had none: from the first on only a higher priority goes before it, or a lower number.
    `preempted` counts how often it has had to leave. `loses_work` says that it begins anew when it comes
    back (a batch command, say): it is not asked to leave where waiting costs less than what it has done.
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


@dataclass(frozen=True, slots=True)
class Running:
    """A workload that holds its amounts. `preempt_at_s` is when it will be gone if it is being preempted,
    `preempted_by` the workload (or reservation) that it leaves for. `idle_s` counts the seconds since its
    accelerators were last used, -1 where that is not known."""

    workload: Workload
    started_s: int
    preempt_at_s: int | None = None
    preempted_by: str = ""
    idle_s: int = -1

    @property
    def ends_s(self) -> int:
        """When it is expected to be gone."""
        if self.preempt_at_s is not None:
            return self.preempt_at_s
        return self.started_s + self.workload.duration_s


@dataclass(frozen=True, slots=True)
class Reservation:
    """Capacity booked on the calendar for a team, from `start_s` until just before `end_s`."""

    id: str
    team: str
    amounts: Amounts
    start_s: int
    end_s: int


@dataclass(frozen=True, slots=True)
class Policy:
    """The site's rules. A request that waited `max_wait_s` goes before all younger ones.

    A request is due `due_after` times its duration after it was made, and `share_delay_s` later for each
    fair part of what is lent that its team takes; who is due first comes first.

    `backfill_depth` bounds how many requests a cycle looks at behind a reserved start. An
    overrunning workload is expected to go on for `overdue_s`. Nobody has to leave before `min_run_s`, and
    longer after each time it had to; nor where who wants its place would get one within `patience_s` anyhow.
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
    """All that a decision depends on. `capacity` is what the site has, `site_limits` what it allows."""

    now_s: int
    teams: tuple[Team, ...]
    cohorts: tuple[Cohort, ...] = ()
    running: tuple[Running, ...] = ()
    queued: tuple[Workload, ...] = ()
    reservations: tuple[Reservation, ...] = ()
    capacity: Amounts = field(default_factory=dict)
    site_limits: Amounts = field(default_factory=dict)
    policy: Policy = Policy()


@dataclass(frozen=True, slots=True)
class Eta:
    """When a request is expected to start (UTC seconds), or None; the basis is a `WaitBasis`."""

    eta_s: int | None
    basis: Reason


@dataclass(frozen=True, slots=True)
class Holder:
    """A team that holds `amount` of the resource, and when some of it is expected back (None: unknown).

    `idle` of it has not been used for `idle_s` seconds at least; 0 and -1 where none is known to be idle.
    """

    team: str
    amount: int
    next_end_s: int | None
    idle: int = 0
    idle_s: int = -1


@dataclass(frozen=True, slots=True)
class Blocker:
    """The rule in the way: `wanted` of `resource`, of which `free` are left of `limit`."""

    rule: Rule
    resource: str = ""
    wanted: int = 0
    free: int = 0
    limit: int = 0
    holders: tuple[Holder, ...] = ()


class PreemptionCode(StrEnum):
    """Why a workspace has to make room; the first three as Kueue's `InClusterQueue`, `InCohortReclamation`
    and `InCohortFairSharing`. Rows and REST have its `PreemptionCause` instead."""

    IN_TEAM = "in_team"
    RECLAIM = "reclaim"
    FAIR_SHARE = "fair_share"
    RESERVATION_BEGUN = "reservation_begun"


@dataclass(frozen=True, slots=True)
class Victim:
    """A running workload that has to leave for `beneficiary` (a workload's or reservation's id)."""

    workload: str
    team: str
    reason: PreemptionCode
    beneficiary: str


@dataclass(frozen=True, slots=True)
class BackfillReservation:
    """A blocked request with a reserved start: back-fill behind it may not move `start_s` (Slurm's term)."""

    workload: str
    start_s: int
    resource: str


@dataclass(frozen=True, slots=True)
class Cycle:
    """What to do now: whom to start, in this order, and whom to ask to leave; and who is protected.

    `backfilled` names those of `starts` that overtook a reserved start, `lapsed_nominations` those for which
    enough left in vain: they wait in the usual order again.
    """

    starts: tuple[str, ...] = ()
    backfilled: frozenset[str] = frozenset()
    victims: tuple[Victim, ...] = ()
    backfill_reservations: tuple[BackfillReservation, ...] = ()
    lapsed_nominations: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class QueueVerdict:
    """The outcome for one request. `position` counts from 1; `eta_s` is None where `basis` says why.

    `blocker` is None only where it fits now; `basis` only where it never starts by itself.
    """

    outcome: Outcome
    position: int = 0
    eta_s: int | None = None
    basis: Reason | None = None
    blocker: Blocker | None = None
    victims: tuple[Victim, ...] = ()
    alternatives: tuple[str, ...] = ()
