"""A service that sets limits like the node's worker: `python -m tests.host.limited_worker FILE`.

Started like the node's services (in a scope of the user's systemd if needed), it creates control groups with
the worker's code, puts a process into one, and writes to FILE what it did. The process outlives it.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

from provisioning.drivers.local import cgroups
from provisioning.host.notify import notify
from provisioning.service import user_scope
from provisioning.types import LimitedResource

# The one controller that a machine with version 1 may leave to version 2.
cgroups.V2_CONTROLLERS = ("hugetlb",)
cgroups.LIMIT_FILES = dict.fromkeys(LimitedResource, ("hugetlb.2MB.max",))


def service(file: Path) -> None:
    argv = [
        *user_scope.prefix(os.environ),
        sys.executable,
        "-m",
        "tests.host.limited_worker",
        str(file),
        "worker",
    ]
    with subprocess.Popen(argv, stdout=subprocess.PIPE) as worker:
        assert worker.stdout is not None
        worker.stdout.readline()
        notify("READY=1")
        signal.signal(signal.SIGTERM, lambda *_: worker.terminate())
        worker.wait()


def worker(file: Path) -> None:
    host = cgroups.detect("of-a-test")
    groups = cgroups.create(host, f"ws-{os.getpid()}", cpu_milli=1000, memory_mib=64)
    held = subprocess.Popen(["sleep", "300"], stdout=subprocess.DEVNULL, start_new_session=True)
    for group in groups:
        (group / "cgroup.procs").write_text(str(held.pid))
    file.write_text(json.dumps({"holds": len(host.holds), "groups": [*map(str, groups)], "held": held.pid}))
    print("ready", flush=True)
    signal.pause()


if __name__ == "__main__":
    (worker if sys.argv[2:] else service)(Path(sys.argv[1]))
