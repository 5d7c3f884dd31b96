"""A node worker's use of NVML as a process: inventory, samples of a minute, and XID events.

`python -m tests.gpu.driver.node ROOT` prints a JSON line for each. It watches until an event arrives or its
standard input ends.
"""

from __future__ import annotations

import json
import sys
import threading
from dataclasses import asdict
from pathlib import Path
from typing import Any

from provisioning.gpu.inventory import scan
from provisioning.gpu.problems import NvmlProblem
from provisioning.gpu.sampler import Sampler
from provisioning.gpu.sources import NvmlDevices
from provisioning.gpu.watcher.watcher import Watcher
from provisioning.gpu.watcher.xid_report import XidReport


def say(what: str, **values: Any) -> None:
    print(json.dumps({"what": what, **values}, default=str), flush=True)


def sample() -> None:
    """Two readings in one minute, and the end of the minute."""
    rollups: list[Any] = []
    devices = NvmlDevices()
    sampler = Sampler(1, devices, rollups.extend)
    try:
        for second in (60.0, 61.0, 62.0, 120.0):
            sampler.tick(second)
    except NvmlProblem as problem:
        say("samples", problem=problem.state, sentence=problem.sentence)
        return
    finally:
        devices.close()
    sampler.flush()
    say(
        "samples",
        latest={uuid: asdict(latest_sample) for uuid, latest_sample in sampler.latest().items()},
        rollups=[asdict(rollup) for rollup in rollups],
    )


def watch(kernel_log: Path) -> None:
    reported = threading.Event()

    def sink(reports: list[XidReport]) -> None:
        say("xids", seen=[[report.slot, report.xid] for report in reports])
        reported.set()

    watcher = Watcher(sink, kmsg=kernel_log)
    watcher.start()
    threading.Thread(target=lambda: (sys.stdin.read(), reported.set()), daemon=True).start()
    reported.wait()
    watcher.stop()


def main(root: Path) -> None:
    say("inventory", **asdict(scan(root=root)))
    sample()
    watch(root / "dev/kmsg")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
