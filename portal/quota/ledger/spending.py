"""The cost of a team's accelerators over a period, from the intervals of their allocations.

Pure except for `intervals` and `intervals_of_owner`, which read them. Short allocations between two ticks are
included.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

from django.db.models import Q

from portal.fleet.inventory.models import AllocatedDevice
from portal.quota.ledger import accounting
from portal.quota.limits import resources
from portal.quota.limits.models import ResourceRate
from portal.quota.limits.types import WEIGHT_ONE
from provisioning.types import WHOLE_DEVICE_MILLI, DeviceKind


@dataclass(frozen=True, slots=True)
class UsageInterval:
    """An `amount` of a resource, allocated from `start_s` to `end_s`; None if it is still allocated."""

    resource: str
    amount: int
    start_s: int
    end_s: int | None = None


@dataclass(frozen=True, slots=True)
class RatePeriod:
    """A period with a constant rate, in thousandths of a ledger unit per second."""

    start_s: int
    end_s: int
    rate: int


def rate_periods(
    usage: Iterable[UsageInterval], weights: Mapping[str, int], start_s: int, end_s: int
) -> Sequence[RatePeriod]:
    """Split the time from `start_s` to `end_s` into periods with a constant rate, without gaps."""
    if start_s >= end_s:
        return []
    changes: dict[int, int] = {start_s: 0}
    for interval in usage:
        first, last = (
            max(interval.start_s, start_s),
            end_s if interval.end_s is None else min(interval.end_s, end_s),
        )
        rate = accounting.burn_rate([{interval.resource: interval.amount}], weights)
        if first >= last or not rate:
            continue
        changes[first] = changes.get(first, 0) + rate
        changes[last] = changes.get(last, 0) - rate
    moments = sorted(moment for moment in changes if moment < end_s)
    periods, rate = [], 0
    for moment, following in zip(moments, [*moments[1:], end_s], strict=True):
        rate += changes[moment]
        if following > moment:
            periods.append(RatePeriod(moment, following, rate))
    return periods


def weights() -> Mapping[str, int]:
    """Return the price of each model per hour, in thousandths. Simulated models are free unless set."""
    return _Weights(ResourceRate.objects.values_list("resource", "rate_milli"))


class _Weights(dict[str, int]):
    def get(self, resource: str, default: int | None = None) -> int:  # type: ignore[override]
        if resource in self:
            return self[resource]
        if ":simulated-" in resource:
            return 0
        return WEIGHT_ONE if default is None else default


def intervals(teams: Iterable[UUID], since: datetime) -> dict[UUID, list[UsageInterval]]:
    """Return the teams' accelerator allocations since `since`, by team. One query."""
    by_team: dict[UUID, list[UsageInterval]] = {}
    for team, usage in _read(Q(allocation__workspace__team__in=list(teams)), since):
        by_team.setdefault(team, []).append(usage)
    return by_team


def intervals_of_owner(owner: UUID, since: datetime) -> list[UsageInterval]:
    """Return the accelerator allocations of a user's workspaces in all teams since `since`. One query."""
    return [usage for _team, usage in _read(Q(allocation__workspace__owner=owner), since)]


def _read(of: Q, since: datetime) -> Iterator[tuple[UUID, UsageInterval]]:
    """Yield the team and usage of each allocation that ended after `since` or lasts."""
    rows = AllocatedDevice.objects.filter(
        of,
        Q(allocation__released_at=None) | Q(allocation__released_at__gt=since),
        allocation__granted_at__isnull=False,
    )
    for team, model, kind, profile, simulated, milli, start, end in rows.values_list(
        "allocation__workspace__team_id", "device__model", "device__kind", "device__mig_profile",
        "device__node__pool__simulated", "milli", "allocation__granted_at", "allocation__released_at",
    ):  # fmt: skip
        assert start is not None  # by the filter
        resource, amount = resources.gpu(model), milli
        if kind == DeviceKind.MIG.value and profile:
            resource, amount = resources.mig(profile, simulated=simulated), WHOLE_DEVICE_MILLI
        yield team, UsageInterval(resource, amount, _seconds(start), _seconds(end) if end else None)


def _seconds(moment: datetime) -> int:
    return int(moment.timestamp())
