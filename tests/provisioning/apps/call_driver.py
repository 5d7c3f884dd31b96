"""Call a driver once in a separate process, for tests of races and sudden death.

`python call_driver.py SOCKET` forks such a process for each message on the inherited UNIX socket, since
importing the drivers takes 0.2 s. A message is the environment as JSON, with four file descriptors: standard
input, output and error, and one to which the exit status is written at the end, negative for a signal.

The process reads one line of JSON: `pool`, `op`, `spec`, `placement`, and `kill_at`. It prints `ready`, waits
for a line, makes the call, and prints one line of JSON: `state` or `error`, and the number of `steps` (calls
of Python and C functions). With `kill_at` the process kills itself (SIGKILL) at that step, so that a test can
try every point inside a driver's call, for any driver.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
import traceback

from provisioning import messages, registry
from provisioning.errors import ProvisioningError
from provisioning.types import Placement, PoolConfig, WorkspaceSpec


def call() -> None:
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
            # A child forked by the driver inherits this hook; only the caller itself must die.
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
            deleted = driver.delete_home(team=spec.team, owner=spec.owner)
            sys.setprofile(None)
            print(json.dumps({"state": "gone" if deleted else "more", "steps": steps}), flush=True)
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


def run(environment: dict[str, str]) -> None:
    """Make one call and end the process."""
    code = 1
    try:
        os.environ.clear()
        os.environ.update(environment)
        call()
        code = 0
    except BaseException:
        traceback.print_exc()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def fork(environment: dict[str, str], streams: list[int]) -> None:
    """Run one call in a grandchild process, and wait for it in the child."""
    if os.fork():
        return
    *standard, status = streams
    pid = os.fork()
    if not pid:
        for number, stream in enumerate(standard):
            os.dup2(stream, number)
        os.closerange(3, os.sysconf("SC_OPEN_MAX"))
        run(environment)
    for stream in standard:
        os.close(stream)
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    os.write(status, str(code).encode())
    os._exit(0)


def serve(requests: socket.socket) -> None:
    for name in registry.DRIVERS:
        registry.driver_class(name)
    children = 0
    while True:
        message, streams, _, _ = socket.recv_fds(requests, 1 << 20, 4)
        if not message:
            break
        children += 1
        fork(json.loads(message), streams)
        for stream in streams:
            os.close(stream)
    # Their processor time is then counted for this process.
    for _ in range(children):
        os.wait()


if __name__ == "__main__":
    serve(socket.socket(fileno=int(sys.argv[1])))
