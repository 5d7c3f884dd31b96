"""Calls a driver once in a process of its own, for tests of races and of sudden death.

Reads one line of JSON: `pool`, `op`, `spec`, `placement`, and `kill_at`. Prints `ready`, waits for a
line, makes the call, and prints one line of JSON: `state` or `error`, and the number of `steps` (calls of
Python and C functions) that it took. With `kill_at` the process kills itself (SIGKILL) at that step, so
that every point inside a driver's call can be tried, whichever driver it is.
"""

from __future__ import annotations

import json
import os
import signal
import sys

from provisioning import messages, registry
from provisioning.errors import ProvisioningError
from provisioning.types import Placement, PoolConfig, WorkspaceSpec


def main() -> None:
    order = json.loads(sys.stdin.readline())
    driver = registry.driver_for(messages.load(order["pool"], PoolConfig))
    spec = messages.load(order["spec"], WorkspaceSpec)
    placement = messages.load(order["placement"], Placement)
    kill_at = order.get("kill_at") or 0
    own_pid = os.getpid()
    steps = 0

    def count(_frame: object, event: str, _arg: object) -> None:
        nonlocal steps
        if event in ("call", "c_call"):
            steps += 1
            # A child that the driver forks inherits this hook; only the caller itself is to die.
            if steps == kill_at and os.getpid() == own_pid:
                os.kill(own_pid, signal.SIGKILL)

    print("ready", flush=True)
    sys.stdin.readline()
    answer: dict[str, object] = {}
    sys.setprofile(count)
    try:
        if order["op"] == "start":
            observation = driver.ensure_started(spec, placement)
        elif order["op"] == "delete-home":
            gone = driver.delete_home(team=spec.team, owner=spec.owner)
            sys.setprofile(None)
            print(json.dumps({"state": "gone" if gone else "more", "steps": steps}), flush=True)
            return
        elif order["op"] == "stop":
            observation = driver.ensure_stopped(spec.ref)
        else:
            observation = driver.ensure_deleted(spec.ref)
        sys.setprofile(None)
        answer["state"] = observation.state
    except ProvisioningError as error:
        sys.setprofile(None)
        answer["error"] = error.code
    print(json.dumps(answer | {"steps": steps}), flush=True)


main()
