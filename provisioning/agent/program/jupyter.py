"""Kernels and terminals as reported by Jupyter Server."""

# ruff: noqa: UP031

from __future__ import annotations

import calendar
import time

from .http_json import http_json

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

MAX_ITEMS = 10000  # kernels or terminals to count
MAX_STAMP = 40  # characters of a timestamp
TRANSITION_S = 120.0  # how long a kernel may start or restart without a message


def jupyter_activity(port: int, token: str) -> dict[str, Any]:
    """Return the kernels and terminals as reported by Jupyter Server; None for each that is unavailable."""
    result: dict[str, Any] = {"kernels": None, "terminals": None}
    for name, path in (("kernels", "/api/kernels"), ("terminals", "/api/terminals")):
        try:
            status, items = http_json("GET", "http://127.0.0.1:%d%s" % (port, path), token, None, 5.0)
        except OSError:
            continue
        if status != 200 or not isinstance(items, list):
            continue
        # The user's own program may answer on that port, so keep only bounded, valid values.
        items = [item for item in items[:MAX_ITEMS] if isinstance(item, dict)]
        summary: dict[str, Any] = {"count": len(items)}
        stamps = [item.get("last_activity") for item in items]
        stamps = [stamp for stamp in stamps if isinstance(stamp, str) and len(stamp) <= MAX_STAMP]
        summary["last_activity"] = max(stamps) if stamps else None
        if name == "kernels":
            now = time.time()
            summary["busy"] = sum(_is_busy(item, now) for item in items)
        result[name] = summary
    return result


def _is_busy(kernel: dict[str, Any], now: float) -> bool:
    """Return whether a kernel runs a cell, or changed to a state other than `idle` or `dead` recently.

    A kernel that restarts without a connected client stays `starting`: its messages are not read.
    """
    state = kernel.get("execution_state")
    if state == "busy":
        return True
    if state in ("idle", "dead"):
        return False
    return now - _seconds_of(kernel.get("last_activity")) < TRANSITION_S


def _seconds_of(stamp: object) -> float:
    """Return the UTC seconds of a timestamp such as `2026-01-02T03:04:05.678Z`, or 0."""
    if not isinstance(stamp, str) or len(stamp) > MAX_STAMP:
        return 0.0
    try:
        return float(calendar.timegm(time.strptime(stamp[:19], "%Y-%m-%dT%H:%M:%S")))
    except ValueError:
        return 0.0
