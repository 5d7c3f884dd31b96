"""Reasons why CUDA cannot use a healthy device: configuration of the machine, or initialisation in progress.

None of these is a fault of the device. They are reported with a fix, and the device is not allocated
meanwhile.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from provisioning.gpu.check.types import Action, Finding, Severity

FABRIC = (
    "The fabric manager has not initialized the NVLink switches. "
    "Start it in the version of the driver: systemctl start nvidia-fabricmanager."
)
PROHIBITED = (
    "The compute mode is “prohibited”, so no process can use the device. "
    "Reset the mode: nvidia-smi -c DEFAULT."
)
SPLIT = (
    "The GPU is in MIG mode, so CUDA can only use its instances. "
    "Select an instance (nvidia-smi -L lists them), or disable MIG mode: nvidia-smi -mig 0."
)
# CUDA error names and their meaning here.
CUDA: Mapping[str, str] = {
    "CUDA_ERROR_SYSTEM_NOT_READY": FABRIC,
    "CUDA_ERROR_SYSTEM_DRIVER_MISMATCH": "The driver was updated but not reloaded. Reboot the node.",
    "CUDA_ERROR_DEVICE_UNAVAILABLE": (
        "The device is not available: another process uses it in an exclusive compute mode, "
        "or the mode is prohibited. Check nvidia-smi -q -d COMPUTE,PIDS."
    ),
}
COMPUTE_MODES = {0: "default", 1: "exclusive_thread", 2: "prohibited", 3: "exclusive_process"}
FABRIC_STATES = {0: "not_supported", 1: "not_started", 2: "in_progress", 3: "completed"}


def before_load(snapshot: Mapping[str, Any], *, instance: bool = False) -> list[Finding]:
    """Return findings of a snapshot that make a run pointless. Exclusive modes allow one process: the check.

    `instance`: the snapshot is of a MIG instance's GPU. A whole GPU in MIG mode cannot be checked: CUDA would
    open its first instance, which may be in use.
    """
    findings = []
    if snapshot.get("mig_mode") and not instance:
        findings.append(Finding("mig_mode", Severity.INCONCLUSIVE, SPLIT, Action.INSPECT))
    if snapshot.get("compute_mode") == "prohibited":
        findings.append(Finding("compute_mode", Severity.INCONCLUSIVE, PROHIBITED, Action.INSPECT))
    fabric = snapshot.get("fabric")
    if fabric in ("not_started", "in_progress"):
        retry = Action.RETRY if fabric == "in_progress" else Action.INSPECT
        findings.append(Finding("fabric", Severity.INCONCLUSIVE, FABRIC, retry))
    return findings
