"""The node processes involved in a reset, one at a time.

`holds ROOT` samples and watches like the node's worker, with NVML open until its input ends. `resets ROOT
UUID DEADLINE LET_GO` resets a GPU as root would and prints the result.
"""

from __future__ import annotations

import json
import os
import sys
from dataclasses import asdict
from pathlib import Path

from provisioning.gpu.reset_run import run_reset
from provisioning.gpu.sampler import Sampler
from provisioning.gpu.sources import NvmlDevices
from provisioning.gpu.watcher.watcher import Watcher


def hold(root: Path) -> None:
    sampler = Sampler(1, NvmlDevices(), lambda rollups: None)
    watcher = Watcher(lambda seen: None, kmsg=root / "dev/kmsg")
    sampler.start()
    watcher.start()
    sys.stdin.read()


def reset(root: Path, uuid: str, deadline_s: float, release_s: float) -> None:
    os.geteuid = lambda: 0
    done = run_reset(uuid, deadline_s=deadline_s, root=root, release_s=release_s)
    print(json.dumps(asdict(done)), flush=True)


if __name__ == "__main__":
    if sys.argv[1] == "holds":
        hold(Path(sys.argv[2]))
    else:
        reset(Path(sys.argv[2]), sys.argv[3], *map(float, sys.argv[4:]))
