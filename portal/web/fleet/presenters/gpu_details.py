"""Presenter of GPUs in detail, for the map and nodes: workspaces on each GPU, its use and its free part."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

from django.urls import reverse
from django.utils.translation import gettext as _

from portal.common.formatting import format_duration, format_thousandths
from portal.fleet.inventory import counting, selectors, series
from portal.fleet.inventory.device_states import KNOWN, LOOKS, DeviceState, StateLook
from portal.fleet.inventory.models import Device, Node
from portal.gpu_checks.selectors import devices_served_as_peers
from portal.people.accounts.models import User
from portal.web.fleet.presenters.device import unavailability_sentence
from portal.web.fleet.presenters.holders import Holding, holdings
from portal.web.fleet.presenters.pools import total_count
from provisioning.gpu.samples import Sample
from provisioning.types import WHOLE_DEVICE_MILLI, DeviceKind


@dataclass(frozen=True, slots=True)
class GpuDetails:
    """A GPU with its instances, or an instance. `free` describes the free part; empty if nothing is free.

    `profile` is empty except for an instance. `holdings` include those of its `instances`. `use_pct` is the
    current use, None if not measured; `idle_s` is 0 unless the GPU is allocated and idle. `why` explains why
    the GPU takes no work.
    """

    index: int
    node: str
    model: str
    profile: str
    memory_mib: int
    simulated: bool
    look: StateLook
    stale: bool
    url: str
    holdings: tuple[Holding, ...]
    use_pct: int | None
    idle_s: int
    free: str
    why: str
    instances: tuple[GpuDetails, ...] = ()

    @property
    def name(self) -> str:
        if not self.profile:
            return f"GPU {self.index}"
        return _("%(profile)s of GPU %(index)s") % {"profile": self.profile, "index": self.index}

    @property
    def link(self) -> str:
        """The URL of the only workspace on the GPU, if the reader may see it, else of the GPU's page."""
        holder = self.holdings[0].holder if len(self.holdings) == 1 else None
        return holder.url if holder is not None and holder.url else self.url

    @property
    def use(self) -> str:
        """The current use, or the idle time; empty if unknown."""
        if self.idle_s:
            return _("idle for %(time)s") % {"time": format_duration(self.idle_s)}
        return "" if self.use_pct is None else _("%(percent)s %% in use now") % {"percent": self.use_pct}


@dataclass(frozen=True, slots=True)
class _Facts:
    """Data about several devices, read once for all."""

    now: datetime
    held: Mapping[UUID, Sequence[Holding]]
    samples: Mapping[str, Sample]
    idle_times: Mapping[UUID, int]
    with_check_of: Mapping[UUID, Device]


def gpu_details(actor: User, node: Node, now: datetime, index: int | None = None) -> tuple[GpuDetails, ...]:
    """Return a node's GPUs by index, or the one with this `index`. Five queries and a Redis read."""
    rows = selectors.devices_with_state(now).filter(KNOWN, node=node)
    if index is not None:
        rows = rows.filter(index=index)
    return details_of(actor, list(rows.order_by("index", "mig_start", "uuid")), now)


def details_of(actor: User, devices: Sequence[Any], now: datetime) -> tuple[GpuDetails, ...]:
    """Return these devices of a node (from `selectors.devices_with_state`) in the same order.

    Instances are listed with their GPU. Four queries and a Redis read.
    """
    gpus, parts = _with_instances(devices)
    facts = _Facts(
        now=now,
        held=holdings(actor, devices),
        samples=series.current_samples(devices, now=now),
        idle_times=series.idle_times(now, devices=[device.pk for device in devices]),
        with_check_of=devices_served_as_peers(devices),
    )
    return tuple(_details(gpu, parts[gpu.uuid], facts) for gpu in gpus)


def _details(device: Any, parts: Sequence[Any], facts: _Facts) -> GpuDetails:
    state = DeviceState(device.state)
    sample = facts.samples.get(device.uuid)
    return GpuDetails(
        index=device.index,
        node=device.node.name,
        model=device.model,
        profile=device.mig_profile if device.kind == DeviceKind.MIG else "",
        memory_mib=device.memory_mib,
        simulated=device.node.pool.simulated,
        look=LOOKS[state],
        stale=not device.heard,
        url=reverse("fleet:device", args=[device.pk]),
        holdings=tuple(holding for row in (device, *parts) for holding in facts.held.get(row.pk, ())),
        use_pct=None if sample is None else sample.gpu_util_pct,
        idle_s=facts.idle_times.get(device.pk, 0) if state is DeviceState.IDLE else 0,
        free=_free(device, parts),
        why=unavailability_sentence(device, facts.with_check_of, facts.now),
        instances=tuple(_details(part, (), facts) for part in parts),
    )


def _with_instances(devices: Sequence[Any]) -> tuple[list[Any], dict[str, list[Any]]]:
    """Return GPUs, and instances by their GPU's UUID. Instances of unknown GPUs are among the GPUs."""
    parts: dict[str, list[Any]] = defaultdict(list)
    known = {device.uuid for device in devices if device.kind != DeviceKind.MIG}
    gpus = []
    for device in devices:
        if device.kind == DeviceKind.MIG and device.parent_uuid in known:
            parts[device.parent_uuid].append(device)
        else:
            gpus.append(device)
    return gpus, parts


def _free(gpu: Any, parts: Sequence[Any]) -> str:
    """Return the free part of a partly allocated GPU, as “0.5 of the GPU free”, or its free instances."""
    count = total_count(counting.countable_devices([gpu, *parts]))
    if gpu.partitioned and parts:
        whole = WHOLE_DEVICE_MILLI
        texts = {"free": count.free // whole, "total": count.total // whole}
        return _("%(free)s of %(total)s instances free") % texts
    if 0 < count.free < count.total:
        return _("%(part)s of the GPU free") % {"part": format_thousandths(count.free)}
    return ""
