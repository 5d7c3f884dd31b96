"""A scope of the user's systemd in which the node worker can create control groups.

The shell of an ordinary user is in a group that belongs to root. The user's systemd can delegate groups;
`systemd-run --user --scope` moves the calling process into one of them.
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
    """Return the prefix of the node worker's command; empty if it is not needed or does not work.

    Not needed for root, with a delegated group, and with control groups v1.
    """
    program = shutil.which("systemd-run", path=environ.get("PATH"))
    if (
        os.geteuid() == 0
        or program is None
        or not environ.get("XDG_RUNTIME_DIR")
        or not (root / "cgroup.controllers").exists()
        or any(
            parent.vacate and delegation.delegated(parent.group) for parent in delegation.parent_groups(root)
        )
    ):
        return ()
    argv = (program, "--user", "--scope", "--quiet", "--collect", "--property=Delegate=yes", "--")
    try:
        process = subprocess.run(
            [*argv, "true"], env=dict(environ), capture_output=True, timeout=TRIAL_TIMEOUT_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return ()
    return argv if process.returncode == 0 else ()
