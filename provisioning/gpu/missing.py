"""GPUs that are on PCI but not shown by the driver; nothing else would report them missing."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

from provisioning.gpu.host import nvidia_gpus

DRIVER = "nvidia"
# A container sees all PCI devices of its machine, but only its own GPUs.
_CONTAINERS = (".dockerenv", "run/.containerenv", "var/run/secrets/kubernetes.io")
NEXT_ACTION = "Search dmesg for NVRM lines, then reboot this machine."
NEWER_DRIVER = "Install a newer driver if yours is older than the GPU; otherwise search dmesg for NVRM lines."
NOUVEAU = (
    "The nouveau driver is loaded instead of NVIDIA's driver. Add “blacklist nouveau” to "
    "/etc/modprobe.d/nouveau.conf, rebuild the initramfs, then reboot this machine."
)
MAX_NAMED = 16


def not_shown(root: Path, shown: Collection[str]) -> tuple[str, ...]:
    """Return PCI addresses of GPUs that should be in `shown`, the driver's addresses.

    Excludes virtual functions and devices of another kernel driver (`vfio-pci`: for a virtual machine).
    """
    if any((root / mark).exists() for mark in _CONTAINERS):
        return ()
    return tuple(bus for bus in nvidia_gpus(root) if bus not in shown and _is_ours(root, bus))


def _is_ours(root: Path, bus: str) -> bool:
    folder = root / "sys/bus/pci/devices" / bus
    if (folder / "physfn").exists():
        return False
    try:
        # A device without a driver counts: it could not be initialised.
        return (folder / "driver").resolve(strict=True).name == DRIVER
    except OSError:
        return True


def has_nouveau(root: Path) -> bool:
    """Return whether nouveau is loaded."""
    return (root / "sys/module/nouveau").is_dir()


def none_shown(driver: str) -> str:
    """Return the clause “The NVIDIA driver lists no GPU” with the version, without a full stop."""
    return f"The NVIDIA driver {driver} lists no GPU" if driver else "The NVIDIA driver lists no GPU"


def sentence(missing: Collection[str], *, shown: int = 1, driver: str = "") -> str:
    """Return a sentence for operators with one next action. `shown`: number of GPUs that the driver shows.

    A driver that shows none may be older than the GPUs, so a reboot would not help.
    """
    examples = ", ".join(list(missing)[:MAX_NAMED])
    if not shown:
        count = "1 GPU" if len(missing) == 1 else f"{len(missing)} GPUs"
        return f"{none_shown(driver)}, but PCI lists {count}: {examples}. {NEWER_DRIVER}"
    if len(missing) == 1:
        return f"PCI lists the GPU at {examples}, but the driver does not. {NEXT_ACTION}"
    return f"PCI lists {len(missing)} GPUs that the driver does not list: {examples}. {NEXT_ACTION}"
