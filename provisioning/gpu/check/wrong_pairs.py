"""Copies between two devices that came to wrong words, as a test of several devices tells them. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from provisioning.gpu.check.types import Finding, Severity, TestResult

CODE = "peers_wrong"


@dataclass(frozen=True, slots=True)
class WrongPair:
    """Wrong words that arrived at `target` from `source`, both UUIDs."""

    source: str
    target: str
    errors: int

    def __str__(self) -> str:
        return f"{self.source} to {self.target}: {self.errors}"


def of(detail: Mapping[str, Any], *, own: bool) -> tuple[WrongPair, ...]:
    """Those with the checked device at one end (`own`), or those between two of its peers.

    Raises `KeyError`, `TypeError` or `ValueError` where any of them is not as tests tell them.
    """
    told = [
        (bool(each["own"]), WrongPair(str(each["from"]), str(each["to"]), int(each["errors"])))
        for each in detail.get("wrong_pairs", ())
    ]
    return tuple(pair for its_own, pair in told if its_own is own)


def findings(tests: Sequence[TestResult]) -> list[Finding]:
    """What is wrong between two peers is nothing against the checked device; somebody has to know of it."""
    found = []
    for test in tests:
        wrong = of(test.detail, own=False)
        if wrong:
            text = (
                f"Wrong words between two peers, and neither is this device: {'; '.join(map(str, wrong))}. "
                "Check each of them, with other peers."
            )
            found.append(Finding(CODE, Severity.INFO, text))
    return found
