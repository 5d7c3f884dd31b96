"""Run the launcher, which starts a detached process, until that has executed its program."""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from provisioning.errors import StartFailed

LAUNCH_TIMEOUT_S = 10.0
HERE = Path(__file__).resolve()
LAUNCHER = HERE.with_name("launcher.py")
AGENT = HERE.parents[2] / "agent" / "program"
AGENT_PROGRAM = AGENT / "agent.py"
APPS = AGENT.with_name("apps")
JUPYTER = AGENT.with_name("jupyter")
"""Data on JUPYTER_PATH for JupyterLab: an extension that shows its workspace."""


def spawn(plan: Mapping[str, Any], operation_lock: int) -> None:
    """Run the launcher until the plan's program was executed. Raises `StartFailed` or `OSError`.

    The launcher holds `operation_lock` until then, even if this process is killed.
    """
    status_read, status_write = os.pipe()
    try:
        with subprocess.Popen(
            [sys.executable, "-I", "-S", str(LAUNCHER), str(status_write), str(operation_lock)],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            pass_fds=(status_write, operation_lock),
            env={},
        ) as process:
            os.close(status_write)
            status_write = -1
            _, stderr = process.communicate(json.dumps(plan).encode(), timeout=LAUNCH_TIMEOUT_S)
        if process.returncode != 0:
            raise StartFailed(
                "The workspace could not be launched. Ask an operator to check the node worker's log.",
                detail=stderr.decode("utf-8", "replace")[-2000:],
            )
        report = _read_all(status_read)
    except subprocess.TimeoutExpired as error:
        raise StartFailed(
            "The workspace could not be launched in time. Try again.", detail=str(error)
        ) from error
    finally:
        os.close(status_read)
        if status_write >= 0:
            os.close(status_write)
    if report:
        answer = json.loads(report)
        if answer.get("errno"):
            raise OSError(answer["errno"], answer["error"])
        raise StartFailed(
            f"The workspace could not be launched: {answer['error']}. Try again.", detail=report
        )


def _read_all(descriptor: int) -> str:
    """Read until the other end closes, which happens when the program is executed."""
    deadline = time.monotonic() + LAUNCH_TIMEOUT_S
    parts: list[bytes] = []
    while True:
        ready, _, _ = select.select([descriptor], [], [], max(0.0, deadline - time.monotonic()))
        if not ready:
            raise StartFailed("The workspace could not be launched in time. Try again.")
        data = os.read(descriptor, 4096)
        if not data:
            return b"".join(parts).decode("utf-8", "replace")
        parts.append(data)
