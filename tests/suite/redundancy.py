"""Choose which tests `make test` leaves to `make test-all`, because quicker tests run their lines.

`python -m tests.suite.redundancy --contexts COVERAGE --costs JUNIT > tests/suite/redundant.txt`

COVERAGE is a file of coverage.py, recorded with `pytest --cov-context=test`; JUNIT is a report of this
suite, which has each test's processor time. A test function is a candidate when all its cases together
take at least `--from-s` seconds. Candidates are kept, those first that add the most lines for their time,
until every line that the tests run is run by `--times` test functions, or by all where fewer run it, or
until no candidate left adds `--lines-per-s` lines for a second of its time. The others are listed.

Lines say nothing about races, invariants, attacks and documents: `KEPT` names what is never listed.
"""

from __future__ import annotations

import argparse
import heapq
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from pathlib import Path
from xml.etree import ElementTree

LIST = Path(__file__).with_name("redundant.txt")
KEPT = re.compile(
    r"^tests/(permissions|security|crash|suite|common|documents)/|test_schema|test_preflight|runTest|race|propert|lifecycle|contract|conformance|test_resources"
    r"|test_every_page|behaves_as_all|concurren|twice|at_once|same_moment|invariant|killed|crash|_lease|_never_|_wins_"
    r"|nobody|another|secret|_lost|who_may|withdrawn|test_pipelines"
)
Lines = frozenset[tuple[str, int]]


def function_of(node_id: str) -> str:
    """Return the node id of a test function, without parameters."""
    return node_id.partition("[")[0]


def listed(text: str) -> frozenset[str]:
    """Return the node ids of a list; lines that begin with `#` are comments."""
    return frozenset(line for line in text.splitlines() if line and not line.startswith("#"))


def redundant(
    costs: Mapping[str, float],
    lines: Mapping[str, Lines],
    *,
    from_s: float,
    times: int,
    lines_per_s: float = 0.0,
) -> list[str]:
    """Return the test functions that can be left out, by node id.

    `costs` are seconds of processor time and `lines` the lines that are run, each by test function. A
    function without lines is kept. With `lines_per_s`, a candidate that adds fewer lines for a second of its
    time is left out, too; `make test-all` alone runs its lines then.
    """
    candidates = {
        name for name in lines if costs.get(name, 0.0) >= from_s and lines[name] and not KEPT.search(name)
    }
    run_by = Counter(line for name, own in lines.items() if name in costs for line in own)
    quick = Counter(
        line for name, own in lines.items() if name in costs and name not in candidates for line in own
    )
    missing = Counter({line: min(times, all_) - quick[line] for line, all_ in run_by.items()})

    def value(name: str) -> float:
        return sum(missing[line] > 0 for line in lines[name]) / costs[name]

    left = set(candidates)
    heap = [(-value(name), name) for name in sorted(candidates)]
    heapq.heapify(heap)
    while heap:
        _, name = heapq.heappop(heap)
        # Tests kept meanwhile may have reduced its value.
        now = value(name)
        if not now or now < lines_per_s:
            continue
        if heap and -now > heap[0][0]:
            heapq.heappush(heap, (-now, name))
            continue
        left.remove(name)
        missing.subtract(line for line in lines[name] if missing[line] > 0)
    return sorted(left)


def costs_of(report: Path) -> dict[str, float]:
    """Return processor time in seconds by test function, from a JUnit report of this suite."""
    costs: dict[str, float] = defaultdict(float)
    for case in ElementTree.parse(report).getroot().iter("testcase"):
        spent = {item.get("name"): item.get("value") for item in case.iter("property")}.get("cpu_s")
        parts = (case.get("classname") or "").split(".")
        file = next(place for place, part in enumerate(parts) if part.startswith("test_"))
        path = "/".join(parts[: file + 1]) + ".py"
        costs[function_of("::".join([path, *parts[file + 1 :], case.get("name") or ""]))] += float(spent or 0)
    return costs


def lines_of(contexts: Path) -> dict[str, Lines]:
    """Return the product lines by test function, from a coverage file with contexts."""
    from coverage import CoverageData

    data = CoverageData(basename=str(contexts))
    data.read()
    lines: dict[str, set[tuple[str, int]]] = defaultdict(set)
    for file in data.measured_files():
        for line, names in data.contexts_by_lineno(file).items():
            for name in {function_of(name.rpartition("|")[0]) for name in names if "::" in name}:
                lines[name].add((file, line))
    return {name: frozenset(own) for name, own in lines.items()}


def printed(names: Iterable[str], *, from_s: float, times: int, lines_per_s: float) -> str:
    options = f"--from-s {from_s:g} --times {times} --lines-per-s {lines_per_s:g}"
    head = (
        "# Test functions that `make test` leaves to `make test-all`: quicker tests run their lines.\n"
        f"# Made by `python -m tests.suite.redundancy {options}`; docs/testing.md says when.\n"
    )
    return head + "".join(f"{name}\n" for name in names)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Which tests can be left to `make test-all`.")
    parser.add_argument("--contexts", type=Path, required=True)
    parser.add_argument("--costs", type=Path, required=True)
    parser.add_argument("--from-s", type=float, default=0.1)
    parser.add_argument("--times", type=int, default=1)
    parser.add_argument("--lines-per-s", type=float, default=0.0)
    given = parser.parse_args()
    chosen = {"from_s": given.from_s, "times": given.times, "lines_per_s": given.lines_per_s}
    found = redundant(costs_of(given.costs), lines_of(given.contexts), **chosen)
    print(printed(found, **chosen), end="")
