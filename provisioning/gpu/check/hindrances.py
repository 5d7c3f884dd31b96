"""Reasons why CUDA cannot use a healthy device: configuration of the machine, or initialisation in progress.

None of these is a fault of the device. They are reported with a fix, and the device is not allocated
meanwhile.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from provisioning.gpu.check.types import Action, Finding, Severity

FABRIC = (
    "The fabric manager has not brought up the NVLink switches. "
    "Start it (systemctl start nvidia-fabricmanager; its version has to be the driver's)."
)
PROHIBITED = (
    "The compute mode is “prohibited”: nobody may use the device. Set it back: nvidia-smi -c DEFAULT."
)
SPLIT = (
    "The GPU is in MIG mode, where CUDA has its instances only. "
    "Ask for those (nvidia-smi -L lists them), or turn MIG off: nvidia-smi -mig 0."
)
# CUDA error names and their meaning here.
CUDA: Mapping[str, str] = {
    "CUDA_ERROR_SYSTEM_NOT_READY": FABRIC,
    "CUDA_ERROR_SYSTEM_DRIVER_MISMATCH": "The driver was updated while loaded. Reboot the node.",
    "CUDA_ERROR_DEVICE_UNAVAILABLE": (
        "The device is not to be had: its compute mode is exclusive and somebody has it, "
        "or it is prohibited. See nvidia-smi -q -d COMPUTE,PIDS."
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
