"""`python -m bench.scheduling.kueue --cases 10000`: preemption beside a model of Kueue's algorithm.

Random small sites with one request each: nested cohorts, limits, weights, priorities, one to three resources.
The engine's cycle must choose the same victims for the same reasons as the model
(`tests.scheduling.engine.kueue_model`, written from Kueue's source). Exits with 1 if it does not.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections import Counter
from pathlib import Path

from tests.scheduling.engine.kueue_model import FAIR_SHARING, IN_CLUSTER_QUEUE, RECLAMATION
from tests.scheduling.engine.kueue_worlds import decide, random_world

MOST_SHOWN = 5


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.scheduling.kueue", description=__doc__)
    parser.add_argument("--cases", type=int, default=10_000)
    parser.add_argument("--first", type=int, default=0, help="the seed of the first case")
    parser.add_argument("--json", type=Path, default=None)
    options = parser.parse_args()
    counts: Counter[str] = Counter()
    differences: list[str] = []
    began_at = time.perf_counter()
    for seed in range(options.first, options.first + options.cases):
        decided = decide(random_world(seed))
        counts["with victims"] += bool(decided.engine)
        for reason in (IN_CLUSTER_QUEUE, RECLAMATION, FAIR_SHARING):
            counts[reason] += any(preemption == reason for _, preemption in decided.engine)
        counts["of equal cohorts either may give"] += len(decided.fair) > 1
        counts["classical preemption compared"] += decided.classical
        counts["listed choice: own team where Kueue gives up"] += decided.choice
        if decided.difference:
            differences.append(f"seed {seed}: {decided.difference}")
    report = {
        "cases": options.cases,
        **counts,
        "differences": len(differences),
        "first_differences": differences[:MOST_SHOWN],
        "seconds": round(time.perf_counter() - began_at, 1),
    }
    text = json.dumps(report, indent=2)
    print(text)
    if options.json is not None:
        options.json.write_text(text + "\n", encoding="utf-8")
    return 1 if differences else 0


if __name__ == "__main__":
    sys.exit(main())
