"""Devices that lose speed when all of a node are busy, by their own speed alone. Pure functions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from provisioning.gpu.check.thresholds import JOINT_WARN_PERCENT
from provisioning.gpu.check.types import Finding, Severity, TestResult

PROBE = "joint_burn"
SLOW, WRONG = "peers_slow_together", "peers_wrong_together"


@dataclass(frozen=True, slots=True)
class JointResult:
    """What one device did: its speed with all others in percent of its speed alone, and wrong words."""

    uuid: str
    percent: float
    errors: int


def results_of(detail: Mapping[str, Any]) -> tuple[JointResult, ...]:
    """Return the devices, the checked one first.

    Raises `KeyError`, `TypeError`, `ValueError` or `AttributeError` if any is malformed.
    """
    by_device = detail.get("by_device", {})
    return tuple(JointResult(str(k), float(v["percent"]), int(v["errors"])) for k, v in by_device.items())


def findings(tests: Sequence[TestResult]) -> list[Finding]:
    """Return notes on peers, which do not count against the checked device."""
    found = []
    for test in tests:
        peers = results_of(test.detail)[1:] if test.name == PROBE else ()
        slow = [f"{peer.uuid} ({peer.percent:g} %)" for peer in peers if peer.percent < JOINT_WARN_PERCENT]
        if slow:
            text = f"Slower when all GPUs are busy: {', '.join(slow)}. Check power and cooling of the node."
            found.append(Finding(SLOW, Severity.INFO, text))
        wrong = [f"{peer.uuid} ({peer.errors})" for peer in peers if peer.errors]
        if wrong:
            text = f"Wrong words on peers when all GPUs are busy: {', '.join(wrong)}. Check each peer."
            found.append(Finding(WRONG, Severity.INFO, text))
    return found
