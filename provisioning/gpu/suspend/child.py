"""The process that asks the driver: it may hang without harm. Started by `run.py`; not for people.

It looks by NVML who uses which GPU, walks (`walk.py`) where it is told to, and looks again. Unlike other
children of the node it does not die with whoever started it: processes would be left locked. It then goes
back by itself, as it does when its time is over.
"""

from __future__ import annotations

import ctypes
import json
import os
import sys
import time
from typing import Any

from provisioning.gpu.check.wire import Out
from provisioning.gpu.nvml import NvmlProblem, session
from provisioning.gpu.suspend.cuda_calls import CudaCalls
from provisioning.gpu.suspend.states import Goal
from provisioning.gpu.suspend.walk import CallFailed, walk

MARKER = "berth_simulated_cuda"
LIBRARIES = ("libcuda.so.1", "libnvidia-ml.so.1")


class Teller:
    """Messages to whoever started this; `alone` once nobody listens any more."""

    def __init__(self, fd: int) -> None:
        self._out = Out(fd)
        self.alone = False

    def send(self, kind: str, **values: Any) -> None:
        try:
            self._out.send(kind, **values)
        except BrokenPipeError:
            self.alone = True


def simulated() -> bool:
    """Whether a stand-in is loaded in place of the driver's libraries."""
    for name in LIBRARIES:
        try:
            if hasattr(ctypes.CDLL(name), MARKER):
                return True
        except OSError:
            continue
    return False


def look() -> dict[str, Any]:
    """Who uses which GPU, by NVML; `problem` where it does not say."""
    gpus: dict[str, Any] = {}
    try:
        with session() as nvml:
            for index in range(nvml.count()):
                gpu = nvml.device(index)
                total, used = gpu.memory()
                gpus[gpu.uuid()] = {
                    "model": gpu.name(),
                    "total": total,
                    "used": used,
                    "users": gpu.processes(),
                }
            return {"gpus": gpus, "driver": nvml.driver_version() or "", "problem": ""}
    except NvmlProblem as problem:
        return {"gpus": gpus, "driver": "", "problem": problem.sentence}


def main(argv: list[str]) -> int:
    config, teller = json.loads(argv[1]), Teller(int(argv[2]))
    teller.send("look", when="before", **look())
    if config["pids"]:
        _ask(teller, config)
    if config["goal"]:
        teller.send("look", when="after", **look())
    teller.send("end", nonce=config["nonce"], simulated=simulated())
    return 0


def _ask(teller: Teller, config: dict[str, Any]) -> None:
    """Say in which states the processes are; with a goal, bring them there before."""
    until = time.monotonic() + float(config["within_s"])

    def stop() -> bool:
        # Nobody will say that it was suspended; what resumes is wanted whoever listens.
        teller.send("beat")
        return time.monotonic() > until or (teller.alone and config["goal"] == Goal.SUSPENDED)

    try:
        calls = CudaCalls(pairs=config["pairs"])
    except CallFailed as failed:
        teller.send("unable", name=failed.name)
        return
    if not config["goal"]:
        teller.send("states", states={str(pid): calls.state(pid) for pid in config["pids"]})
        return
    outcome = walk(
        calls,
        config["pids"],
        Goal(config["goal"]),
        stop=stop,
        tell=lambda call, pid: teller.send("step", call=call, pid=pid),
    )
    trouble = outcome.trouble
    teller.send(
        "outcome",
        states={str(pid): state for pid, state in outcome.states.items()},
        trouble=[trouble.call, trouble.pid, trouble.name] if trouble else None,
    )


if __name__ == "__main__":
    code = main(sys.argv)
    sys.stderr.flush()
    # Not through the interpreter's shutdown: the driver's own exit handlers can block on a lost device.
    os._exit(code)
