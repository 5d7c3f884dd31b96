"""Copies between two devices that arrived with wrong words. Pure functions."""

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


def pairs_of(detail: Mapping[str, Any], *, own: bool) -> tuple[WrongPair, ...]:
    """Return pairs that include the checked device (`own`), or those between two peers.

    Raises `KeyError`, `TypeError` or `ValueError` if any is malformed.
    """
    pairs = [
        (bool(entry["own"]), WrongPair(str(entry["from"]), str(entry["to"]), int(entry["errors"])))
        for entry in detail.get("wrong_pairs", ())
    ]
    return tuple(pair for its_own, pair in pairs if its_own is own)


def findings(tests: Sequence[TestResult]) -> list[Finding]:
    """Return findings for errors between two peers, which do not count against the checked device."""
    notices = []
    for test in tests:
        wrong = pairs_of(test.detail, own=False)
        if wrong:
            text = (
                f"Wrong words between other devices: {'; '.join(map(str, wrong))}. "
                "Check each of these devices with other peers."
            )
            notices.append(Finding(CODE, Severity.INFO, text))
    return notices
