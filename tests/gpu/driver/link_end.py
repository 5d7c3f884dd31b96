"""One end of a link check between two nodes, run as by the node's worker.

`python -m tests.gpu.driver.link_end ORDER` prints a JSON line per step, and the `report` last.
"""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path

from provisioning.gpu.check.plan import plan_for
from provisioning.gpu.check.process import python
from provisioning.gpu.check.runner import run_check
from provisioning.gpu.check.types import Facts, Level, Progress, Rendezvous
from tests.gpu.driver.conftest import TIMING


def main(order: dict[str, object]) -> None:
    waits = {name: order.pop(name) for name in ("meet_s", "silent_s") if name in order}
    uuid, turns = str(order.pop("uuid")), Path(str(order.pop("turns")))
    meeting = Rendezvous(**order)  # type: ignore[arg-type]
    plan = [
        replace(test, params={**test.params, **waits}) if test.params else test
        for test in plan_for(Level.QUICK, Facts(uuid), meeting=meeting)
    ]

    def say(progress: Progress) -> None:
        print(json.dumps({"phase": progress.phase, "test": progress.test}), flush=True)

    report = run_check(
        uuid, "quick", meeting=meeting, plan=plan, child=python("tests.gpu.driver.small_child"),
        turns=turns, timing=TIMING, on_progress=say,
    )  # fmt: skip
    print(json.dumps({"phase": "report", "report": report.to_dict()}), flush=True)


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
