"""Daily sums of GPU use. Only this module writes `GpuDay`. Idempotent.

A real device counts on days when it was measured or allocated. MIG instances count as parts of their GPU, and
then the GPU itself does not count.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from typing import Any
from uuid import UUID

from django.conf import settings
from django.db import transaction
from django.db.models import F, Min, Q
from django.utils import timezone

from portal.catalog.models import Flavor
from portal.common.events.kinds import AuditKind
from portal.common.events.models import Event
from portal.fleet.inventory.models import AllocatedDevice, Device, DeviceHour
from portal.fleet.inventory.resources import GPU
from portal.people.accounts.domain_events import TeamDeleted
from portal.reports.freed import freed_devices
from portal.reports.models import Dimension, GpuDay
from portal.workspaces.models import Workspace

HOUR_S, DAY_S, MILLI = 3600, 86_400, 1000
FIGURES = (
    "capacity", "measured", "used", "held", "held_measured", "held_used", "reclaimed", "waited",
    "cost",
)  # fmt: skip
WAITED = timedelta(days=7)
"""Waiting time after which a request no longer counts."""
AT_ONCE = 10
BATCH = 2000
OPENS = frozenset(
    {
        AuditKind.WORKSPACE_REQUESTED,
        AuditKind.WORKSPACE_START,
        AuditKind.WORKSPACE_RETRY,
        AuditKind.WORKSPACE_NO_CAPACITY,
    }
)
CLOSES = frozenset(
    {
        AuditKind.WORKSPACE_PLACE,
        AuditKind.WORKSPACE_CANCEL,
        AuditKind.WORKSPACE_TERMINATE,
        AuditKind.WORKSPACE_FAIL,
        AuditKind.WORKSPACE_TERMINATED,
    }
)


@dataclass(frozen=True, slots=True)
class DevicePart:
    """A device: its weight in thousandths of a GPU, its model, and its node."""

    milli: float
    model: str
    node: str


@dataclass(frozen=True, slots=True)
class _Holder:
    """Team, user and flavor of an allocation, or of a waiting request."""

    team: str
    user: str
    flavor: str


class _Sums:
    """Amounts by team, dimension and key."""

    def __init__(self) -> None:
        self.found: dict[tuple[str, str, str], Counter[str]] = defaultdict(Counter)
        # Ensures that the day has a row even without amounts.
        self.found["", Dimension.ALL, ""].update()

    def add(self, part: DevicePart | None, holder: _Holder | None, **amounts: float) -> None:
        """Add amounts for a device (`None`: no particular one) and a holder (`None`: all together)."""
        keys: list[tuple[str, str]] = [(Dimension.ALL, "")]
        if part is not None:
            keys += [(Dimension.MODEL, part.model), (Dimension.NODE, part.node)]
        scopes = [""]
        if holder is not None:
            keys += [(Dimension.USER, holder.user), (Dimension.FLAVOR, holder.flavor)]
            scopes.append(holder.team)
            self._add(("", Dimension.TEAM, holder.team), amounts)
        for scope in scopes:
            for dimension, key in keys:
                self._add((scope, dimension, key), amounts)

    def _add(self, key: tuple[str, str, str], amounts: dict[str, float]) -> None:
        row = self.found[key]
        for name, amount in amounts.items():
            row[name] += amount  # type: ignore[assignment]

    def rows(self, day: date) -> list[GpuDay]:
        return [
            GpuDay(
                day=day,
                team=team,
                dimension=dimension,
                key=key[:255],
                **{name: round(sums[name]) for name in FIGURES},
            )
            for (team, dimension, key), sums in self.found.items()
        ]


def run(now: datetime | None = None) -> list[date]:
    """Write today, yesterday and missing days, and return them.

    Shortly after midnight, also writes earlier days whose minutes may have arrived late.
    """
    now = now or timezone.now()
    today = now.astimezone(UTC).date()
    late = max(1, settings.BERTH_KEEP_MINUTES_DAYS) if now.astimezone(UTC).hour < 2 else 1
    days = [today - timedelta(days=days_ago) for days_ago in range(late + 1)]
    days += days_without_sums(today - timedelta(days=late + 1))[: max(0, AT_ONCE - len(days))]
    for day in days:
        write(day, now=now)
    GpuDay.objects.filter(day__lt=today - timedelta(days=keep_days())).delete()
    return days


def keep_days() -> int:
    """Return how many days sums are kept: as long as hourly data, but at least 2 years."""
    return max(int(settings.BERTH_KEEP_HOURS_DAYS), 731)


def days_without_sums(newest: date) -> list[date]:
    """Return days with samples but without sums, newest first, for example after a long outage."""
    first_s = DeviceHour.objects.aggregate(first=Min("start_s"))["first"]
    if first_s is None:
        return []
    oldest = datetime.fromtimestamp(first_s, UTC).date()
    present = set(
        GpuDay.objects.filter(team="", dimension=Dimension.ALL, day__gte=oldest).values_list("day", flat=True)
    )
    span = range((newest - oldest).days + 1)
    return [day for days_ago in span if (day := newest - timedelta(days=days_ago)) not in present]


def write(day: date, *, now: datetime | None = None) -> None:
    """Replace the rows of a day."""
    rows = sums_of(day, now=now or timezone.now()).rows(day)
    with transaction.atomic():
        GpuDay.objects.filter(day=day).delete()
        GpuDay.objects.bulk_create(rows, batch_size=BATCH)


def sums_of(day: date, *, now: datetime) -> _Sums:
    """Return the sums of a day until `now`."""
    begin_s = datetime.combine(day, time(), UTC).timestamp()
    end_s = min(begin_s + DAY_S, now.timestamp())
    sums = _Sums()
    if end_s <= begin_s:
        return sums
    parts = device_parts()
    hours = _hours(parts, begin_s, end_s)
    allocations = _allocations_by_device(parts, begin_s, end_s)
    prices = _prices()
    for device in hours.keys() | allocations.keys():
        part = parts[device]
        sums.add(part, None, capacity=part.milli * (end_s - begin_s))
        for _start_s, seen_s, used_s in hours.get(device, ()):
            sums.add(part, None, measured=part.milli * seen_s, used=part.milli * used_s)
        for holder, milli, from_s, until_s in allocations.get(device, ()):
            share = part.milli * milli / MILLI
            seen, used = _measured_and_used(hours.get(device, ()), from_s, until_s, end_s)
            lasted_s = until_s - from_s
            sums.add(
                part,
                holder,
                held=share * lasted_s,
                held_measured=share * min(seen, lasted_s),
                held_used=share * min(used, seen, lasted_s),
                cost=prices.get(holder.flavor, 0.0) * MILLI * lasted_s / HOUR_S,
            )
    _add_reclaimed(sums, parts, begin_s, end_s)
    _add_waiting(sums, begin_s, end_s)
    return sums


def _measured_and_used(
    hours: Iterable[tuple[int, int, float]], from_s: float, until_s: float, end_s: float
) -> tuple[float, float]:
    """Return the measured and used seconds in an interval, assuming even use within each hour."""
    seen = used = 0.0
    for start_s, measured_s, used_s in hours:
        overlap = min(until_s, start_s + HOUR_S) - max(from_s, start_s)
        if overlap > 0:
            # The current hour only has values for its elapsed part.
            part = overlap / max(1.0, min(HOUR_S, end_s - start_s))
            seen += measured_s * part
            used += used_s * part
    return seen, used


def _prices() -> dict[str, float]:
    """Return the current price per hour and device by flavor, in cents."""
    rows = Flavor.objects.filter(price_cents__isnull=False, accelerator_count__gt=0)
    # Another flavor may use the slug of a deleted one.
    return {
        slug: (price or 0) / (count * max(1, nodes))
        for slug, price, count, nodes in rows.order_by(F("deleted_at").asc(nulls_last=True)).values_list(
            "slug", "price_cents", "accelerator_count", "nodes"
        )
    }


def device_parts() -> dict[UUID, DevicePart]:
    """Return the weight, model and node of all real devices; the weight of a partitioned GPU is 0."""
    rows = list(
        Device.objects.filter(node__pool__simulated=False).values_list(
            "pk", "uuid", "parent_uuid", "model", "node__name", "node__pool__slug", "present"
        )
    )
    cut = Counter(parent for _pk, _uuid, parent, *_rest, present in rows if parent and present)
    parts = {}
    for pk, uuid, parent, model, node, pool, _present in rows:
        milli = 0.0 if cut.get(uuid) else MILLI / max(1, cut.get(parent, 1)) if parent else float(MILLI)
        parts[pk] = DevicePart(milli, model, f"{pool}/{node}")
    return parts


def _hours(
    parts: dict[UUID, DevicePart], begin_s: float, end_s: float
) -> dict[UUID, list[tuple[int, int, float]]]:
    """Return the start, measured seconds and used seconds of each hour of the day, by device."""
    hours: dict[UUID, list[tuple[int, int, float]]] = defaultdict(list)
    rows = DeviceHour.objects.filter(start_s__gte=begin_s, start_s__lt=end_s, gpu_s__isnull=False)
    for device, start_s, gpu_s, pct_s in rows.values_list(
        "series__device_id", "start_s", "gpu_s", "gpu_pct_s"
    ).iterator(chunk_size=5000):
        if device in parts:
            hours[device].append((start_s, gpu_s or 0, (pct_s or 0) / 100))
    return hours


def _allocations_by_device(
    parts: dict[UUID, DevicePart], begin_s: float, end_s: float
) -> dict[UUID, list[tuple[_Holder, int, float, float]]]:
    """Return the holder, thousandths, start and end of the day's allocations, by device."""
    begin, end = (datetime.fromtimestamp(seconds, UTC) for seconds in (begin_s, end_s))
    rows = AllocatedDevice.objects.filter(
        Q(allocation__released_at=None) | Q(allocation__released_at__gt=begin), allocation__granted_at__lt=end
    )
    allocations: dict[UUID, list[tuple[_Holder, int, float, float]]] = defaultdict(list)
    for device, milli, granted, released, *holder_texts in rows.values_list(
        "device_id",
        "milli",
        "allocation__granted_at",
        "allocation__released_at",
        "allocation__workspace__team__slug",
        "allocation__workspace__owner__username",
        "allocation__flavor",
    ).iterator(chunk_size=5000):
        assert granted is not None  # by the filter
        from_s = max(granted.timestamp(), begin_s)
        until_s = min(released.timestamp(), end_s) if released else end_s
        if device in parts and until_s > from_s:
            allocations[device].append((_holder(holder_texts), milli, from_s, until_s))
    return allocations


def _holder(texts: Iterable[str | None]) -> _Holder:
    return _Holder(*(text or "" for text in texts))


def _add_reclaimed(sums: _Sums, parts: dict[UUID, DevicePart], begin_s: float, end_s: float) -> None:
    for freed in freed_devices(begin_s, end_s):
        if freed.device in parts:
            part = parts[freed.device]
            holder = _Holder(freed.team, freed.user, freed.flavor)
            sums.add(part, holder, reclaimed=part.milli * freed.milli / MILLI * freed.seconds)


def _add_waiting(sums: _Sums, begin_s: float, end_s: float) -> None:
    """Add requested GPUs, from the request until placement, cancellation or failure."""
    since, end = datetime.fromtimestamp(begin_s, UTC) - WAITED, datetime.fromtimestamp(end_s, UTC)
    events = Event.objects.filter(kind__in=OPENS | CLOSES, at__gte=since, at__lt=end, workspace__isnull=False)
    waits: dict[UUID, float] = defaultdict(float)
    open_since: dict[UUID, float] = {}
    for workspace, at, kind in (
        events.order_by("pk").values_list("workspace_id", "at", "kind").iterator(chunk_size=5000)
    ):
        if kind in OPENS:
            open_since.setdefault(workspace, at.timestamp())
        elif (from_s := open_since.pop(workspace, None)) is not None:
            waits[workspace] += max(0.0, at.timestamp() - max(from_s, begin_s))
    for workspace, from_s in open_since.items():
        waits[workspace] += max(0.0, end_s - max(from_s, begin_s))
    keys = [workspace for workspace, seconds in waits.items() if seconds]
    for workspace, amounts, *holder_texts in _requested_rows(keys):
        if milli := (amounts or {}).get(GPU, 0):
            sums.add(None, _holder(holder_texts), waited=milli * waits[workspace])


def _requested_rows(keys: list[UUID]) -> Iterator[tuple[Any, ...]]:
    for first in range(0, len(keys), BATCH):
        rows = Workspace.objects.filter(pk__in=keys[first : first + BATCH])
        yield from rows.values_list("pk", "amounts", "team__slug", "owner__username", "flavor__slug")


def team_deleted(event: TeamDeleted) -> None:
    """Move a deleted team's sums to its new slug, so that the next team with the old slug starts at 0."""
    GpuDay.objects.filter(team=event.former_slug).update(team=event.team.slug)
    of_site = GpuDay.objects.filter(team="", dimension=Dimension.TEAM, key=event.former_slug)
    of_site.update(key=event.team.slug)
