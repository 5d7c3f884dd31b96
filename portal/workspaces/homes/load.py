"""Average resource use of the owners of homes, by node, because workspaces start where their homes are.

Each home has a decaying average of the GPUs and cores that its owner held in the pool. A new home is assumed
to need one GPU and one core, until its owner's use is measured.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from datetime import datetime, timedelta
from uuid import UUID

from django.db import transaction
from django.db.models import Q, Sum
from django.utils import timezone

from portal.common.domain_events import emit
from portal.fleet.inventory.models import AllocatedDevice, Allocation
from portal.workspaces.domain_events import HomesChanged
from portal.workspaces.models import HomePlace
from portal.workspaces.models.homes import HOME_USE_HALF_LIFE_S, HOME_USE_MEAN_S

MEASURED_EVERY = timedelta(minutes=50)
"""Minimum interval between two measurements of a home."""
BATCH = 500
Home = tuple[UUID, UUID, UUID]
"""Owner, team and pool."""
Use = tuple[int, int]
"""Milli-GPU and milli-CPU."""


def by_node(nodes: Q) -> dict[UUID, Use]:
    """Return the average use of the homes on each node. `nodes` filters by `node`."""
    sums = HomePlace.objects.filter(nodes).order_by().values_list("node_id")
    rows = sums.annotate(Sum("gpu_milli_s"), Sum("cpu_milli_s"))
    return {node: (gpu // HOME_USE_MEAN_S, cpu // HOME_USE_MEAN_S) for node, gpu, cpu in rows}


def measure(*, now: datetime | None = None) -> int:
    """Update the averages that are due. Returns the number of updated homes."""
    now = now or timezone.now()
    due_places = HomePlace.objects.filter(measured_at__lte=now - MEASURED_EVERY).order_by("pk")
    keys = list(due_places.values_list("pk", flat=True))
    return sum(_measure(keys[begin : begin + BATCH], now) for begin in range(0, len(keys), BATCH))


@transaction.atomic
def _measure(keys: Sequence[int], now: datetime) -> int:
    """Update the averages of some homes, except locked ones."""
    rows = HomePlace.objects.select_for_update(of=("self",), skip_locked=True).filter(pk__in=keys)
    places = list(rows.order_by("pk"))
    if not places:
        return 0
    since = {(place.owner_id, place.team_id, place.pool_id): place.measured_at for place in places}
    used = _used(since, now)
    for place in places:
        elapsed_s = (now - place.measured_at).total_seconds()
        decay = 0.5 ** (elapsed_s / HOME_USE_HALF_LIFE_S)
        # Assumes even use since the last measurement.
        weight = HOME_USE_MEAN_S * (1 - decay) / elapsed_s
        gpu, cpu = used[place.owner_id, place.team_id, place.pool_id]
        place.gpu_milli_s = round(place.gpu_milli_s * decay + gpu * weight)
        place.cpu_milli_s = round(place.cpu_milli_s * decay + cpu * weight)
        place.measured_at = now
    HomePlace.objects.bulk_update(places, ["gpu_milli_s", "cpu_milli_s", "measured_at"])
    emit(HomesChanged(tuple(sorted({place.node_id for place in places}))))
    return len(places)


def _used(since: dict[Home, datetime], now: datetime) -> defaultdict[Home, Use]:
    """Return the use of each home's owner in its pool since then, in milli-GPU and milli-CPU seconds."""
    begin = min(since.values())
    allocations = Allocation.objects.filter(
        Q(released_at=None) | Q(released_at__gt=begin),
        workspace__owner__in={owner for owner, _, _ in since},
        node__pool__in={pool for _, _, pool in since},
        granted_at__lt=now,
    )
    gpus: dict[int, int] = dict(
        AllocatedDevice.objects.filter(allocation__in=allocations)
        .values_list("allocation_id")
        .annotate(Sum("milli"))
    )
    used: defaultdict[Home, Use] = defaultdict(lambda: (0, 0))
    for pk, owner, team, pool, cpu, granted_at, released_at in allocations.values_list(
        "pk", "workspace__owner_id", "workspace__team_id", "node__pool_id", "cpu_milli", "granted_at",
        "released_at",
    ):  # fmt: skip
        assert granted_at is not None  # by the filter
        home = (owner, team, pool)
        if home in since:
            span = min(released_at or now, now) - max(granted_at, since[home])
            seconds = max(0, int(span.total_seconds()))
            gpu_s, cpu_s = used[home]
            used[home] = (gpu_s + seconds * gpus.get(pk, 0), cpu_s + seconds * cpu)
    return used
