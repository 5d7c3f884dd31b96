"""The sum over the phases of `make test`: `python -m tests.tally FOLDER PHASE...`.

Reads FOLDER/PHASE.xml (JUnit) and FOLDER/PHASE.code (pytest's exit code). The last lines are
`N passed, N failed, N skipped` and the reasons of all skips; the exit code is 0 when something passed
and nothing failed.
"""

from __future__ import annotations

import sys
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from xml.etree import ElementTree

# All passed; some failed, which the report shows; nothing was collected.
OF_A_WHOLE_RUN = (0, 1, 5)


@dataclass
class Tally:
    passed: int = 0
    failed: int = 0
    reasons: Counter[str] = field(default_factory=Counter)

    def add(self, report: Path, code: Path) -> None:
        """Count one phase. One that did not end, or failed without a failed test, is a failure itself."""
        before = self.failed
        if report.exists():
            for case in ElementTree.parse(report).getroot().iter("testcase"):
                self._add_case({child.tag: child for child in case})
        ended = int(code.read_text()) if code.exists() else -1
        if ended not in OF_A_WHOLE_RUN or (ended == 1 and self.failed == before):
            print(f"-- {report.stem} did not run to its end (exit code {ended})")
            self.failed += 1

    def _add_case(self, outcomes: dict[str, ElementTree.Element]) -> None:
        if "failure" in outcomes or "error" in outcomes:
            self.failed += 1
        elif "skipped" in outcomes:
            self.reasons[outcomes["skipped"].get("message") or "no reason given"] += 1
        else:
            self.passed += 1


def main(folder: str, *phases: str) -> int:
    tally = Tally()
    for phase in phases:
        tally.add(Path(folder, f"{phase}.xml"), Path(folder, f"{phase}.code"))
    print(f"\n{tally.passed} passed, {tally.failed} failed, {tally.reasons.total()} skipped")
    for reason, count in tally.reasons.most_common():
        print(f"  skipped {count} × {reason}")
    if not tally.passed:
        print("Nothing passed: look at the output above.")
    return 0 if tally.passed and not tally.failed else 1


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
