"""Automatic checks: scheduled checks, checks of new and returned devices, and rechecks after a failure.

Only idle devices are checked, a few at a time per node, and a pool always keeps free devices.
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
from portal.fleet.inventory.contact import in_contact
from portal.fleet.inventory.models import AllocatedDevice, CheckLevel, CordonCause, Device, Pool, PoolState
from portal.gpu_checks import lost_runs, runs, selectors
from portal.gpu_checks.kinds.proofs import proof_for_cordon, proof_of
from portal.gpu_checks.models import OPEN, CheckCause, CheckKind, CheckVerdict, GpuCheckRun, RunState
from provisioning.types import DeviceKind

log = logging.getLogger(__name__)

MAX_ON_NODE = 2
"""Maximum number of concurrent automatic checks on a node."""
SHARE_OF_FREE = 4
"""Of the free devices of a pool, at most one in this many is checked at a time, and never the last one."""
RECHECK_AFTER = timedelta(minutes=5)
MAX_RECHECK_AFTER = timedelta(hours=12)
REMEMBER_RETURNED = timedelta(days=2)
RETRY_UNDECIDED_AFTER = timedelta(hours=1)


@dataclass(frozen=True, slots=True)
class DueCheck:
    """A check that is due. Lower ranks go first."""

    rank: int
    device: Device
    kind: CheckKind
    level: CheckLevel
    cause: CheckCause


@dataclass(frozen=True, slots=True)
class CheckTimes:
    """When a device was last checked, and when its interval for scheduled checks began."""

    last: datetime
    scheduled: datetime


def run() -> int:
    """Handle lost runs, queue the checks that are due, and return how many were queued."""
    lost_runs.sweep_lost()
    now = timezone.now()
    queued = 0
    for pool in Pool.objects.filter(enabled=True, state=PoolState.ONLINE):
        queued += _of_pool(pool, now)
    return queued


def _of_pool(pool: Pool, now: datetime) -> int:
    devices = list(_idle_devices(pool))
    if not devices:
        return 0
    due_checks = sorted(_due_checks(pool, devices, now), key=lambda due_check: due_check.rank)
    if not due_checks:
        return 0
    busy = runs.busy_on_nodes({device.node_id for device in devices})
    free = sum(1 for device in devices if not _is_out(device) and device.healthy)
    left = _check_allowance(pool, free)
    queued = 0
    for due_check in due_checks:
        out = _is_out(due_check.device)
        if busy[due_check.device.node_id] >= MAX_ON_NODE or (not out and left < 1):
            continue
        if not _request_check(due_check):
            continue
        busy[due_check.device.node_id] += 1
        left -= 0 if out else 1
        queued += 1
    return queued


def _is_out(device: Device) -> bool:
    """Return whether the device takes no work anyway, so that a check costs no capacity."""
    return device.cordoned or device.unscrubbed


def _check_allowance(pool: Pool, free: int) -> int:
    """Return how many more of the free devices may be checked now."""
    under_way = (
        GpuCheckRun.objects.filter(
            device__node__pool=pool, device__cordoned=False, device__unscrubbed=False, state__in=OPEN
        )
        # These devices are allocated.
        .exclude(cause=CheckCause.HAND_OUT)
        .count()
    )
    if free + under_way == 1:
        # If the pool has only one device, check it only if no request waits for it.
        return 0 if selectors.workspaces_wait() else 1 - under_way
    return max(1, (free + under_way) // SHARE_OF_FREE) - under_way


def _request_check(due_check: DueCheck) -> bool:
    try:
        proof_of(due_check.kind).request(
            actor=SYSTEM, device_id=due_check.device.pk, level=due_check.level, cause=due_check.cause
        )
    except PortalError as error:
        # The device was allocated or removed meanwhile.
        log.info("skipped %s of %s: %s", due_check.cause, due_check.device.uuid, error.message)
        return False
    return True


def _idle_devices(pool: Pool) -> QuerySet[Device]:
    """Return idle devices without an open run, except partitioned GPUs."""
    devices = Device.objects.filter(in_contact("node__"), node__pool=pool, present=True, checking=False)
    if not pool.check_every_hours:
        # Only devices that a check or scrub has cordoned, or that wait for a scrub, are relevant here.
        out = Q(cordoned=True, cordon_cause__in=[CordonCause.CHECK, CordonCause.SCRUB])
        devices = devices.filter(out | Q(unscrubbed=True))
    return (
        devices.exclude(Q(mig_mode=True, kind=DeviceKind.GPU.value))
        .exclude(pk__in=_allocated_devices(pool))
        .select_related("node", "node__pool")
        .defer("facts", "node__facts")
        .order_by("node__name", "index")
    )


def _allocated_devices(pool: Pool) -> QuerySet[AllocatedDevice, Any]:
    return AllocatedDevice.objects.filter(active=True, device__node__pool=pool).values("device")


def _due_checks(pool: Pool, devices: list[Device], now: datetime) -> Iterator[DueCheck]:
    out = [device for device in devices if device.cordoned]
    yield from _due_rechecks(out, now)
    kept_back = [device for device in devices if device.unscrubbed and not device.cordoned]
    for device in kept_back:
        # The device was released without a scrub, for example because the workspace never used it.
        yield DueCheck(0, device, CheckKind.SCRUB, CheckLevel.QUICK, CheckCause.RECLAIM)
    if not pool.check_every_hours:
        return
    last = _last_checks(pool)
    returned = _return_times(pool, now)
    every = timedelta(hours=pool.check_every_hours)
    level = CheckLevel(pool.check_level)
    for device in devices:
        checked = last.get(device.pk)
        returned_at = returned.get(device.uuid)
        if device in kept_back or (device.cordoned and device.cordon_cause == CordonCause.OPERATOR):
            continue
        if returned_at is not None and (checked is None or checked.last < returned_at):
            yield DueCheck(0, device, CheckKind.CHECK, CheckLevel.QUICK, CheckCause.RETURNED)
        elif device.cordoned or device.node.cordoned or not device.healthy:
            continue
        elif checked is None:
            yield DueCheck(1, device, CheckKind.CHECK, CheckLevel.QUICK, CheckCause.NEW)
        elif now - checked.scheduled >= every:
            yield DueCheck(3, device, CheckKind.CHECK, level, CheckCause.SCHEDULE)


def _last_checks(pool: Pool) -> dict[UUID, CheckTimes]:
    """Return when each device was last checked, by device id. Lost runs are retried earlier.

    The interval starts at the last check of at least the pool's level, or else at the first check. Quick
    preflight checks test less and do not count, because they would postpone scheduled checks forever on a
    device that is allocated every day.
    """
    runs = GpuCheckRun.objects.filter(device__node__pool=pool, kind=CheckKind.CHECK)
    sufficient = Q(level__in=CheckLevel.values[CheckLevel.values.index(pool.check_level) :])
    decided = runs.filter(state=RunState.DONE).order_by().values_list("device_id")
    rows = decided.annotate(
        last=Max("created_at"), first=Min("created_at"), thorough=Max("created_at", filter=sufficient)
    )
    checked_by_device = {
        device_id: CheckTimes(last, last_sufficient or first)
        for device_id, last, first, last_sufficient in rows
    }
    lost = runs.filter(state=RunState.LOST, created_at__gte=timezone.now() - RETRY_UNDECIDED_AFTER)
    for device_id, at in lost.values_list("device_id").annotate(last=Max("created_at")).order_by():
        before = checked_by_device.get(device_id, CheckTimes(at, at))
        checked_by_device[device_id] = CheckTimes(max(at, before.last), max(at, before.scheduled))
    return checked_by_device


def _return_times(pool: Pool, now: datetime) -> dict[str, datetime]:
    """Return when devices recently came back, by UUID, from the audit log."""
    targets = EventTarget.objects.filter(
        kind=TargetKind.DEVICE,
        event__pool=pool,
        event__kind=AuditKind.DEVICE_RETURNED,
        event__at__gte=now - REMEMBER_RETURNED,
    )
    return dict(targets.order_by("event_id").values_list("key", "event__at"))


def _due_rechecks(devices: list[Device], now: datetime) -> Iterator[DueCheck]:
    """Yield rechecks of devices that a check or scrub has cordoned and that may recover by themselves."""
    for device in devices:
        proof = proof_for_cordon(device.cordon_cause)
        if proof is None or device.recovery not in proof.passes_by_itself:
            continue
        if now >= _recheck_at(device, proof.kind):
            yield DueCheck(2, device, proof.kind, proof.recheck_level, CheckCause.RECHECK)


def _recheck_at(device: Device, kind: CheckKind) -> datetime:
    """Return the time of the next recheck: 5, 10, 20, … minutes after the last failure."""
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
    return last + min(RECHECK_AFTER * 2 ** max(failures - 1, 0), MAX_RECHECK_AFTER)
