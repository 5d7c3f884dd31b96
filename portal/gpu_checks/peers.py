"""Devices that a check measures its links to, and that are kept free for it as long as it goes on."""

from __future__ import annotations

from collections.abc import Collection
from functools import partial
from uuid import UUID

from django.db import transaction
from django.db.models import Max, Q, QuerySet

from portal.common.domain_events import emit
from portal.fleet.inventory.domain_events import CapacityFreed, NodesChanged
from portal.fleet.inventory.models import AllocatedDevice, Device
from portal.gpu_checks import selectors
from portal.gpu_checks.models import OPEN, GpuCheckRun
from provisioning.types import DeviceKind

WANTED = 2
"""A link has two ends: what is slow to one peer and fast to another is the fault of the first."""


def choose(device: Device) -> list[Device]:
    """Two idle, proven GPUs that NVLinks join with this one, under lock; none where that would cost anybody.

    Those that it was measured with longest ago come first, so that every pair has its turn. Nobody may be
    waiting for capacity, and a device of the pool stays free. The caller holds `PlacementLock`.
    """
    if not device.island or device.kind != DeviceKind.GPU or device.node.pool.simulated:
        return []
    free = _free(device)
    linked = free.filter(node=device.node_id, island=device.island, passed_at__isnull=False)
    # One that somebody else holds just now is left out, and not waited for: they may wait for this device.
    idle = list(linked.select_for_update(of=("self",), skip_locked=True))
    if len(idle) < WANTED or free.count() <= WANTED or selectors.somebody_waits():
        return []
    last = _last_measured(device)
    idle.sort(key=lambda peer: (peer.pk in last, last.get(peer.pk), peer.index))
    return idle[:WANTED]


def _free(device: Device) -> QuerySet[Device]:
    """The other whole GPUs of its pool that something could be placed on now."""
    held = AllocatedDevice.objects.filter(active=True, device__node__pool=device.node.pool_id)
    return (
        Device.objects.filter(
            node__pool=device.node.pool_id, node__online=True, node__cordoned=False,
            kind=DeviceKind.GPU.value, present=True, healthy=True, cordoned=False, checking=False,
            mig_mode=False, unscrubbed=False,
        )
        .exclude(pk=device.pk)
        .exclude(pk__in=held.values("device"))
    )  # fmt: skip


def _last_measured(device: Device) -> dict[UUID, object]:
    """When the device was last checked with each of its peers."""
    runs = GpuCheckRun.objects.filter(device=device, peers__isnull=False).order_by()
    return dict(runs.values_list("peers").annotate(at=Max("created_at")))


def hold(run: GpuCheckRun, its_peers: Collection[Device]) -> None:
    """Keep them free for the run. They are locked, and nothing else is done with them."""
    run.peers.set(its_peers)
    Device.objects.filter(pk__in=[peer.pk for peer in its_peers]).update(checking=True)


def release(run: GpuCheckRun) -> None:
    """Give the peers of a run that ends back, once that has held."""
    held = sorted(run.peers.values_list("pk", flat=True))
    if held:
        transaction.on_commit(partial(release_unheld, held))


def release_unheld(devices: Collection[UUID]) -> None:
    """Let go of those of these devices that no open run has, each by itself: its run may begin just now."""
    for pk in devices:
        with transaction.atomic():
            device = Device.objects.select_for_update().filter(pk=pk, checking=True).first()
            if device is None or selectors.open_run_on(device) is not None:
                continue
            device.checking = False
            device.save(update_fields=["checking"])
            emit(NodesChanged((device.node_id,)))
            emit(CapacityFreed())


def unheld() -> QuerySet[Device]:
    """Devices that are kept free for runs that are none any more."""
    open_runs = Q(checks__state__in=OPEN) | Q(peer_checks__state__in=OPEN)
    return Device.objects.filter(checking=True).exclude(pk__in=Device.objects.filter(open_runs).values("pk"))
