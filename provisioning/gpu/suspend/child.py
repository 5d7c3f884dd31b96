"""The process that calls the driver and may hang without harm. Started by `run.py`; not for direct use.

It reads GPU use from NVML, walks (`walk.py`) if requested, and reads it again. Unlike other children of the
node it survives its parent, since processes would otherwise stay locked. It then goes back automatically,
as it does when its time is over.
"""

from __future__ import annotations

import ctypes
import json
import os
import sys
import time
from typing import Any

from provisioning.gpu.check.wire import LineWriter
from provisioning.gpu.nvml import NvmlProblem, session
from provisioning.gpu.suspend.cuda_calls import CudaCalls
from provisioning.gpu.suspend.states import TargetState
from provisioning.gpu.suspend.walk import SuspendCallFailed, walk

MARKER = "berth_simulated_cuda"
LIBRARIES = ("libcuda.so.1", "libnvidia-ml.so.1")


class MessageWriter:
    """Sends messages to the parent; `alone` once the parent is gone."""

    def __init__(self, fd: int) -> None:
        self._out = LineWriter(fd)
        self.alone = False

    def send(self, kind: str, **values: Any) -> None:
        try:
            self._out.send(kind, **values)
        except BrokenPipeError:
            self.alone = True


def simulated() -> bool:
    """Return whether a test double replaces the driver's libraries."""
    for name in LIBRARIES:
        try:
            if hasattr(ctypes.CDLL(name), MARKER):
                return True
        except OSError:
            continue
    return False


def read_use() -> dict[str, Any]:
    """Return the use of all GPUs from NVML; `problem` if it fails."""
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
    config, writer = json.loads(argv[1]), MessageWriter(int(argv[2]))
    writer.send("look", when="before", **read_use())
    if config["pids"]:
        _handle(writer, config)
    if config["goal"]:
        writer.send("look", when="after", **read_use())
    writer.send("end", nonce=config["nonce"], simulated=simulated())
    return 0


def _handle(writer: MessageWriter, config: dict[str, Any]) -> None:
    """Report the states of the processes; with a goal, move them there first."""
    until = time.monotonic() + float(config["within_s"])

    def stop() -> bool:
        # Without a parent a suspension would go unnoticed, while a resumption is still wanted.
        writer.send("beat")
        return time.monotonic() > until or (writer.alone and config["goal"] == TargetState.SUSPENDED)

    try:
        calls = CudaCalls(pairs=config["pairs"])
    except SuspendCallFailed as failed:
        writer.send("unable", name=failed.name)
        return
    if not config["goal"]:
        writer.send("states", states={str(pid): calls.state(pid) for pid in config["pids"]})
        return
    outcome = walk(
        calls,
        config["pids"],
        TargetState(config["goal"]),
        stop=stop,
        on_call=lambda call, pid: writer.send("step", call=call, pid=pid),
    )
    failure = outcome.trouble
    writer.send(
        "outcome",
        states={str(pid): state for pid, state in outcome.states.items()},
        trouble=[failure.call, failure.pid, failure.name] if failure else None,
    )


if __name__ == "__main__":
    code = main(sys.argv)
    sys.stderr.flush()
    # Skip the interpreter's shutdown: the driver's exit handlers can block on a lost device.
    os._exit(code)
