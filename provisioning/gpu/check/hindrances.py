"""What keeps CUDA from a device that has no fault: how the machine is set up, or that it is not ready yet.

Nothing here speaks against a device. It is told with what to do, and the device is not handed out meanwhile.
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
# The driver's names of errors, and what they mean here.
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
    """What a snapshot says before a run: no use in trying. Exclusive modes let one process in, the check.

    `instance`: it is of the GPU that a MIG instance is on. A GPU in MIG mode is not for CUDA by its own name:
    that would open its first instance, which may be somebody's.
    """
    found = []
    if snapshot.get("mig_mode") and not instance:
        found.append(Finding("mig_mode", Severity.INCONCLUSIVE, SPLIT, Action.INSPECT))
    if snapshot.get("compute_mode") == "prohibited":
        found.append(Finding("compute_mode", Severity.INCONCLUSIVE, PROHIBITED, Action.INSPECT))
    fabric = snapshot.get("fabric")
    if fabric in ("not_started", "in_progress"):
        retry = Action.RETRY if fabric == "in_progress" else Action.INSPECT
        found.append(Finding("fabric", Severity.INCONCLUSIVE, FABRIC, retry))
    return found
