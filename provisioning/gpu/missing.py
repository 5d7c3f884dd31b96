"""GPUs that the machine has on PCI and the driver does not show: nothing else would say that one is gone."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

from provisioning.gpu.host import nvidia_gpus

DRIVER = "nvidia"
# A container sees all of its machine's PCI devices, and only those of its GPUs that it was given.
_CONTAINERS = (".dockerenv", "run/.containerenv", "var/run/secrets/kubernetes.io")
NEXT_ACTION = "Look at dmesg for lines with NVRM, then reboot this machine."
NEWER_DRIVER = "Install a newer driver if it is older than the GPU; otherwise look at dmesg for NVRM lines."
NOUVEAU = (
    "The kernel's own driver (nouveau) is loaded in the place of NVIDIA's. Keep it out: “blacklist nouveau” "
    "in /etc/modprobe.d/nouveau.conf, a new initramfs, and a reboot of this machine."
)
MAX_NAMED = 16


def not_shown(root: Path, shown: Collection[str]) -> tuple[str, ...]:
    """PCI addresses of GPUs that ought to be among `shown`, the addresses that the driver gave.

    Left out: those that another kernel driver has (`vfio-pci`: a virtual machine's), and virtual functions.
    """
    if any((root / mark).exists() for mark in _CONTAINERS):
        return ()
    return tuple(bus for bus in nvidia_gpus(root) if bus not in shown and _is_ours(root, bus))


def _is_ours(root: Path, bus: str) -> bool:
    folder = root / "sys/bus/pci/devices" / bus
    if (folder / "physfn").exists():
        return False
    try:
        # One that has no driver is ours: a GPU that could not be brought up is left without.
        return (folder / "driver").resolve(strict=True).name == DRIVER
    except OSError:
        return True


def has_nouveau(root: Path) -> bool:
    """Whether the kernel's own driver for these GPUs is loaded."""
    return (root / "sys/module/nouveau").is_dir()


def none_shown(driver: str) -> str:
    """That a driver of this version shows no GPU at all, without a full stop."""
    return f"The NVIDIA driver {driver} shows no GPU" if driver else "The NVIDIA driver shows no GPU"


def sentence(missing: Collection[str], *, shown: int = 1, driver: str = "") -> str:
    """What an operator reads of them, with the one next action. `shown`: how many GPUs the driver shows.

    One that shows none at all may be older than they are: no reboot would help.
    """
    named = ", ".join(list(missing)[:MAX_NAMED])
    if not shown:
        count = "one is" if len(missing) == 1 else f"{len(missing)} are"
        return f"{none_shown(driver)}, but {count} on PCI: {named}. {NEWER_DRIVER}"
    if len(missing) == 1:
        return f"The GPU at {named} is on PCI, but the driver does not show it. {NEXT_ACTION}"
    return f"{len(missing)} GPUs are on PCI, but the driver does not show them: {named}. {NEXT_ACTION}"
