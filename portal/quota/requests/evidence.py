"""Evidence for decisions on requests: usage, free capacity, and the effect on other teams.

The number of queries does not grow with the number of requests. Unmeasured values are None, never 0.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from django.db.models import Q, QuerySet, Sum
from django.utils import timezone

from portal.common.formatting import units_per_whole
from portal.fleet.inventory import counting
from portal.fleet.inventory.counting import Counts
from portal.fleet.inventory.device_states import flag, is_idle, is_measured
from portal.fleet.inventory.models import AllocatedDevice, Allocation
from portal.fleet.inventory.series import GpuUse, gpu_uses
from portal.quota.ledger.models import LedgerAccount
from portal.quota.limits import resources
from portal.quota.limits.models import Cohort, Grant, Quota, SiteLimit, TeamShare
from portal.quota.requests.models import QuotaRequest, RequestKind, RequestState
from portal.workspaces.lifecycle import HOLDING
from portal.workspaces.models import Workspace
from provisioning.types import DeviceKind

PERIOD = timedelta(days=30)
EARLIER = 5
EARLIER_READ = 400


@dataclass(frozen=True, slots=True)
class BorrowingTeam:
    """A team, and the borrowed amount that the grant would reclaim from it."""

    team: str
    amount: int


@dataclass(frozen=True, slots=True)
class IdleAccelerators:
    """Accelerators that the team has now; `idle` of the `measured` ones are idle."""

    allocated: int
    measured: int
    idle: int

    @property
    def percent(self) -> int | None:
        """The idle part of the measured accelerators in percent, or None."""
        return round(100 * self.idle / self.measured) if self.measured else None


@dataclass(frozen=True, slots=True)
class Evidence:
    """Evidence on a request. Amounts are in the resource's base unit.

    - `held_unit_s`: base units × seconds over the last 30 days.
    - `of_user`: usage is the requester's (a cap) instead of the team's.
    - `quota`: nominal quota and grants of the team; None without a quota.
    - `cohort_left`: unused quota of the cohort; None without a cohort.
    - `size`, `free`: amount in service at the site, and unallocated; None if not counted.
    - `use`: utilisation of the team's GPUs; None for requests about other resources.
    """

    request: QuotaRequest
    of_user: bool
    held_unit_s: int
    workspaces: int
    used: int
    idle: IdleAccelerators | None
    quota: int | None
    grant: int
    cohort: str
    cohort_left: int | None
    size: int | None
    committed: int
    free: int | None
    borrowers: tuple[BorrowingTeam, ...] = ()
    earlier: tuple[QuotaRequest, ...] = ()
    balance: int | None = None
    use: GpuUse | None = None

    @property
    def mean(self) -> int:
        """The average usage over 30 days, in base units."""
        return self.held_unit_s // int(PERIOD.total_seconds())

    @property
    def hours(self) -> int:
        """Usage in 30 days, in display units × hours (GPU-hours for accelerators)."""
        return round(self.held_unit_s / (units_per_whole(self.counted_in) * 3600))

    @property
    def counted_in(self) -> str:
        """The resource of the usage numbers: for GPU-hours, accelerators of all models."""
        return resources.GPU if self.request.resource == resources.GPU_HOURS else self.request.resource

    @property
    def shortfall(self) -> int:
        """The part of the requested amount that is not free now."""
        return max(0, self.request.amount - self.free) if self.free is not None else 0


@dataclass(slots=True)
class _EvidenceRows:
    """The rows that evidence is computed from, read once."""

    now: datetime
    used: dict[tuple[UUID, str], int] = field(default_factory=dict)
    used_by_user: dict[tuple[UUID, UUID, str], int] = field(default_factory=dict)
    nominal: dict[tuple[UUID, str], int] = field(default_factory=dict)
    cohort_nominal: dict[tuple[UUID, str], int] = field(default_factory=dict)
    grant: dict[tuple[UUID, str], int] = field(default_factory=dict)
    root_of: dict[UUID, UUID] = field(default_factory=dict)
    roots: dict[UUID, Cohort] = field(default_factory=dict)
    cohorts_in: dict[UUID, set[UUID]] = field(default_factory=dict)
    reclaims: dict[UUID, bool] = field(default_factory=dict)
    names: dict[UUID, str] = field(default_factory=dict)
    counts: Counts = field(default_factory=dict)
    site_limits: dict[str, int] = field(default_factory=dict)

    def quota(self, team: UUID, resource: str) -> int | None:
        key = (team, resource)
        if key not in self.nominal and key not in self.grant:
            return None
        return self.nominal.get(key, 0) + self.grant.get(key, 0)

    def remaining(self, resource: str) -> tuple[int | None, int | None]:
        """Return the amounts in service and free, bounded by the site's limit."""
        count, limit = self.counts.get(resource), self.site_limits.get(resource)
        if count is None:
            return None, None
        if limit is None:
            return count.in_service, count.free
        used = sum(amount for (_, name), amount in self.used.items() if name == resource)
        return min(count.in_service, limit), max(0, min(count.free, limit - used))

    def peers(self, team: UUID) -> list[UUID]:
        """Return the teams of the same cohort tree, including `team`."""
        root = self.root_of.get(team)
        return [other for other, of in self.root_of.items() if of == root] if root else []


def evidence_for(requests: Sequence[QuotaRequest]) -> dict[UUID, Evidence]:
    """Return the evidence by request id."""
    if not requests:
        return {}
    rows = _load_rows()
    teams = {request.team_id for request in requests}
    holdings = _load_holdings(teams, rows.now, requests)
    idle = _idle_counts(teams, rows.now)
    earlier = _decided_requests(requests)
    balances = {
        account.team_id: account.quota + account.credit - account.spent
        for account in LedgerAccount.objects.filter(team__in=teams)
    }
    gpus = {request.team_id for request in requests if _is_accelerator(request.resource)}
    uses = gpu_uses(gpus, rows.now - PERIOD, now=rows.now) if gpus else {}
    return {
        request.pk: _build_evidence(
            request, rows, holdings, idle, uses, earlier, balances.get(request.team_id)
        )
        for request in requests
    }


def _build_evidence(
    request: QuotaRequest,
    rows: _EvidenceRows,
    holdings: _PastUsage,
    idle: Mapping[tuple[UUID, str], IdleAccelerators],
    uses: Mapping[UUID, GpuUse],
    earlier: Mapping[tuple[UUID, str], list[QuotaRequest]],
    balance: int | None,
) -> Evidence:
    team, user = request.team_id, request.requester_id
    resource = resources.GPU if request.resource == resources.GPU_HOURS else request.resource
    own = request.kind == RequestKind.MEMBER_CAP
    size, free = rows.remaining(resource)
    root = rows.roots.get(rows.root_of[team]) if team in rows.root_of else None
    raises_quota = request.kind == RequestKind.QUOTA
    return Evidence(
        request=request,
        of_user=own,
        held_unit_s=holdings.by_user.get((team, user, resource), 0)
        if own
        else holdings.by_team.get((team, resource), 0),
        workspaces=len(
            holdings.workspaces_of_user.get((team, user), ()) if own else holdings.workspaces.get(team, ())
        ),
        used=rows.used_by_user.get((team, user, resource), 0) if own else rows.used.get((team, resource), 0),
        idle=idle.get((team, resource)),
        quota=rows.quota(team, resource),
        grant=rows.grant.get((team, resource), 0),
        cohort=root.name if root else "",
        cohort_left=_cohort_left(rows, team, resource),
        size=size,
        committed=sum(
            amount
            for table in (rows.nominal, rows.cohort_nominal, rows.grant)
            for (_, name), amount in table.items()
            if name == resource
        ),
        free=free,
        borrowers=_borrowers(rows, team, resource, max(0, request.amount - (free or 0)))
        if raises_quota and free is not None
        else (),
        earlier=tuple(row for row in earlier.get((team, request.resource), ()) if row.pk != request.pk)[
            :EARLIER
        ],
        balance=balance if request.kind == RequestKind.LEDGER else None,
        use=uses.get(team, GpuUse()) if _is_accelerator(resource) else None,
    )


def _cohort_left(rows: _EvidenceRows, team: UUID, resource: str) -> int | None:
    peers = rows.peers(team)
    if not peers:
        return None
    quotas = [quota for peer in peers if (quota := rows.quota(peer, resource)) is not None]
    own = [
        rows.cohort_nominal[cohort, resource]
        for cohort in rows.cohorts_in.get(rows.root_of[team], ())
        if (cohort, resource) in rows.cohort_nominal
    ]
    if not quotas and not own:
        return None
    return max(0, sum(quotas) + sum(own) - sum(rows.used.get((peer, resource), 0) for peer in peers))


def _borrowers(rows: _EvidenceRows, team: UUID, resource: str, needed: int) -> tuple[BorrowingTeam, ...]:
    """Return the cohort's largest borrowers, with up to `needed` in total."""
    if not needed or not rows.reclaims.get(team, True):
        return ()
    borrowers = []
    for peer in rows.peers(team):
        borrowed = rows.used.get((peer, resource), 0) - (rows.quota(peer, resource) or 0)
        if peer != team and borrowed > 0:
            borrowers.append((borrowed, rows.names[peer]))
    holders = []
    for borrowed, name in sorted(borrowers, reverse=True):
        if needed <= 0:
            break
        holders.append(BorrowingTeam(name, min(borrowed, needed)))
        needed -= borrowed
    return tuple(holders)


# --- Queries ----------------------------------------------------------------------------------------


def _load_rows() -> _EvidenceRows:
    rows = _EvidenceRows(
        timezone.now(),
        counts=counting.site(),
        site_limits=dict(SiteLimit.objects.values_list("resource", "amount")),
    )
    for team, owner, amounts in _iter_charged():
        for resource, amount in amounts.items():
            rows.used[team, resource] = rows.used.get((team, resource), 0) + amount
            key = (team, owner, resource)
            rows.used_by_user[key] = rows.used_by_user.get(key, 0) + amount
    for team, cohort, resource, nominal in Quota.objects.values_list(
        "team_id", "cohort_id", "resource", "quota"
    ):
        if team is not None:
            rows.nominal[team, resource] = nominal
        else:
            rows.cohort_nominal[cohort, resource] = nominal
    for team, resource, amount in (
        Grant.objects.active(rows.now)
        .filter(user=None)
        .order_by()
        .values_list("team_id", "resource")
        .annotate(Sum("amount"))
    ):
        rows.grant[team, resource] = amount
    cohorts = {cohort.pk: cohort for cohort in Cohort.objects.all()}
    for pk in cohorts:
        root = _root(pk, cohorts)
        rows.roots[root] = cohorts[root]
        rows.cohorts_in.setdefault(root, set()).add(pk)
    for team, name, cohort, reclaim in TeamShare.objects.values_list(
        "team_id", "team__name", "cohort_id", "reclaim"
    ):
        rows.names[team] = name
        rows.reclaims[team] = reclaim
        if cohort is not None:
            rows.root_of[team] = _root(cohort, cohorts)
    return rows


def _iter_charged() -> Iterator[tuple[UUID, UUID, Mapping[str, int]]]:
    """Yield team, owner and amounts of all workspaces that occupy capacity."""
    holding = Workspace.objects.filter(state__in=HOLDING).order_by()
    yield from holding.values_list("team_id", "owner_id", "amounts")


def _root(cohort: UUID, cohorts: Mapping[UUID, Cohort]) -> UUID:
    seen = {cohort}
    while (parent := cohorts[cohort].parent_id) is not None and parent not in seen:
        seen.add(parent)
        cohort = parent
    return cohort


@dataclass(slots=True)
class _PastUsage:
    """Usage of `resources` within the period, in base units × seconds, and the workspaces."""

    resources: frozenset[str]
    by_team: dict[tuple[UUID, str], int] = field(default_factory=dict)
    by_user: dict[tuple[UUID, UUID, str], int] = field(default_factory=dict)
    workspaces: dict[UUID, set[UUID]] = field(default_factory=dict)
    workspaces_of_user: dict[tuple[UUID, UUID], set[UUID]] = field(default_factory=dict)

    def add(self, team: UUID, user: UUID, resource: str, amount: int) -> None:
        if resource not in self.resources:
            return
        self.by_team[team, resource] = self.by_team.get((team, resource), 0) + amount
        self.by_user[team, user, resource] = self.by_user.get((team, user, resource), 0) + amount


def _load_holdings(teams: Iterable[UUID], now: datetime, requests: Sequence[QuotaRequest]) -> _PastUsage:
    since = now - PERIOD
    holdings = _PastUsage(
        frozenset(
            resources.GPU if request.resource == resources.GPU_HOURS else request.resource
            for request in requests
        )
    )
    lasting = Q(released_at=None) | Q(released_at__gt=since)
    rows = Allocation.objects.filter(lasting, workspace__team__in=teams, granted_at__isnull=False)
    counted: set[tuple[UUID, int]] = set()
    for pk, generation, team, user, begun, ended, cpu, memory, disk, simulated in rows.values_list(
        "workspace_id", "generation", "workspace__team_id", "workspace__owner_id", "granted_at",
        "released_at", "cpu_milli", "memory_mib", "disk_mib", "node__pool__simulated",
    ):  # fmt: skip
        assert begun is not None  # by the filter
        seconds = _overlap_s(begun, ended, since, now)
        prefix = resources.SIMULATED if simulated else ""
        for name, amount in ((resources.CPU, cpu), (resources.MEMORY, memory), (resources.DISK, disk)):
            holdings.add(team, user, prefix + name, amount * seconds)
        if (pk, generation) not in counted:
            # A multi-node workspace counts once.
            counted.add((pk, generation))
            holdings.add(team, user, resources.WORKSPACES, seconds)
        holdings.workspaces.setdefault(team, set()).add(pk)
        holdings.workspaces_of_user.setdefault((team, user), set()).add(pk)
    if any(_is_accelerator(request.resource) for request in requests):
        _add_devices(holdings, teams, since, now)
    return holdings


def _is_accelerator(resource: str) -> bool:
    return resources.is_accelerator(resource) or resource in {resources.GPU, resources.GPU_HOURS}


def _add_devices(holdings: _PastUsage, teams: Iterable[UUID], since: datetime, now: datetime) -> None:
    lasting = Q(allocation__released_at=None) | Q(allocation__released_at__gt=since)
    rows = AllocatedDevice.objects.filter(
        lasting, allocation__workspace__team__in=teams, allocation__granted_at__isnull=False
    )
    for team, user, begun, ended, milli, model, kind, profile, simulated in rows.values_list(
        "allocation__workspace__team_id", "allocation__workspace__owner_id", "allocation__granted_at",
        "allocation__released_at", "milli", "device__model", "device__kind", "device__mig_profile",
        "device__node__pool__simulated",
    ):  # fmt: skip
        assert begun is not None  # by the filter
        amount = milli * _overlap_s(begun, ended, since, now)
        for name in resources.device_resources(
            model, mig_instance=kind == DeviceKind.MIG.value, profile=profile, simulated=simulated
        ):
            holdings.add(team, user, name, amount)


def _overlap_s(begun: datetime, ended: datetime | None, since: datetime, now: datetime) -> int:
    return max(0, int((min(ended or now, now) - max(begun, since)).total_seconds()))


def _idle_counts(teams: Iterable[UUID], now: datetime) -> dict[tuple[UUID, str], IdleAccelerators]:
    """Return the number of allocated, measured and idle accelerators by team and model."""
    by_key: dict[tuple[UUID, str], IdleAccelerators] = {}
    rows: QuerySet[Any] = AllocatedDevice.objects.filter(
        active=True, allocation__workspace__team__in=teams
    ).annotate(measured=flag(is_measured(now, "device__")), idle=flag(is_idle(now, "device__")))
    for team, model, kind, profile, simulated, measured, idle in rows.values_list(
        "allocation__workspace__team_id", "device__model", "device__kind", "device__mig_profile",
        "device__node__pool__simulated", "measured", "idle",
    ):  # fmt: skip
        for name in resources.device_resources(
            model, mig_instance=kind == DeviceKind.MIG.value, profile=profile, simulated=simulated
        ):
            was = by_key.get((team, name), IdleAccelerators(0, 0, 0))
            by_key[team, name] = IdleAccelerators(was.allocated + 1, was.measured + measured, was.idle + idle)
    return by_key


def _decided_requests(requests: Sequence[QuotaRequest]) -> dict[tuple[UUID, str], list[QuotaRequest]]:
    """Return decided requests of the same teams for the same resources, newest first."""
    rows = (
        QuotaRequest.objects.filter(
            team__in={request.team_id for request in requests},
            resource__in={request.resource for request in requests},
        )
        .exclude(state=RequestState.OPEN)
        .select_related("decided_by", "requester")
        .order_by("-created_at", "-id")[:EARLIER_READ]
    )
    requests_by_key: dict[tuple[UUID, str], list[QuotaRequest]] = {}
    for row in rows:
        requests_by_key.setdefault((row.team_id, row.resource), []).append(row)
    return requests_by_key
