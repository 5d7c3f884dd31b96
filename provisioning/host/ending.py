"""Stops all workspaces of this node gracefully, without the control plane; homes are kept.

`python -m provisioning.host.ending` runs with the worker's settings in its environment and prints how many
are left. This keeps driver code out of the process that supervises the node's services.
"""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
import time
from collections.abc import Mapping

from provisioning.errors import ProvisioningError
from provisioning.node.local_settings import LOCAL, driver_for
from provisioning.types import ObservedState, PoolConfig

log = logging.getLogger(__name__)
LIMIT_S = 120.0
POLL_INTERVAL_S = 0.5
ENDED_STATES = frozenset({ObservedState.STOPPED, ObservedState.ABSENT, ObservedState.FAILED})


def end_all(environ: Mapping[str, str], *, limit_s: float = LIMIT_S) -> int:
    """Stop workspaces by a worker's variables; return how many are left after `limit_s`. Raises `OSError`."""
    process = subprocess.run(
        [sys.executable, "-P", "-m", "provisioning.host.ending", str(limit_s)],
        env=dict(environ),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        timeout=limit_s + 30,
        check=False,
    )
    try:
        return int(json.loads(process.stdout)["left"])
    except (ValueError, KeyError, TypeError) as error:
        raise OSError(f"the workspaces could not be stopped (exit code {process.returncode})") from error


def run(pool: PoolConfig, *, limit_s: float) -> int:
    """Ask each workspace to end within the time of its specification; return how many are left."""
    driver = driver_for(pool)
    until = time.monotonic() + limit_s
    while True:
        remaining = 0
        for observation in driver.list_owned():
            if observation.state in ENDED_STATES:
                continue
            try:
                remaining += driver.ensure_stopped(observation.ref).state not in ENDED_STATES
            except ProvisioningError as error:
                log.warning("%s keeps running for now: %s", observation.ref.external_name, error.message)
                remaining += 1
        if not remaining or time.monotonic() > until:
            return remaining
        time.sleep(POLL_INTERVAL_S)


def main() -> int:
    """Run the program; its only argument is the time limit in seconds."""
    pool = PoolConfig(slug=os.environ.get("BERTH_NODE_POOL", ""), driver=LOCAL)
    print(json.dumps({"left": run(pool, limit_s=float(sys.argv[1]))}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
