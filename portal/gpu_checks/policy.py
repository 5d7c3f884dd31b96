"""When devices are checked without being asked for: on schedule, new, back again, and after a failure.

Only idle devices; a few at a time on a node, and never so many that a pool has nothing free left.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from django.db.models import Max, Min, Q, QuerySet
from django.utils import timezone

from portal.common.actors import SYSTEM
from portal.common.errors import PortalError
from portal.common.events.kinds import AuditKind
from portal.common.events.models import EventTarget, TargetKind
from portal.fleet.inventory.models import AllocatedDevice, CheckLevel, CordonCause, Device, Pool, PoolState
from portal.gpu_checks import lost_runs, runs, selectors
from portal.gpu_checks.kinds.proofs import proof_of, proof_that_lifts
from portal.gpu_checks.models import OPEN, CheckCause, CheckKind, CheckVerdict, GpuCheckRun, RunState
from provisioning.types import DeviceKind

log = logging.getLogger(__name__)

ON_A_NODE = 2
"""Checks without anybody asking that are under way on a node at a time."""
SHARE_OF_FREE = 4
"""At most one in so many of a pool's free devices is checked at a time, and never the last one."""
AGAIN_AFTER = timedelta(minutes=5)
MAX_AGAIN_AFTER = timedelta(hours=12)
RETURNED_KEPT = timedelta(days=2)
UNDECIDED_AGAIN = timedelta(hours=1)


@dataclass(frozen=True, slots=True)
class Wish:
    """A check that is due; the lower its `rank`, the sooner."""

    rank: int
    device: Device
    kind: CheckKind
    level: CheckLevel
    cause: CheckCause


@dataclass(frozen=True, slots=True)
class Checked:
    """When a device was last checked, and from when the time to its next check on schedule counts."""

    last: datetime
    scheduled: datetime


def run() -> int:
    """Look after runs that are lost, and queue the checks that are due now; how many were queued."""
    lost_runs.sweep_lost()
    now = timezone.now()
    queued = 0
    for pool in Pool.objects.filter(enabled=True, state=PoolState.ONLINE):
        queued += _of_pool(pool, now)
    return queued


def _of_pool(pool: Pool, now: datetime) -> int:
    devices = list(_idle(pool))
    if not devices:
        return 0
    wishes = sorted(_wishes(pool, devices, now), key=lambda wish: wish.rank)
    if not wishes:
        return 0
    busy = runs.busy_on_nodes({device.node_id for device in devices})
    free = sum(1 for device in devices if not _is_out(device) and device.healthy)
    left = _may_check(pool, free)
    queued = 0
    for wish in wishes:
        out = _is_out(wish.device)
        if busy[wish.device.node_id] >= ON_A_NODE or (not out and left < 1):
            continue
        if not _ask(wish):
            continue
        busy[wish.device.node_id] += 1
        left -= 0 if out else 1
        queued += 1
    return queued


def _is_out(device: Device) -> bool:
    """Whether nothing is placed on it anyhow: to check or scrub it takes nothing from anybody."""
    return device.cordoned or device.unscrubbed


def _may_check(pool: Pool, free: int) -> int:
    """How many more of the free devices may be checked now."""
    under_way = (
        GpuCheckRun.objects.filter(
            device__node__pool=pool, device__cordoned=False, device__unscrubbed=False, state__in=OPEN
        )
        # These devices are somebody's.
        .exclude(cause=CheckCause.HAND_OUT)
        .count()
    )
    if free + under_way == 1:
        # The only device: when nobody waits for it.
        return 0 if selectors.somebody_waits() else 1 - under_way
    return max(1, (free + under_way) // SHARE_OF_FREE) - under_way


def _ask(wish: Wish) -> bool:
    try:
        proof_of(wish.kind).request(
            actor=SYSTEM, device_id=wish.device.pk, level=wish.level, cause=wish.cause
        )
    except PortalError as error:
        # Taken or gone between our look and our wish.
        log.info("no %s of %s: %s", wish.cause, wish.device.uuid, error.message)
        return False
    return True


def _idle(pool: Pool) -> QuerySet[Device]:
    """Devices that nobody uses and nothing else is done with; partitioned GPUs are not among them."""
    devices = Device.objects.filter(node__pool=pool, node__online=True, present=True, checking=False)
    if not pool.check_every_hours:
        # Only what a check or a scrub took out, or that waits for one, is looked at, so the others need
        # not be read.
        out = Q(cordoned=True, cordon_cause__in=[CordonCause.CHECK, CordonCause.SCRUB])
        devices = devices.filter(out | Q(unscrubbed=True))
    return (
        devices.exclude(Q(mig_mode=True, kind=DeviceKind.GPU.value))
        .exclude(pk__in=_held(pool))
        .select_related("node", "node__pool")
        .defer("facts", "node__facts")
        .order_by("node__name", "index")
    )


def _held(pool: Pool) -> QuerySet[AllocatedDevice, Any]:
    return AllocatedDevice.objects.filter(active=True, device__node__pool=pool).values("device")


def _wishes(pool: Pool, devices: list[Device], now: datetime) -> Iterator[Wish]:
    out = [device for device in devices if device.cordoned]
    yield from _second_looks(out, now)
    kept_back = [device for device in devices if device.unscrubbed and not device.cordoned]
    for device in kept_back:
        # Its last holder has left, and nobody has scrubbed it since: that one never used it, say.
        yield Wish(0, device, CheckKind.SCRUB, CheckLevel.QUICK, CheckCause.RECLAIM)
    if not pool.check_every_hours:
        return
    last = _last_checks(pool)
    returned = _returned(pool, now)
    every = timedelta(hours=pool.check_every_hours)
    level = CheckLevel(pool.check_level)
    for device in devices:
        checked = last.get(device.pk)
        back = returned.get(device.uuid)
        if device in kept_back or (device.cordoned and device.cordon_cause == CordonCause.OPERATOR):
            continue
        if back is not None and (checked is None or checked.last < back):
            yield Wish(0, device, CheckKind.CHECK, CheckLevel.QUICK, CheckCause.RETURNED)
        elif device.cordoned or device.node.cordoned or not device.healthy:
            continue
        elif checked is None:
            yield Wish(1, device, CheckKind.CHECK, CheckLevel.QUICK, CheckCause.NEW)
        elif now - checked.scheduled >= every:
            yield Wish(3, device, CheckKind.CHECK, level, CheckCause.SCHEDULE)


def _last_checks(pool: Pool) -> dict[UUID, Checked]:
    """When each device was last checked, whatever came of it; what came to nothing is tried again sooner.

    The schedule counts from its last check of the pool's level, or from its first one: the quick ones before
    hand-outs see less, and on a device that is handed out every day they would put it off for ever.
    """
    runs = GpuCheckRun.objects.filter(device__node__pool=pool, kind=CheckKind.CHECK)
    as_thorough = Q(level__in=CheckLevel.values[CheckLevel.values.index(pool.check_level) :])
    decided = runs.filter(state=RunState.DONE).order_by().values_list("device_id")
    rows = decided.annotate(
        last=Max("created_at"), first=Min("created_at"), thorough=Max("created_at", filter=as_thorough)
    )
    found = {device_id: Checked(last, thorough or first) for device_id, last, first, thorough in rows}
    lost = runs.filter(state=RunState.LOST, created_at__gte=timezone.now() - UNDECIDED_AGAIN)
    for device_id, at in lost.values_list("device_id").annotate(last=Max("created_at")).order_by():
        before = found.get(device_id, Checked(at, at))
        found[device_id] = Checked(max(at, before.last), max(at, before.scheduled))
    return found


def _returned(pool: Pool, now: datetime) -> dict[str, datetime]:
    """When devices came back, by UUID: as inventory has told lately."""
    targets = EventTarget.objects.filter(
        kind=TargetKind.DEVICE,
        event__pool=pool,
        event__kind=AuditKind.DEVICE_RETURNED,
        event__at__gte=now - RETURNED_KEPT,
    )
    return dict(targets.order_by("event_id").values_list("key", "event__at"))


def _second_looks(devices: list[Device], now: datetime) -> Iterator[Wish]:
    """Devices that a check or a scrub took out, and that may be well again without anybody's help."""
    for device in devices:
        proof = proof_that_lifts(device.cordon_cause)
        if proof is None or device.recovery not in proof.passes_by_itself:
            continue
        if now >= _again_at(device, proof.kind):
            yield Wish(2, device, proof.kind, proof.recheck_level, CheckCause.RECHECK)


def _again_at(device: Device, kind: CheckKind) -> datetime:
    """After 5, 10, 20 … minutes, counted from the last failure."""
    ended = GpuCheckRun.objects.filter(device=device, kind=kind).exclude(state__in=OPEN)
    failures = 0
    last: datetime | None = None
    for verdict, at in ended.order_by("-created_at").values_list("verdict", "finished_at")[:10]:
        last = last or at
        if verdict == CheckVerdict.PASS:
            break
        failures += 1
    if last is None:
        return timezone.now()
    return last + min(AGAIN_AFTER * 2 ** max(failures - 1, 0), MAX_AGAIN_AFTER)
