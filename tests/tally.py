"""The sum over the phases of `make test`: `python -m tests.tally FOLDER PHASE...`.

Reads FOLDER/PHASE.xml (JUnit) and FOLDER/PHASE.code (pytest's exit code), and PHASE-again.xml where
`tests.again` has run once more what had failed. The last lines are `N passed, N failed, N skipped`, which of
the failed pass alone, and the reasons of all skips; the exit code is 0 when something passed and nothing
failed.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from xml.etree import ElementTree

# All passed; some failed, which the report shows; nothing was collected.
OF_A_WHOLE_RUN = (0, 1, 5)
LIMIT = 3
"""Up to how many failed tests of a phase are run once more, to tell whether they fail alone, too."""


@dataclass(frozen=True)
class Case:
    name: str
    failed: bool
    skipped: str | None
    """The reason, or None when it was run."""


def cases(report: Path) -> Iterator[Case]:
    """The tests of a JUnit report; none where there is no report."""
    if not report.exists():
        return
    for case in ElementTree.parse(report).getroot().iter("testcase"):
        outcomes = {child.tag: child for child in case}
        skipped = outcomes.get("skipped")
        yield Case(
            name="::".join(filter(None, (case.get("classname"), case.get("name")))),
            failed="failure" in outcomes or "error" in outcomes,
            skipped=None if skipped is None else skipped.get("message") or "no reason given",
        )


@dataclass
class Tally:
    passed: int = 0
    failed: int = 0
    reasons: Counter[str] = field(default_factory=Counter)
    unsteady: list[str] = field(default_factory=list)

    def add(self, folder: Path, phase: str) -> None:
        """Count one phase. One that did not end, or failed without a failed test, is a failure itself."""
        good, bad = set(), set()
        # A test and what ends it may be two cases of one name.
        for case in cases(folder / f"{phase}-again.xml"):
            (bad if case.failed or case.skipped is not None else good).add(case.name)
        failures = 0
        for case in cases(folder / f"{phase}.xml"):
            failures += case.failed
            if case.failed:
                self.failed += 1
                if case.name in good - bad:
                    self.unsteady.append(case.name)
            elif case.skipped is not None:
                self.reasons[case.skipped] += 1
            else:
                self.passed += 1
        code = folder / f"{phase}.code"
        ended = int(code.read_text()) if code.exists() else -1
        if ended not in OF_A_WHOLE_RUN or (ended == 1 and not failures):
            print(f"-- {phase} did not run to its end (exit code {ended})")
            self.failed += 1


def main(folder: str, *phases: str) -> int:
    tally = Tally()
    for phase in phases:
        tally.add(Path(folder), phase)
    print(f"\n{tally.passed} passed, {tally.failed} failed, {tally.reasons.total()} skipped")
    for name in tally.unsteady:
        print(f"  failed beside others, passes alone: {name}")
    for reason, count in tally.reasons.most_common():
        print(f"  skipped {count} × {reason}")
    if not tally.passed:
        print("Nothing passed: look at the output above.")
    return 0 if tally.passed and not tally.failed else 1


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
