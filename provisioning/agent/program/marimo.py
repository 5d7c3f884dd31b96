"""Notebooks as reported by marimo, and activity of their kernels' processes."""

# ruff: noqa: UP031

from __future__ import annotations

from .http_json import http_json
from .processes import command_line, read_text

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from .processes import Table

MAX_SESSIONS = 50  # maximum of notebooks to query


def marimo_activity(port: int, token: str) -> dict[str, Any]:
    """Return open notebooks in marimo, and how many of them run a cell; None if unavailable."""
    unknown: dict[str, Any] = {"kernels": None}
    base = "http://127.0.0.1:%d/api/" % port
    try:
        status, sessions = http_json("GET", base + "sessions", token, None, 5.0)
        if status != 200 or not isinstance(sessions, dict) or len(sessions) > MAX_SESSIONS:
            return unknown
        busy = 0
        for session in sessions:
            header = {"Marimo-Session-Id": session}
            status, answer = http_json("GET", base + "kernel/status", token, None, 5.0, header)
            state = answer.get("state") if status == 200 and isinstance(answer, dict) else None
            if state not in ("running", "idle", "stopped"):
                return unknown
            busy += state == "running"
    except OSError:
        return unknown
    return {"kernels": {"count": len(sessions), "busy": busy, "last_activity": None}}


def wakeups_of(pids: list[int], table: Table, app: int) -> dict[int, int]:
    """Return the number of voluntary context switches of each marimo kernel's main thread: {pid: number}.

    The number changes with each cell that runs, however short, and only then.
    """
    switches = {}
    for pid in pids:
        if table[pid][0] == app and b"spawn_main" in command_line(pid):
            status = read_text("/proc/%d/status" % pid) or ""
            number = status.partition("\nvoluntary_ctxt_switches:")[2].partition("\n")[0].strip()
            switches[pid] = int(number) if number else -1
    return switches
