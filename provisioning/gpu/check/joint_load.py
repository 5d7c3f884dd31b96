"""Devices that lose speed when all of a node are busy, compared with their speed alone. Pure functions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from provisioning.gpu.check.thresholds import JOINT_WARN_PERCENT
from provisioning.gpu.check.types import Finding, Severity, TestResult

PROBE = "joint_burn"
SLOW, WRONG, BLIND = "peers_slow_together", "peers_wrong_together", "peers_blind_together"


@dataclass(frozen=True, slots=True)
class JointResult:
    """Speeds of one device, the speed with all others in percent of that alone, and its wrong words.

    `blind`: its comparison missed a planted bit.
    """

    uuid: str
    alone_tflops: float
    together_tflops: float
    percent: float
    errors: int
    blind: bool

    @property
    def slow(self) -> bool:
        return self.percent < JOINT_WARN_PERCENT


def results_of(detail: Mapping[str, Any]) -> tuple[JointResult, ...]:
    """Return the devices, the checked one first.

    Raises `KeyError`, `TypeError`, `ValueError` or `AttributeError` if any is malformed.
    """
    by_device = detail.get("by_device", {})
    return tuple(
        JointResult(
            str(uuid), float(part["alone_tflops"]), float(part["together_tflops"]), float(part["percent"]),
            int(part["errors"]), not part["canary_found"],
        )
        for uuid, part in by_device.items()
    )  # fmt: skip


def findings(tests: Sequence[TestResult]) -> list[Finding]:
    """Return notes on peers, which do not count against the checked device."""
    findings = []
    for test in tests:
        peers = results_of(test.detail)[1:] if test.name == PROBE else ()
        slow = [f"{peer.uuid} ({peer.percent:g} %)" for peer in peers if peer.slow]
        if slow:
            text = f"Slower when all GPUs are busy: {', '.join(slow)}. Check power and cooling of the node."
            findings.append(Finding(SLOW, Severity.INFO, text))
        wrong = [f"{peer.uuid} ({peer.errors})" for peer in peers if peer.errors]
        if wrong:
            text = f"Wrong words on peers when all GPUs are busy: {', '.join(wrong)}. Check each peer."
            findings.append(Finding(WRONG, Severity.INFO, text))
        if blind := [peer.uuid for peer in peers if peer.blind]:
            text = f"A planted error was not detected on peers: {', '.join(blind)}. Check each peer."
            findings.append(Finding(BLIND, Severity.INFO, text))
    return findings
