"""Finds GPUs that a node should have but does not report, based on PCI and earlier inventories."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from django.utils.translation import gettext as _

from portal.fleet.inventory.models import CordonCause, Device, Node
from provisioning.types import DeviceKind

FACT = "missing_gpus"
"""Key in a node's facts: PCI addresses of GPUs that its driver does not report."""


@dataclass(frozen=True, slots=True)
class MissingGpu:
    """A GPU that its driver does not report. `uuid` and `model` are empty if it was never seen.

    `on_pci`: PCI still lists the GPU.
    """

    pci_bus_id: str
    uuid: str
    model: str
    on_pci: bool

    @property
    def next_action(self) -> str:
        """The first step to bring the GPU back."""
        if self.on_pci:
            return _("Check dmesg for lines with NVRM, then reboot the machine.")
        return _("Check its slot and power. If it was removed on purpose, cordon it.")


def missing_gpus_of(node: Node, devices: Iterable[Device]) -> tuple[MissingGpu, ...]:
    """Return the missing GPUs of a node, by PCI address. `devices` are its GPUs, including absent ones.

    Excludes GPUs cordoned by an operator, and slots that have another GPU now.
    """
    gpus = [device for device in devices if device.kind != DeviceKind.MIG]
    taken = {_slot(device) for device in gpus if device.present}
    listed = node.facts.get(FACT)
    on_pci = [bus for bus in listed if isinstance(bus, str)] if isinstance(listed, list) else []
    known_devices: dict[str, Device] = {}
    for device in gpus:
        slot = _slot(device)
        if slot and slot not in taken and not device.present:
            known_devices.setdefault(slot, device)
    missing = [
        MissingGpu(
            bus,
            known_devices[bus].uuid if bus in known_devices else "",
            known_devices[bus].model if bus in known_devices else "",
            True,
        )
        for bus in on_pci
        if bus not in taken
    ]
    missing += [
        MissingGpu(slot, device.uuid, device.model, False)
        for slot, device in known_devices.items()
        if slot not in on_pci and not _is_decided(device)
    ]
    return tuple(sorted(missing, key=lambda gpu: gpu.pci_bus_id))


def _slot(device: Device) -> str:
    return str(device.facts.get("pci_bus_id") or "")


def _is_decided(device: Device) -> bool:
    return bool(device.cordoned and device.cordon_cause == CordonCause.OPERATOR)
