"""The sum over the phases of a run.

Reads FOLDER/PHASE.xml (JUnit) and FOLDER/PHASE.code (pytest's exit code). The report says which tests were
the slowest, what each room of the tests cost, what exceeded its budget, and in its last lines `N passed, N
failed, N skipped` with the reasons of all skips. Fixtures that tests share, as servers and browsers, count
for their phase and room, and for no test.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol
from xml.etree import ElementTree

from tests.suite.plugin import SHARED

ENDED = (0, 1, 5)
"""Exit codes of a run to the end: all passed; some failed, which the report shows; nothing was collected."""
SLOW_S = 3.0
"""Processor time above which a test must give a reason, by the mark `slow`."""
SLOWEST = 10


class PhaseBudget(Protocol):
    @property
    def name(self) -> str: ...

    @property
    def budget_s(self) -> int: ...


@dataclass(frozen=True, slots=True)
class Case:
    name: str
    failed: bool
    skipped: str | None
    """The reason, or None if the test ran."""
    cpu_s: float = 0.0
    explained: bool = False
    """Whether the test carries the mark `slow`."""
    shared: Mapping[str, float] = field(default_factory=dict)
    """Processor time of shared fixtures that were set up or torn down with this test, by name, in seconds."""

    @property
    def all_s(self) -> float:
        return self.cpu_s + sum(self.shared.values())

    @property
    def room(self) -> str:
        """Return the folder of the test below `tests`."""
        parts = self.name.split("::")[0].split(".")
        return parts[1] if len(parts) > 2 else parts[0]


def cases(report: Path) -> Iterator[Case]:
    """Return the tests of a JUnit report; none for a missing or empty one."""
    if not report.exists() or not report.stat().st_size:
        return
    for case in ElementTree.parse(report).getroot().iter("testcase"):
        outcomes = {child.tag: child for child in case}
        skipped = outcomes.get("skipped")
        properties = {item.get("name"): item.get("value") for item in case.iter("property")}
        yield Case(
            name="::".join(filter(None, (case.get("classname"), case.get("name")))),
            failed="failure" in outcomes or "error" in outcomes,
            skipped=None if skipped is None else skipped.get("message") or "no reason given",
            cpu_s=float(properties.get("cpu_s") or 0),
            explained="slow" in properties,
            shared={
                name.removeprefix(SHARED): float(value or 0)
                for name, value in properties.items()
                if name and name.startswith(SHARED)
            },
        )


def exit_code(folder: Path, phase: str) -> int:
    """Return the exit code of a phase; -1 if it did not end."""
    try:
        return int((folder / f"{phase}.code").read_text())
    except (OSError, ValueError):
        return -1


def passed(folder: Path, phase: str) -> bool:
    """Return whether nothing failed, and not everything was skipped."""
    ran = list(cases(folder / f"{phase}.xml"))
    skipped = bool(ran) and all(case.skipped is not None for case in ran)
    return exit_code(folder, phase) == 0 and not skipped and not any(case.failed for case in ran)


@dataclass
class Tally:
    passed: int = 0
    failed: int = 0
    reasons: Counter[str] = field(default_factory=Counter)
    rooms: Counter[str] = field(default_factory=Counter)
    """Processor time by room, in seconds."""
    fixtures: Counter[str] = field(default_factory=Counter)
    """Processor time of shared fixtures by name, in seconds."""
    tests: list[Case] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)

    def add(self, folder: Path, phase: PhaseBudget) -> None:
        """Count one phase. One that did not end, or failed without a failed test, is itself a failure."""
        failures, used_s = 0, 0.0
        for case in cases(folder / f"{phase.name}.xml"):
            failures += case.failed
            if case.failed:
                self.failed += 1
            elif case.skipped is not None:
                self.reasons[case.skipped] += 1
            else:
                self.passed += 1
            used_s += case.all_s
            self.rooms[case.room] += case.all_s  # type: ignore[assignment]
            for name, shared_s in case.shared.items():
                self.fixtures[name] += shared_s  # type: ignore[assignment]
            self.tests.append(case)
        if used_s > phase.budget_s:
            self.warnings.append(
                f"{phase.name} used {used_s:.0f} s of processor time; its budget is {phase.budget_s} s"
            )
        code = exit_code(folder, phase.name)
        if code not in ENDED or (code == 1 and not failures):
            print(f"-- {phase.name} did not run to its end (exit code {code})")
            self.failed += 1

    def slowest(self) -> list[Case]:
        return sorted(self.tests, key=lambda case: -case.cpu_s)[:SLOWEST]

    def unexplained(self) -> list[Case]:
        return [case for case in self.tests if case.cpu_s > SLOW_S and not case.explained]


def report(folder: Path, phases: Sequence[PhaseBudget], *, seconds: float) -> int:
    """Print the sum. Returns 0 if something passed and nothing failed, else 1."""
    tally = Tally()
    for phase in phases:
        tally.add(folder, phase)
    total_s = sum(case.all_s for case in tally.tests)
    print(f"\n{seconds:.0f} s; processor time of the tests {total_s:.0f} s, by room:")
    print(
        "  " + ", ".join(f"{room} {used_s:.0f}" for room, used_s in tally.rooms.most_common() if used_s >= 1)
    )
    if shared := [
        f"{name} {used_s:.0f}" for name, used_s in tally.fixtures.most_common(SLOWEST) if used_s >= 1
    ]:
        print(f"Of that, shared fixtures: {', '.join(shared)}")
    print("The slowest:")
    for case in tally.slowest():
        print(f"  {case.cpu_s:6.1f} s  {case.name}")
    for case in tally.unexplained():
        print(f"  ! {case.cpu_s:.1f} s, and no mark `slow` says why: {case.name}")
    for warning in tally.warnings:
        print(f"  ! {warning}")
    for reason, count in tally.reasons.most_common():
        print(f"  skipped {count} × {reason}")
    if not tally.passed:
        print("Nothing passed: look at the output above.")
    print(f"\n{tally.passed} passed, {tally.failed} failed, {tally.reasons.total()} skipped")
    return 0 if tally.passed and not tally.failed else 1
