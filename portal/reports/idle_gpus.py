"""Idle GPU-hours by team and reason: freed, kept, and the part that current policies would free.

The page, REST and CSV use `report`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, time, timedelta
from typing import Any
from uuid import UUID

from django.db.models import Q
from django.utils import timezone

from portal.common.errors import InvalidInput
from portal.common.reasons.reason import Reason
from portal.fleet.inventory.models import AllocatedDevice
from portal.people.accounts.models import Team, User
from portal.reclaim.effective import PolicySet, ScopeKeys, policy_set
from portal.reclaim.engine.idle_time import idle_seconds
from portal.reclaim.engine.replay import RecordedRun, replay
from portal.reclaim.models import IdleKind, LastPass
from portal.reclaim.observing import IDLE_PERIODS_KEPT
from portal.reclaim.previews import idle_periods, keep_periods
from portal.reports.codes import ReportCode
from portal.reports.days import MILLI, DevicePart, device_parts
from portal.reports.freed import freed_devices
from portal.reports.gpu_use import MAX_ROWS, team_for

MAX_DAYS = IDLE_PERIODS_KEPT.days
"""Days for which idle periods are kept."""


@dataclass(frozen=True, slots=True)
class IdleAmounts:
    """GPU time of workspaces with accelerators, in thousandths of GPU-seconds.

    `kept` is idle time by reason, in periods of 10 minutes or more with all GPUs of a workspace at 0 %.
    `given_back` was freed by Berth's stops, by reason code. `would_give_back` is the time that current
    policies would have freed in addition.
    """

    held: float = 0.0
    kept: dict[str, float] = field(default_factory=dict)
    given_back: dict[str, float] = field(default_factory=dict)
    would_give_back: float = 0.0

    @property
    def idle(self) -> float:
        """All time with idle GPUs, kept for any reason."""
        return sum(self.kept.values())

    @property
    def returned(self) -> float:
        """All time freed, for any reason."""
        return sum(self.given_back.values())


@dataclass(frozen=True, slots=True)
class IdleLine:
    """Idle GPU-hours of one team."""

    team: str
    amounts: IdleAmounts


@dataclass(frozen=True, slots=True)
class IdleReport:
    """Idle GPU time from `since` to `until`, both inclusive (UTC).

    `recorded_since` is when the portal began to record idle periods (None: not yet). `lines` are ordered by
    idle time, largest first, up to `MAX_ROWS`; `cut` means that there are more.
    """

    since: date
    until: date
    recorded_since: datetime | None
    team: Team | None
    total: IdleAmounts
    lines: tuple[IdleLine, ...]
    cut: bool


@dataclass(slots=True)
class _Start:
    """One start of a workspace: its GPUs in thousandths, and when they were allocated (Unix time)."""

    workspace: UUID
    team: str
    scope_keys: ScopeKeys
    milli: float
    begin_s: float
    end_s: float


class _Sums:
    """Amounts by team, and their total."""

    def __init__(self) -> None:
        self.found: dict[str, Counter[tuple[str, str]]] = {}
        self.total: Counter[tuple[str, str]] = Counter()

    def add(self, team: str, kind: str, name: str, amount: float) -> None:
        for sums in (self.found.setdefault(team, Counter()), self.total):
            sums[kind, name] += amount  # type: ignore[assignment]


def _amounts(sums: Counter[tuple[str, str]]) -> IdleAmounts:
    by_kind: dict[str, dict[str, float]] = {"kept": {}, "given_back": {}}
    for (kind, name), amount in sorted(sums.items()):
        if kind in by_kind and amount:
            by_kind[kind][name] = amount
    return IdleAmounts(sums["held", ""], by_kind["kept"], by_kind["given_back"], sums["would", ""])


def report(
    *, actor: User, since: date | None = None, until: date | None = None, team: str = ""
) -> IdleReport:
    """Return idle GPU time, with nine queries plus permission checks.

    For operators and auditors, and for a team's owners. Raises `NotAllowed`, `NotFound`, `InvalidInput`.
    """
    of_team = team_for(actor, team)
    now = timezone.now()
    today = now.astimezone(UTC).date()
    until = until or today
    since = since or until - timedelta(days=MAX_DAYS - 2)
    if not 0 <= (until - since).days < MAX_DAYS:
        reason = Reason(ReportCode.DAYS_OUT_OF_RANGE, {"maximum": MAX_DAYS})
        raise InvalidInput(reason, errors={"since": [reason]})
    begin_s = datetime.combine(since, time(), UTC).timestamp()
    end_s = min(datetime.combine(until + timedelta(days=1), time(), UTC).timestamp(), now.timestamp())
    recorded = LastPass.objects.filter(pk=1).values_list("recorded_since", flat=True).first()
    parts = device_parts()
    sums = _Sums()
    slug = of_team.slug if of_team is not None else ""
    _add_starts(sums, _starts(parts, begin_s, end_s, slug))
    for freed in freed_devices(begin_s, end_s):
        if freed.device in parts and slug in ("", freed.team):
            amount = parts[freed.device].milli * freed.milli / MILLI * freed.seconds
            sums.add(freed.team, "given_back", freed.code, amount)
    lines = [IdleLine(name, _amounts(amounts)) for name, amounts in sums.found.items()]
    lines.sort(key=lambda line: (-line.amounts.idle, -line.amounts.returned, line.team))
    return IdleReport(
        since, until, recorded, of_team, _amounts(sums.total), tuple(lines[:MAX_ROWS]), len(lines) > MAX_ROWS
    )


def _add_starts(sums: _Sums, starts: dict[tuple[UUID, int], _Start]) -> None:
    """Add these starts' allocations, their idle time by reason, and the time that policies would free."""
    if not starts:
        return
    earliest = datetime.fromtimestamp(min(start.begin_s for start in starts.values()), UTC)
    periods = idle_periods(set(starts), earliest)
    kept_periods = keep_periods({start.workspace for start in starts.values()}, earliest)
    policies: PolicySet = policy_set()
    for key, start in starts.items():
        own = periods.get(key, {})
        past = RecordedRun(
            start.begin_s,
            start.end_s,
            tuple(own.get(IdleKind.ALL, ())),
            tuple(own.get(IdleKind.GPU, ())),
            tuple(period for period in kept_periods.get(start.workspace, ()) if period.begin_s < start.end_s),
        )
        policy = policies.policy(start.scope_keys)
        sums.add(start.team, "held", "", start.milli * (start.end_s - start.begin_s))
        for reason, seconds in idle_seconds(past, policy).items():
            sums.add(start.team, "kept", reason.value, start.milli * seconds)
        freed_s = sum(stop.freed_s for stop in replay(past, policy))
        sums.add(start.team, "would", "", start.milli * freed_s)


def _starts(
    parts: dict[UUID, DevicePart], begin_s: float, end_s: float, team: str
) -> dict[tuple[UUID, int], _Start]:
    """Return the starts with real accelerators in this period, by workspace and generation. One query."""
    begin, end = (datetime.fromtimestamp(seconds, UTC) for seconds in (begin_s, end_s))
    rows = AllocatedDevice.objects.filter(
        Q(allocation__released_at=None) | Q(allocation__released_at__gt=begin), allocation__granted_at__lt=end
    )
    if team:
        rows = rows.filter(allocation__workspace__team__slug=team)
    starts: dict[tuple[UUID, int], _Start] = {}
    for device, milli, granted, released, workspace, generation, team_slug, *scope in _values(rows):
        from_s = max(granted.timestamp(), begin_s)
        until_s = min(released.timestamp(), end_s) if released else end_s
        if device not in parts or until_s <= from_s:
            continue
        share = parts[device].milli * milli / MILLI
        start = starts.get((workspace, generation))
        if start is None:
            pool, template, flavor, team_id = scope
            scope_keys = ScopeKeys(pool, template, flavor, team_id, accelerated=True)
            starts[workspace, generation] = _Start(
                workspace, team_slug or "", scope_keys, share, from_s, until_s
            )
        else:
            start.milli += share
            start.begin_s, start.end_s = min(start.begin_s, from_s), max(start.end_s, until_s)
    return starts


def _values(rows: Any) -> Iterable[tuple[Any, ...]]:
    values: Iterable[tuple[Any, ...]] = rows.values_list(
        "device_id",
        "milli",
        "allocation__granted_at",
        "allocation__released_at",
        "allocation__workspace_id",
        "allocation__generation",
        "allocation__workspace__team__slug",
        "allocation__workspace__pool_id",
        "allocation__workspace__template_id",
        "allocation__workspace__flavor_id",
        "allocation__workspace__team_id",
    ).iterator(chunk_size=5000)
    return values
