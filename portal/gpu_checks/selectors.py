"""Read operations on checks and scrubs. All signed-in users may see them, like devices."""

from __future__ import annotations

from collections.abc import Iterable
from uuid import UUID

from django.db.models import QuerySet

from portal.common.errors import NotFound
from portal.common.reasons.reason import Reason
from portal.fleet.inventory.codes import InventoryCode
from portal.fleet.inventory.models import Device
from portal.gpu_checks.codes import CheckCode
from portal.gpu_checks.kinds.registry import handler_of
from portal.gpu_checks.models import OPEN, GpuCheckRun, RunState
from portal.workspaces.lifecycle import State
from portal.workspaces.models import Workspace

TREND_RUNS = 30


def checks() -> QuerySet[GpuCheckRun]:
    """Return all runs with their device, node and pool, newest first."""
    return GpuCheckRun.objects.select_related(
        "device", "device__node", "device__node__pool", "requester", "partner__device__node"
    ).order_by("-created_at")


def check_by_id(run_id: UUID) -> GpuCheckRun:
    """Return a run. Raises `NotFound`."""
    run = checks().filter(pk=run_id).first()
    if run is None:
        raise NotFound(Reason(CheckCode.NO_SUCH_CHECK))
    return run


def runs_of_device(device: Device) -> QuerySet[GpuCheckRun]:
    """Return the runs of a device without reports, newest first."""
    return checks().filter(device=device).defer("report")


def runs_up_to(run: GpuCheckRun) -> list[GpuCheckRun]:
    """Return finished runs of the same device and level up to `run`, oldest first, for trends."""
    earlier = GpuCheckRun.objects.filter(
        device=run.device_id,
        kind=handler_of(run.kind).trend_kind,
        level=run.level,
        state=RunState.DONE,
        created_at__lte=run.created_at,
    ).exclude(measures={})
    return list(reversed(earlier.defer("report").order_by("-created_at")[:TREND_RUNS]))


def device_by_name(name: str) -> Device:
    """Return a device by id or by the driver's UUID. Raises `NotFound`."""
    devices = Device.objects.select_related("node", "node__pool")
    device = devices.filter(uuid=name).first()
    if device is None:
        try:
            device = devices.filter(pk=UUID(name)).first()
        except ValueError:
            device = None
    if device is None:
        raise NotFound(Reason(InventoryCode.NO_SUCH_DEVICE))
    return device


def open_run_on(device: Device) -> GpuCheckRun | None:
    """Return the open run that uses a device, as its own device or as a peer, or `None`."""
    runs = GpuCheckRun.objects.filter(state__in=OPEN)
    return runs.filter(device=device).first() or runs.filter(peers=device).first()


def devices_served_as_peers(devices: Iterable[Device]) -> dict[UUID, Device]:
    """Return the device being checked for each of these devices that is reserved as a peer; one query."""
    checking = [device.pk for device in devices if device.checking]
    links = GpuCheckRun.peers.through.objects.filter(device__in=checking, gpucheckrun__state__in=OPEN)
    rows = links.select_related("gpucheckrun__device__node")
    return {row.device_id: row.gpucheckrun.device for row in rows}


def workspaces_wait() -> bool:
    """Return whether a workspace waits for capacity."""
    return Workspace.objects.filter(state=State.PENDING).exists()
