"""Capabilities of this machine as a node, tested before it joins."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from provisioning.drivers.local import cgroups, host, isolation, limits
from provisioning.gpu import inventory
from provisioning.host.folder import NodeFolder


@dataclass(frozen=True, slots=True)
class AbilityResult:
    """One result: its subject, whether it is as required, and the finding or the next action."""

    label: str
    good: bool
    text: str


def probe(folder: NodeFolder, *, as_service: bool) -> tuple[AbilityResult, ...]:
    """Test sandbox, network, system calls, limits and GPUs of this machine.

    With `as_service` limits may be missing here: with control groups v2 systemd delegates the required groups
    to its services. It never delegates groups of v1.
    """
    sandbox = isolation.probe()
    cgroup_host = cgroups.detect(folder.driver_instance)
    unlimited = limits.warning(cgroup_host)
    if unlimited and as_service and (cgroups.ROOT / "cgroup.controllers").exists():
        unlimited, limited = "", "set by systemd for the service"
    else:
        limited = "CPU, memory and processes"
    sandboxed = bool(sandbox.bwrap)
    size = f"{host.cpu_milli() / 1000:g} CPUs, {host.memory_mib(cgroup_host) / 1024:.0f} GiB for workspaces"
    return (
        AbilityResult("Size", True, size),
        AbilityResult("Sandbox", sandboxed, sandbox.reason or "bubblewrap"),
        AbilityResult(
            "Network",
            sandbox.network is not None,
            sandbox.network_reason or ("one per workspace" if sandboxed else "needs the sandbox"),
        ),
        AbilityResult(
            "System calls",
            bool(sandbox.seccomp),
            sandbox.seccomp_reason or ("filtered" if sandboxed else "needs the sandbox"),
        ),
        AbilityResult("Limits", not unlimited, unlimited or limited),
        _gpus(),
    )


def missing(abilities: tuple[AbilityResult, ...]) -> bool:
    """Return whether something required for workspaces of several users is missing."""
    return any(not ability.good for ability in abilities if ability.label != "GPUs")


def _gpus() -> AbilityResult:
    scan = inventory.scan(root=Path("/"))
    if not scan.gpus:
        return AbilityResult("GPUs", False, scan.sentence)
    counted = Counter(gpu.model for gpu in scan.gpus)
    models = ", ".join(f"{count} × {model}" for model, count in counted.most_common())
    warning = f". {scan.sentence}" if scan.sentence else ""
    return AbilityResult("GPUs", not warning, f"{models}, driver {scan.driver_version}{warning}")
