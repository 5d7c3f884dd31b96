"""Peers: idle devices to which a check measures links, reserved while the check is open."""

from __future__ import annotations

from collections.abc import Collection
from functools import partial
from uuid import UUID

from django.db import transaction
from django.db.models import Max, Q, QuerySet

from portal.common.domain_events import emit
from portal.fleet.inventory.contact import in_contact
from portal.fleet.inventory.domain_events import CapacityFreed, NodesChanged
from portal.fleet.inventory.models import AllocatedDevice, Device
from portal.gpu_checks import selectors
from portal.gpu_checks.models import OPEN, GpuCheckRun
from provisioning.traits import DeviceChecks
from provisioning.types import DeviceKind

PEER_COUNT = 2
"""With two peers, a link that is slow only to one of them points to that peer."""


def choose_peers(device: Device) -> list[Device]:
    """Lock and return 2 idle, proven GPUs with an NVLink to this one, or return an empty list.

    The least recently measured GPUs come first, so that every pair is covered. Returns an empty list if
    workspaces wait for capacity, or if no device of the pool would stay free. The caller holds
    `PlacementLock`.
    """
    if (
        not device.island
        or device.kind != DeviceKind.GPU
        or device.node.pool.traits.device_checks is not DeviceChecks.NODE
    ):
        return []
    free = _free(device)
    linked = free.filter(node=device.node_id, island=device.island, passed_at__isnull=False)
    # Skip locked devices, because their holders may be waiting for this one.
    idle = list(linked.select_for_update(of=("self",), skip_locked=True))
    if len(idle) < PEER_COUNT or free.count() <= PEER_COUNT or selectors.workspaces_wait():
        return []
    last = _last_measured(device)
    idle.sort(key=lambda peer: (peer.pk in last, last.get(peer.pk), peer.index))
    return idle[:PEER_COUNT]


def _free(device: Device) -> QuerySet[Device]:
    """Return the other whole GPUs of the device's pool that are free for placement."""
    allocated = AllocatedDevice.objects.filter(active=True, device__node__pool=device.node.pool_id)
    return (
        Device.objects.filter(
            in_contact("node__"), node__pool=device.node.pool_id, node__cordoned=False,
            kind=DeviceKind.GPU.value, present=True, healthy=True, cordoned=False, checking=False,
            mig_mode=False, unscrubbed=False,
        )
        .exclude(pk=device.pk)
        .exclude(pk__in=allocated.values("device"))
    )  # fmt: skip


def _last_measured(device: Device) -> dict[UUID, object]:
    """Return when the device was last checked with each peer."""
    runs = GpuCheckRun.objects.filter(device=device, peers__isnull=False).order_by()
    return dict(runs.values_list("peers").annotate(at=Max("created_at")))


def reserve_peers(run: GpuCheckRun, its_peers: Collection[Device]) -> None:
    """Reserve the peers for the run. They are locked and have no open run."""
    run.peers.set(its_peers)
    Device.objects.filter(pk__in=[peer.pk for peer in its_peers]).update(checking=True)


def release(run: GpuCheckRun) -> None:
    """Free the peers of an ending run after the transaction commits."""
    peer_ids = sorted(run.peers.values_list("pk", flat=True))
    if peer_ids:
        transaction.on_commit(partial(release_unused, peer_ids))


def release_unused(devices: Collection[UUID]) -> None:
    """Free the devices that no open run uses, in a transaction each, because a run may begin meanwhile."""
    for pk in devices:
        with transaction.atomic():
            device = Device.objects.select_for_update().filter(pk=pk, checking=True).first()
            if device is None or selectors.open_run_on(device) is not None:
                continue
            device.checking = False
            device.save(update_fields=["checking"])
            emit(NodesChanged((device.node_id,)))
            emit(CapacityFreed())


def unused_reservations() -> QuerySet[Device]:
    """Return devices that are reserved for runs that no longer exist."""
    open_runs = Q(checks__state__in=OPEN) | Q(peer_checks__state__in=OPEN)
    return Device.objects.filter(checking=True).exclude(pk__in=Device.objects.filter(open_runs).values("pk"))
