"""Presenter of the operators' overview: GPUs, waiting work, tasks, starts, idle GPUs.

Every number comes from the same function as on other pages. The number of queries is constant.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from django.urls import reverse
from django.utils.functional import Promise
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy, ngettext

from portal.catalog.environments.selectors import failed_environments
from portal.common.plots import Plot, moment
from portal.fleet.inventory import counting, series
from portal.fleet.inventory.cordons import display_name
from portal.fleet.inventory.counting import CountedDevice, StateCounts
from portal.fleet.inventory.device_states import DeviceState
from portal.fleet.inventory.models import Device, Pool
from portal.people.accounts.models import User
from portal.reports import state_samples
from portal.reports.state_samples import StartFigures
from portal.scheduling import selectors as queue
from portal.web.fleet.presenters import state_plot
from portal.web.inbox import selectors as inbox
from portal.web.inbox.items import Item, ItemKind
from portal.web.inbox.sources import (
    DeviceSource,
    JoinSource,
    NodeSource,
    PoolSource,
    QuotaSource,
    ReservationSource,
)
from portal.workspaces import policies
from portal.workspaces.device_holders import workspaces_of_devices
from portal.workspaces.models import Workspace

DAYS = 7
MAX_IDLE = 10
MAX_ITEMS = 5
MAX_NAMES = 3
SOURCE_TEXTS: dict[str, tuple[ItemKind, Promise]] = {
    QuotaSource.name: (ItemKind.QUOTA, gettext_lazy("Quota requests")),
    ReservationSource.name: (ItemKind.RESERVATION, gettext_lazy("Reservations to approve")),
    JoinSource.name: (ItemKind.JOIN, gettext_lazy("Requests to join teams")),
    DeviceSource.name: (ItemKind.CAPACITY, gettext_lazy("Failed or missing GPUs")),
    NodeSource.name: (ItemKind.CAPACITY, gettext_lazy("Offline nodes")),
    PoolSource.name: (ItemKind.CAPACITY, gettext_lazy("Unreachable pools")),
}
"""Sources of the inbox by name: the inbox filter that shows their items, and their description."""


@dataclass(frozen=True, slots=True)
class Gpus:
    """GPUs and MIG instances now and, once there is a sample, over the last few days.

    `simulated`: whether the GPUs counted are simulated, because the site has no real ones.
    """

    states: StateCounts
    simulated: bool
    plot: Plot | None


@dataclass(frozen=True, slots=True)
class Need:
    """A kind of task for operators: its count and page."""

    text: str
    count: int
    url: str


@dataclass(frozen=True, slots=True)
class IdleGpu:
    """An allocated GPU without activity since `since`. `stop_url` is empty if the reader cannot stop it."""

    device: Device
    name: str
    since: datetime
    workspaces: tuple[Workspace, ...]
    stop_url: str


def overview(actor: User, now: datetime) -> dict[str, Any]:
    """Return the context of the overview."""
    devices = counting.enabled_devices(now)
    groups = queue.waiting_by_reason()
    counts = inbox.counts_by_source(actor)
    day, week = state_samples.started_since(state_samples.periods(now))
    return {
        "gpus": gpus(devices, now),
        "waiting": groups,
        "waiting_count": sum(group.count for group in groups),
        "inbox_counts": counts,
        "needs": needs(actor, counts),
        "items": first_items(actor, counts),
        "starts": _start_rows(day, week),
        "idle": idle_gpus(actor, devices, now),
    }


def gpus(devices: Sequence[CountedDevice], now: datetime) -> Gpus:
    """Return the states of these GPUs. Simulated GPUs count only if there are no real ones. Two queries."""
    simulated = dict(Pool.objects.filter(enabled=True).values_list("pk", "simulated"))
    by_pool = state_samples.pool_states(devices)
    only_simulated = all(simulated.get(pool, False) for pool in by_pool)
    chosen = [pool for pool, is_simulated in simulated.items() if is_simulated == only_simulated]
    states = sum((by_pool[pool] for pool in chosen if pool in by_pool), StateCounts())
    history = state_samples.history(chosen, days=DAYS, now=now)
    return Gpus(states, only_simulated and bool(by_pool), state_plot.plot_of(history))


def needs(actor: User, counts: Mapping[str, int]) -> list[Need]:
    """Return tasks for operators: inbox items by source, and environments that failed to build."""
    url = reverse("inbox:inbox")
    rows = [
        Need(str(text), counts.get(source, 0), f"{url}?kind={kind.value}")
        for source, (kind, text) in SOURCE_TEXTS.items()
    ]
    environments = failed_environments(actor)
    names = _failed_text([row.name for row in environments])
    rows.append(Need(names, len(environments), reverse("environments:list")))
    return [row for row in rows if row.count]


def _failed_text(names: list[str]) -> str:
    """Return a text with the first names of environments that failed to build."""
    shown = ", ".join(names[:MAX_NAMES])
    more = len(names) - MAX_NAMES
    if more > 0:
        shown += ngettext(" and %(count)s more", " and %(count)s more", more) % {"count": more}
    return _("Failed environments: %(names)s") % {"names": shown}


def first_items(actor: User, counts: Mapping[str, int]) -> list[Item]:
    """Return the most urgent items of the actor's inbox."""
    return inbox.items(actor, inbox.keys(actor, counted=counts)[:MAX_ITEMS])


def _start_rows(day: StartFigures | None, week: StartFigures | None) -> list[tuple[str, StartFigures | None]]:
    return [(_("Last 24 hours"), day), (_("Last 7 days"), week)]


def idle_gpus(actor: User, devices: Iterable[CountedDevice], now: datetime) -> list[IdleGpu]:
    """Return the GPUs that have been idle for the longest time, with their workspaces.

    Three queries.
    """
    idle_times = series.idle_times(now)
    idle = [device.id for device in devices if device.state is DeviceState.IDLE]
    longest = sorted(idle, key=lambda device: -idle_times.get(device, 0))[:MAX_IDLE]
    by_pk = Device.objects.select_related("node", "series").in_bulk(longest)
    rows = [by_pk[device] for device in longest if device in by_pk]
    holders = workspaces_of_devices([device.pk for device in rows])
    return [_idle_gpu(actor, device, holders.get(device.pk, ())) for device in rows]


def _idle_gpu(actor: User, device: Device, workspaces: tuple[Workspace, ...]) -> IdleGpu:
    stoppable = len(workspaces) == 1 and policies.may_operate(actor, workspaces[0])
    return IdleGpu(
        device,
        display_name(device),
        moment(device.series.idle_since_s or device.series.newest_s),
        workspaces,
        reverse("workspaces:stop", args=[workspaces[0].pk]) if stoppable else "",
    )
