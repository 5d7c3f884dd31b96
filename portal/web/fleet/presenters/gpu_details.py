"""Presenter of GPUs in detail, for the map: who holds each, since when, its use and its free part."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from django.urls import reverse
from django.utils.translation import gettext as _

from portal.common.formatting import format_duration, format_thousandths
from portal.fleet.inventory import counting, selectors, series
from portal.fleet.inventory.device_states import KNOWN, LOOKS, DeviceState, StateLook
from portal.fleet.inventory.models import Node
from portal.gpu_checks.selectors import devices_served_as_peers
from portal.people.accounts.models import User
from portal.web.fleet.presenters.device import unavailability_sentence
from portal.web.fleet.presenters.holders import Holding, holdings
from portal.web.fleet.presenters.pools import total_count
from provisioning.types import WHOLE_DEVICE_MILLI, DeviceKind


@dataclass(frozen=True, slots=True)
class GpuDetails:
    """A GPU with what its instances add. `use` and `free` are texts, empty if unknown or nothing.

    `why` says why it takes no work. `link` leads to the workspace that holds it, if the reader may see it and
    it is the only one, else to the device.
    """

    index: int
    node: str
    model: str
    simulated: bool
    look: StateLook
    stale: bool
    url: str
    holdings: tuple[Holding, ...]
    use: str
    free: str
    why: str

    @property
    def link(self) -> str:
        holder = self.holdings[0].holder if len(self.holdings) == 1 else None
        return holder.url if holder is not None and holder.url else self.url


def gpu_details(actor: User, node: Node, now: datetime, index: int | None = None) -> tuple[GpuDetails, ...]:
    """Return the GPUs of a node by index, or the one with this `index`. Six queries and a read of Redis."""
    rows = selectors.devices_with_state(now).filter(KNOWN, node=node)
    if index is not None:
        rows = rows.filter(index=index)
    devices = list(rows.order_by("index", "mig_start", "uuid"))
    gpus, parts = _with_parts(devices)
    keys = [device.pk for device in devices]
    held = holdings(actor, devices)
    samples = series.newest_minutes(now_s=now.timestamp(), devices=keys)
    if not node.pool.simulated:
        samples |= series.newest(devices, now_s=now.timestamp())
    idle_times = series.idle_times(now, devices=keys)
    with_check_of = devices_served_as_peers(devices)
    details = []
    for gpu in gpus:
        state = DeviceState(gpu.state)
        sample = samples.get(gpu.uuid)
        idle_s = idle_times.get(gpu.pk, 0) if state is DeviceState.IDLE else 0
        details.append(
            GpuDetails(
                index=gpu.index,
                node=node.name,
                model=f"{gpu.model} · {gpu.mig_profile}" if gpu.mig_profile else gpu.model,
                simulated=node.pool.simulated,
                look=LOOKS[state],
                stale=not gpu.heard,
                url=reverse("fleet:device", args=[gpu.pk]),
                holdings=tuple(
                    holding for row in (gpu, *parts[gpu.uuid]) for holding in held.get(row.pk, ())
                ),
                use=_use(None if sample is None else sample.gpu_util_pct, idle_s),
                free=_free(gpu, parts[gpu.uuid]),
                why=unavailability_sentence(gpu, with_check_of, now),
            )
        )
    return tuple(details)


def _with_parts(devices: Sequence[Any]) -> tuple[list[Any], dict[str, list[Any]]]:
    """Return GPUs and the instances of each by its UUID. An instance without a known GPU is listed itself."""
    parts: dict[str, list[Any]] = defaultdict(list)
    known = {device.uuid for device in devices if device.kind != DeviceKind.MIG}
    gpus = []
    for device in devices:
        if device.kind == DeviceKind.MIG and device.parent_uuid in known:
            parts[device.parent_uuid].append(device)
        else:
            gpus.append(device)
    return gpus, parts


def _use(percent: int | None, idle_s: int) -> str:
    if idle_s:
        return _("idle for %(time)s") % {"time": format_duration(idle_s)}
    return "" if percent is None else _("%(percent)s %% in use now") % {"percent": percent}


def _free(gpu: Any, parts: Sequence[Any]) -> str:
    """Return the free part of a partly held GPU, as “0.5 of the GPU free”, or its free instances."""
    count = total_count(counting.countable_devices([gpu, *parts]))
    if gpu.partitioned and parts:
        whole = WHOLE_DEVICE_MILLI
        texts = {"free": count.free // whole, "total": count.total // whole}
        return _("%(free)s of %(total)s instances free") % texts
    if 0 < count.free < count.total:
        return _("%(part)s of the GPU free") % {"part": format_thousandths(count.free)}
    return ""
