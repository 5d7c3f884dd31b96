"""Presenter of the page of a device."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

from django.utils.functional import Promise
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from portal.common.events.models import Event, TargetKind
from portal.common.formatting import format_number
from portal.fleet.inventory import selectors, series
from portal.fleet.inventory.contact import contact_of_node
from portal.fleet.inventory.cordons import display_name
from portal.fleet.inventory.device_states import LOOKS, DeviceState, StateLook
from portal.fleet.inventory.models import Device
from portal.gpu_checks.presenters import RECOVERY, DeviceChecks, block, format_report_text
from portal.gpu_checks.selectors import devices_served_as_peers
from portal.people.accounts.models import User
from portal.web.fleet.presenters import pools
from portal.web.fleet.presenters.history import newest_events
from portal.web.fleet.presenters.holders import HolderLink
from provisioning.types import DeviceKind

SLICES = 8

_FACTS: Mapping[str, str | Promise] = {
    "pci_bus_id": gettext_lazy("PCI address"),
    "pci_switch": gettext_lazy("PCI switch"),
    "ecc": gettext_lazy("ECC"),
    "ecc_pending": gettext_lazy("ECC after the next reset"),
    "power_limit_mw": gettext_lazy("Power limit"),
    "power_range_mw": gettext_lazy("Power range"),
    "max_clocks_mhz": gettext_lazy("Highest clocks"),
    "temperature_limits_c": gettext_lazy("Temperature limits"),
    "persistence": gettext_lazy("Persistence mode"),
    "nvlink": gettext_lazy("NVLink"),
    "remapped_rows": gettext_lazy("Remapped rows"),
    "remap_pending": gettext_lazy("Remapping pending"),
    "remap_failed": gettext_lazy("Remapping failed"),
    "retired_pages": gettext_lazy("Retired pages"),
    "recovery_action": gettext_lazy("Recovery requested by the driver"),
    "virtual": gettext_lazy("Virtual GPU"),
    "mig_pending": gettext_lazy("MIG after the next reset"),
    "sms": gettext_lazy("Streaming multiprocessors"),
    "memory_slices": gettext_lazy("Memory slices"),
}
_NOT_LISTED = frozenset({"profiles", "pcie_max_gen", "pcie_max_width"})


@dataclass(frozen=True, slots=True)
class InstanceSegment:
    """An instance of a partitioned GPU on its memory axis."""

    device: Device
    look: StateLook
    state: DeviceState
    start: int
    size: int


@dataclass(frozen=True, slots=True)
class DevicePage:
    """Data of a device's page. `recovery` says how to return the device to service."""

    device: Device
    name: str
    state: DeviceState
    look: StateLook
    why: str
    recovery: str
    idle_s: int
    holders: tuple[HolderLink, ...]
    parts: tuple[InstanceSegment, ...]
    parent: Device | None
    facts: tuple[tuple[str, str], ...]
    events: tuple[Event, ...]
    checks: DeviceChecks
    may: bool


def device_page(actor: User, device: Device, now: datetime) -> DevicePage:
    """Return the data of a device's page (a device of `selectors.devices_with_state`)."""
    state = DeviceState(device.state)  # type: ignore[attr-defined]
    parts = tuple(_parts(device, now))
    rows = pools.device_rows(actor, [device, *(part.device for part in parts)])
    parent = None
    if device.kind == DeviceKind.MIG:
        parent = Device.objects.filter(uuid=device.parent_uuid).first()
    return DevicePage(
        device=device,
        name=display_name(device),
        state=state,
        look=LOOKS[state],
        why=unavailability_sentence(device, devices_served_as_peers([device]), now),
        recovery=str(RECOVERY.get(device.recovery, "")),
        idle_s=series.idle_s(device, now) if state is DeviceState.IDLE else 0,
        holders=tuple(dict.fromkeys(holder for row in rows for holder in row.holders)),
        parts=parts,
        parent=parent,
        facts=tuple(_facts_of(device)),
        events=_events_of(device),
        checks=block(actor, device),
        may=actor.operates,
    )


def unavailability_sentence(device: Any, with_check_of: Mapping[UUID, Device], now: datetime) -> str:
    """Return in one sentence why the device takes no work now, or an empty string.

    `with_check_of` is the result of `gpu_checks.selectors.devices_served_as_peers`.
    """
    node, pool = device.node, device.node.pool
    if not device.present:
        return _("The node no longer detects the device.")
    if not pool.enabled:
        return _("The pool is disabled.")
    if device.cordoned:
        reason = format_report_text(device.cordon_reason)
        return reason or _("Cordoned by an operator.")
    if not device.healthy:
        return device.health_note or _("The driver reports a fault.")
    if device.gpu_out:
        return _("The GPU of this instance is out of service.")
    if node.cordoned:
        if node.cordon_reason:
            return _("%(node)s is cordoned: %(reason)s.") % {"node": node.name, "reason": node.cordon_reason}
        return _("%(node)s is cordoned.") % {"node": node.name}
    contact = contact_of_node(node)
    if not contact.heard:
        return _("%(node)s: %(age)s.") % {"node": node.name, "age": contact.age_text(now)}
    if device.checking:
        other = with_check_of.get(device.pk)
        if other is None:
            return _("A check or scrub is running. The device takes work again when it passes.")
        text = _("The check of %(device)s is measuring the link between the two, for about 1 minute.")
        return text % {"device": display_name(other)}
    if device.kept_back:
        if device.used_milli:
            return _(
                "A share was released. New shares start after all others end and the memory is scrubbed."
            )
        return _("Scrubbed before the next start.")
    if device.closed:
        return _("The pool is in maintenance. Running workspaces continue.")
    return format_report_text(device.warning)


def _parts(device: Device, now: datetime) -> Iterable[InstanceSegment]:
    if device.kind == DeviceKind.MIG:
        return
    instances = selectors.devices_with_state(now).filter(
        parent_uuid=device.uuid, node=device.node_id, present=True
    )
    for instance in instances.order_by("mig_start"):
        state = DeviceState(instance.state)
        size = instance.facts.get("memory_slices") or 1
        yield InstanceSegment(
            instance, LOOKS[state], state, max(0, instance.mig_start), max(1, min(int(size), SLICES))
        )


def _facts_of(device: Device) -> Iterable[tuple[str, str]]:
    yield _("Model"), device.model
    yield _("Memory"), _("%(number)s MiB") % {"number": format_number(device.memory_mib)}
    if device.mig_profile:
        yield _("MIG profile"), device.mig_profile
    if device.compute_capability:
        yield _("Compute capability"), device.compute_capability
    if device.numa >= 0:
        yield _("NUMA node"), str(device.numa)
    if device.island:
        yield _("NVLink island"), device.island
    facts = device.facts
    if facts.get("pcie_max_gen"):
        yield (
            _("PCIe"),
            _("generation %(generation)s × %(width)s")
            % {
                "generation": facts["pcie_max_gen"],
                "width": facts.get("pcie_max_width") or "?",
            },
        )
    for name, value in facts.items():
        if name in _NOT_LISTED or value is None or value == {}:
            continue
        yield str(_FACTS.get(name) or name.replace("_", " ").capitalize()), _format_fact(name, value)
    node = device.node
    if node.driver_version:
        cuda = f", CUDA {node.cuda_version}" if node.cuda_version else ""
        yield _("Driver"), f"{node.driver_version}{cuda}"


def _format_fact(name: str, value: Any) -> str:
    if isinstance(value, bool):
        return _("on") if value else _("off")
    if name.endswith("_mw"):
        watts = [f"{milliwatts / 1000:.0f}" for milliwatts in (value if isinstance(value, list) else [value])]
        return f"{'–'.join(watts)} W"
    if isinstance(value, dict):
        unit = " MHz" if name.endswith("_mhz") else " °C" if name.endswith("_c") else ""
        return ", ".join(
            f"{'SM' if key == 'sm' else key.replace('_', ' ')} {_plain(item)}{unit}"
            for key, item in value.items()
            if item is not None
        )
    if isinstance(value, list):
        return ", ".join(map(str, value))
    return str(value)


def _plain(value: Any) -> str:
    return (_("yes") if value else _("no")) if isinstance(value, bool) else str(value)


def _events_of(device: Device) -> tuple[Event, ...]:
    return newest_events(device.node.pool, TargetKind.DEVICE, device.uuid)
