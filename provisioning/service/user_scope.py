"""A scope of the user's own systemd, in which the node worker may make control groups.

A shell of an ordinary user stands in a group that belongs to root. Its user's systemd has groups to give
away; `systemd-run --user --scope` moves into one of them the very process that asks.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path

from provisioning.drivers.local import delegation

TRIAL_TIMEOUT_S = 5


def prefix(environ: Mapping[str, str], *, root: Path = delegation.ROOT) -> tuple[str, ...]:
    """What to put before the node worker's command; empty where that is not needed or does not work.

    Not needed by root, by who has a delegated group already, and where the machine has version 1.
    """
    program = shutil.which("systemd-run", path=environ.get("PATH"))
    if (
        os.geteuid() == 0
        or program is None
        or not environ.get("XDG_RUNTIME_DIR")
        or not (root / "cgroup.controllers").exists()
        or any(place.vacate and delegation.delegated(place.group) for place in delegation.places(root))
    ):
        return ()
    argv = (program, "--user", "--scope", "--quiet", "--collect", "--property=Delegate=yes", "--")
    try:
        done = subprocess.run(
            [*argv, "true"], env=dict(environ), capture_output=True, timeout=TRIAL_TIMEOUT_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return ()
    return argv if done.returncode == 0 else ()
