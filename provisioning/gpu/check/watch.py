"""The watcher: samples NVML in a separate process, ten times per second, while its standard input is open.

Writes JSON lines to the given descriptor: `ready` (facts and a snapshot, XID events already registered),
`sample`, `xid`, `lost`, `unavailable`, and at the end `after` with the nonce.
"""

from __future__ import annotations

import importlib
import json
import os
import select
import sys
import time
from typing import Any

from provisioning.gpu.check.nvml_read import DeviceLost, DeviceReader, NoDevice
from provisioning.gpu.check.wire import LineWriter, die_with_parent

INTERVAL_S = 0.1


def watch(out: LineWriter, config: dict[str, Any], stop_fd: int) -> None:
    nonce = config["nonce"]
    try:
        reader = DeviceReader(config["uuid"])
        events = reader.watch_xids()
        facts = {**reader.facts(tuple(config.get("peers", ()))), **reader.machine_facts()}
        before = {**reader.snapshot(), **reader.board(), **reader.display()}
        before["unavailable"] = reader.unavailable
        out.send("ready", nonce=nonce, facts=facts, before=before, xid_events=events is not None)
        while True:
            started = time.monotonic()
            sample = reader.sample()
            sample["processes"] = reader.processes()
            out.send("sample", **sample)
            while events is not None and (xid := reader.next_xid(events, 0)) is not None:
                out.send("xid", xid=xid)
            pause_s = max(0.0, INTERVAL_S - (time.monotonic() - started))
            if select.select([stop_fd], [], [], pause_s)[0]:
                break
        while events is not None and (xid := reader.next_xid(events, 50)) is not None:
            out.send("xid", xid=xid)
        out.send("after", nonce=nonce, after={**reader.snapshot(), **reader.display()})
    except NoDevice as error:
        out.send("unavailable", nonce=nonce, text=str(error), library=error.library, fix=error.fix)
    except DeviceLost:
        out.send("lost", nonce=nonce)


def main(argv: list[str]) -> int:
    config = json.loads(argv[1])
    die_with_parent()
    out = LineWriter(int(argv[2]))
    if config.get("nvml"):
        importlib.import_module(config["nvml"]).install()
    watch(out, config, sys.stdin.fileno())
    return 0


if __name__ == "__main__":
    try:
        code = main(sys.argv)
    except BrokenPipeError:
        code = 1
    # Skip the interpreter's shutdown: the driver's exit handlers can block on a lost device.
    os._exit(code)
