"""Whether this machine can suspend workspaces: the result of a trial, and whether it is still valid.

Only a valid trial grants the capability. A trial is valid on its machine, with its driver version and GPU
models. One with a test double of the driver never is, since the loaded kernel module is checked too.
"""

from __future__ import annotations

import contextlib
import os
import re
from dataclasses import asdict, dataclass
from pathlib import Path

import msgspec

from provisioning.machine_id import machine_id

FILE = "suspend-trial.json"
KERNEL_MODULE = "proc/driver/nvidia/version"
NOT_TRIED = "not_tried"
FAILED = "failed"
SIMULATED = "simulated"
OTHER_MACHINE = "other_machine"
OTHER_DRIVER = "other_driver"
NO_KERNEL_MODULE = "no_kernel_module"


@dataclass(frozen=True, slots=True)
class Trial:
    """Result of a trial. `problem` is why it failed; `onto` is another GPU, if any."""

    uuid: str
    model: str
    driver: str
    problem: str = ""
    onto: str = ""
    at: float = 0.0
    suspend_ms: int = 0
    resume_ms: int = 0
    simulated: bool = False
    machine: str = ""


def save(base: Path, trial: Trial) -> None:
    """Store the last trial, successful or not. Raises `OSError`."""
    base.mkdir(mode=0o700, parents=True, exist_ok=True)
    half = base / f"{FILE}.{os.getpid()}"
    try:
        half.write_bytes(msgspec.json.encode(asdict(trial)))
        half.chmod(0o600)
        half.rename(base / FILE)
    finally:
        with contextlib.suppress(OSError):
            half.unlink()


def load(base: Path) -> Trial | None:
    """Return the last trial; None if there is none or its file is unreadable."""
    try:
        return msgspec.json.decode((base / FILE).read_bytes(), type=Trial)
    except (OSError, msgspec.DecodeError):
        return None


def refusal(trial: Trial | None, *, driver: str, instance: str, root: Path = Path("/")) -> str:
    """Return a code for why a trial is invalid here; empty if valid. `driver` is NVML's current version."""
    if trial is None:
        return NOT_TRIED
    if trial.simulated:
        return SIMULATED
    if trial.problem:
        return FAILED
    if trial.machine != machine_id(instance):
        return OTHER_MACHINE
    if not driver or trial.driver != driver:
        return OTHER_DRIVER
    if kernel_module(root) != driver:
        return NO_KERNEL_MODULE
    return ""


def kernel_module(root: Path = Path("/")) -> str:
    """Return the version of the loaded NVIDIA kernel module; empty if there is none."""
    try:
        first = (root / KERNEL_MODULE).read_text(errors="replace").splitlines()[0]
    except (OSError, IndexError):
        return ""
    match = re.search(r"\b\d{3,}(\.\d+)+\b", first)
    return match.group() if first.startswith("NVRM version:") and match else ""
