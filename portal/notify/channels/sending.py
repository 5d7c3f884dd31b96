"""Runs the `sender` process and reads its results."""

from __future__ import annotations

import json
import logging
import subprocess
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from django.conf import settings

log = logging.getLogger(__name__)
LIMIT_S = 25.0
"""Seconds after which the process is killed. Jobs without a result count as timed out."""


@dataclass(frozen=True, slots=True)
class Job:
    """A message to a URL. Without title and body, the URL is only checked."""

    id: int
    url: str
    title: str = ""
    body: str = ""


@dataclass(frozen=True, slots=True)
class SendOutcome:
    """Outcome of a job: an error code, or the service's response."""

    ok: bool
    error: str = ""
    status: int | None = None
    answer: str = ""
    service: str = ""


def send(jobs: Iterable[Job]) -> dict[int, SendOutcome]:
    """Send all messages. Returns an outcome for every job."""
    return _run(list(jobs), check=False)


def inspect_url(url: str) -> SendOutcome:
    """Check whether a URL belongs to a permitted service, and to which. Makes no connection."""
    return _run([Job(0, url)], check=True)[0]


def _run(jobs: list[Job], *, check: bool) -> dict[int, SendOutcome]:
    task = {
        "schemas": settings.BERTH_CHANNEL_SCHEMAS,
        "allowed": settings.BERTH_OUTGOING_ALLOW,
        "check": check,
        "jobs": [{"id": job.id, "url": job.url, "title": job.title, "body": job.body} for job in jobs],
    }
    environ = {"PATH": "/usr/bin:/bin", "LANG": "C.UTF-8", "HOME": "/nonexistent", "NO_PROXY": "*"}
    if settings.BERTH_OUTGOING_CA_FILE:
        environ["REQUESTS_CA_BUNDLE"] = settings.BERTH_OUTGOING_CA_FILE
    process = subprocess.Popen(
        [sys.executable, "-s", "-B", "-m", "portal.notify.channels.sender"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        cwd=settings.BASE_DIR,
        env=environ,
        start_new_session=True,
    )
    with process:
        try:
            output, _ = process.communicate(json.dumps(task).encode(), timeout=LIMIT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            output, _ = process.communicate()
        finally:
            if process.poll() is None:
                process.kill()
    if process.returncode > 0:
        log.error("channel sender process exited with %s", process.returncode)
    outcomes = {
        job.id: SendOutcome(ok=False, error="internal" if process.returncode > 0 else "timeout")
        for job in jobs
    }
    for line in output.decode("utf-8", "replace").splitlines(keepends=True):
        if not line.endswith("\n"):
            # Truncated line: the process was killed while it wrote.
            break
        result: dict[str, Any] = json.loads(line)
        outcomes[result["id"]] = SendOutcome(
            ok=result["ok"],
            error=result["error"],
            status=result.get("status"),
            answer=str(result.get("answer", "")).replace("\0", ""),
            service=result.get("service", ""),
        )
    return outcomes
