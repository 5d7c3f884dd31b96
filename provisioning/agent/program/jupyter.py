"""Kernels and terminals as reported by Jupyter Server."""

# ruff: noqa: UP031

from __future__ import annotations

from .http_json import http_json

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

MAX_ITEMS = 10000  # kernels or terminals to count
MAX_STAMP = 40  # characters of a timestamp


def jupyter_activity(port: int, token: str) -> dict[str, Any]:
    """Return kernels and terminals as reported by Jupyter Server; None for each that is unavailable."""
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
            summary["busy"] = sum(1 for item in items if item.get("execution_state") not in ("idle", "dead"))
        result[name] = summary
    return result
