"""Consequences for a device of an XID between two checks. Pure functions.

Numbers and meanings: https://docs.nvidia.com/deploy/xid-errors/analyzing-xid-catalog.html. During a check
`health.xids` judges. Here the device may be in use, so only XIDs caused by the device count.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from provisioning.gpu.check.health import XID_FAIL, XID_NVLINK
from provisioning.gpu.check.types import Action

RECOVERY_CHANGED = 154
BETWEEN_CHECKS: Mapping[int, tuple[str, Action]] = {
    **XID_FAIL,
    63: ("a reset is needed to retire a faulty memory row", Action.DRAIN_AND_RESET),
    92: ("high rate of corrected memory errors", Action.INSPECT),
    94: ("a contained memory error stopped the work on the GPU", Action.DRAIN_AND_RESET),
}
# By number of NVML's recovery action. Recovery of an IMEX domain (5) does not concern this device.
_ASKED: Mapping[str, Action] = {
    "1": Action.RESET,
    "2": Action.REBOOT,
    "3": Action.DRAIN_AND_RESET,
    "4": Action.DRAIN_AND_RESET,
    "6": Action.RESET,
    "7": Action.REBOOT,
}
_NOT_THIS_DEVICE = frozenset({"", "5"})
_FATAL = re.compile(r"\bFatal\b")
_CHANGED_TO = re.compile(r"recovery action changed from .*? to 0x([0-9a-fA-F]{1,8})\b")


@dataclass(frozen=True, slots=True)
class Consequence:
    """The device takes no new work; `action` is the remedy."""

    text: str
    action: Action


def of_xid(xid: int, line: str = "") -> Consequence | None:
    """Return the consequence of an XID for its device, or None if the device did not cause the error.

    `line` is the kernel's message, the only source of the requested recovery (XID 154) and of
    the severity of NVLink errors (XIDs 144 to 150).
    """
    if xid == RECOVERY_CHANGED:
        return _of_recovery(line)
    if xid in XID_NVLINK and _FATAL.search(line):
        return Consequence(f"XID {xid}: fatal NVLink error.", Action.RESET)
    entry = BETWEEN_CHECKS.get(xid)
    return None if entry is None else Consequence(f"XID {xid}: {entry[0]}.", entry[1])


def _of_recovery(line: str) -> Consequence | None:
    match = _CHANGED_TO.search(line)
    number = match.group(1).lstrip("0") if match else "unknown"
    if number in _NOT_THIS_DEVICE:
        return None
    text = f"XID {RECOVERY_CHANGED}: the driver requests a recovery action."
    return Consequence(text, _ASKED.get(number, Action.INSPECT))
