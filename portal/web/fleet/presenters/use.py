"""Presenters of pool and node use over time. The number of queries is constant."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime

from django.db.models import QuerySet, Sum
from django.utils.translation import gettext as _

from portal.fleet.inventory import counting, use_history, use_plots
from portal.fleet.inventory.device_states import KNOWN
from portal.fleet.inventory.models import AllocatedDevice, Device, Node, Pool
from portal.fleet.inventory.use_plots import UsePlots
from portal.reports import state_samples
from portal.web.fleet.presenters import state_plot
from provisioning.types import DeviceKind


def pool_plots(pool: Pool, span: str, now: datetime) -> UsePlots:
    """Return plots of the states, utilisation and memory use of a pool's GPUs."""
    window = use_history.window(span, now)
    devices = Device.objects.filter(KNOWN, node__pool=pool, node__retired=False)
    history = state_samples.history([pool.pk], days=use_history.DAYS[span], now=now)
    plots = use_plots.use_plots(
        state_plot.plot_of(history),
        use_history.measured_use(devices, window),
        window,
        total_mib=_memory_of(devices),
        simulated=pool.simulated,
    )
    if history.recorded:
        return plots
    note = _("States of GPUs were not recorded in this period. The portal records them every 15 minutes.")
    return replace(plots, notes=(note, *plots.notes))


def node_plots(node: Node, span: str, now: datetime) -> UsePlots:
    """Return plots of the allocation, utilisation and memory use of a node's GPUs."""
    window = use_history.window(span, now)
    devices = Device.objects.filter(KNOWN, node=node)
    allocated = use_history.allocated(AllocatedDevice.objects.filter(device__node=node), window)
    countable = counting.devices(Node.objects.filter(pk=node.pk), now)
    return use_plots.use_plots(
        use_plots.allocated_plot(allocated, window, devices=len(countable)) if countable else None,
        use_history.measured_use(devices, window),
        window,
        total_mib=_memory_of(devices),
        simulated=node.pool.simulated,
    )


def _memory_of(devices: QuerySet[Device]) -> int:
    """Return the total memory of these GPUs in MiB."""
    gpus = devices.filter(kind=DeviceKind.GPU.value)
    return gpus.aggregate(total=Sum("memory_mib"))["total"] or 0
