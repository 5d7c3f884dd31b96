"""Runs a program once as an unprivileged service, to test whether it works."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from provisioning.service.supervisor import LAUNCHER

LIMIT_S = 20.0


def failure_of(
    argv: Sequence[str],
    *,
    confinement: str,
    environ: Mapping[str, str],
    folder: Path,
    launcher: Path = LAUNCHER,
) -> str:
    """Return the program's last output line if it fails, otherwise an empty string. Raises `OSError`."""
    try:
        process = subprocess.run(
            [
                sys.executable, "-I", "-S", str(launcher), str(os.getpid()), str(int(signal.SIGKILL)), "-",
                confinement, *argv,
            ],
            cwd=folder,
            env=environ,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            umask=0o077,
            timeout=LIMIT_S,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return f"the test run took longer than {LIMIT_S:.0f} s"
    if not process.returncode:
        return ""
    lines = process.stderr.strip().splitlines() or [f"the test run ended with exit code {process.returncode}"]
    return lines[-1]
