"""Idle capacity of this machine, and pressure on it, over the same 5 minutes.

Both concern the whole machine. The kernel's `avg300` is the share of time with waiting tasks. Idle CPU and
free memory need at least two readings. Recent readings are kept in a small file, since inventories run in
different processes.
"""

from __future__ import annotations

import itertools
import json
import os
import re
import statistics
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import msgspec

WINDOW_S = 330.0
"""Covers at least 5 readings, at one per minute."""
MIN_WATCHED_S = 60.0
MIN_READINGS = 4
FILE = "headroom.json"
MAX_KEPT = 64
MAX_BYTES = 16_384
_AVERAGE = r"^{} .*\bavg300=([0-9]{{1,3}}(?:\.[0-9]+)?)\b"
_SOME = re.compile(_AVERAGE.format("some"), re.MULTILINE)
_FULL = re.compile(_AVERAGE.format("full"), re.MULTILINE)


class LoadReading(msgspec.Struct, frozen=True, array_like=True):
    """A reading: seconds since boot, CPU ticks (total, idle) since boot, number of runnable processes, and
    available memory in percent."""

    at_s: float
    ticks: int
    idle: int
    runnable: Annotated[int, msgspec.Meta(ge=0)]
    left: Annotated[float, msgspec.Meta(ge=0, le=100)]


_decode = msgspec.json.Decoder(list[LoadReading]).decode


def read_headroom(folder: Path, proc: Path = Path("/proc")) -> dict[str, Any]:
    """Return the recent figures, or only `watched_s` 0 if there are too few readings. Never raises."""
    try:
        now = read(proc, time.clock_gettime(time.CLOCK_BOOTTIME))
    except (OSError, ValueError, LookupError):
        return {"watched_s": 0}
    rows = [*_load(folder / FILE, now), now]
    _save(folder / FILE, rows)
    return summarize(rows, proc, os.cpu_count() or 1)


def read(proc: Path, at_s: float) -> LoadReading:
    """Read the current values. Raises `OSError`, `ValueError` or `LookupError` if they are unavailable."""
    stat = {
        fields[0]: fields[1:] for line in (proc / "stat").read_text().splitlines() if (fields := line.split())
    }
    memory = {
        name: int(value.split()[0])
        for line in (proc / "meminfo").read_text().splitlines()
        if (name := line.partition(":")[0]) in ("MemTotal", "MemAvailable")
        and (value := line.partition(":")[2])
    }
    # Waiting for disks counts as idle; guest time is already in the first columns.
    ticks = [int(column) for column in stat["cpu"][:8]]
    return LoadReading(
        at_s,
        sum(ticks),
        ticks[3] + ticks[4],
        max(0, int(stat["procs_running"][0]) - 1),  # without this process
        round(100 * memory["MemAvailable"] / memory["MemTotal"], 1),
    )


def summarize(rows: Sequence[LoadReading], proc: Path, cores: int) -> dict[str, Any]:
    """Return the figures of these readings, as stored in a node's `facts`."""
    first, last = rows[0], rows[-1]
    seconds, ticks = last.at_s - first.at_s, last.ticks - first.ticks
    if seconds < MIN_WATCHED_S or len(rows) < MIN_READINGS or ticks <= 0:
        return {"watched_s": 0}
    return {
        "watched_s": int(seconds),
        "cores": cores,
        "runnable": statistics.median(row.runnable for row in rows),
        "cpu_idle": round(min(100.0, max(0.0, 100 * (last.idle - first.idle) / ticks)), 1),
        "cpu_waited": _average(proc / "pressure" / "cpu", _SOME),
        "memory_left": min(100.0, max(row.left for row in rows)),
        "memory_stalled": _average(proc / "pressure" / "memory", _FULL),
    }


def _average(file: Path, pattern: re.Pattern[str]) -> float | None:
    try:
        match = pattern.search(file.read_text(errors="replace"))
    except OSError:
        return None
    return min(100.0, float(match[1])) if match else None


def _load(file: Path, now: LoadReading) -> list[LoadReading]:
    """Return recent readings, oldest first; empty if the machine was rebooted since."""
    try:
        rows = _decode(file.read_bytes()[:MAX_BYTES])
    except (OSError, msgspec.MsgspecError):
        return []
    recent = [row for row in rows if 0 < now.at_s - row.at_s <= WINDOW_S]
    rows = [*recent[-MAX_KEPT:], now]
    in_order = all(
        earlier.at_s < later.at_s and earlier.ticks <= later.ticks and earlier.idle <= later.idle
        for earlier, later in itertools.pairwise(rows)
    )
    return rows[:-1] if in_order else []


def _save(file: Path, rows: Sequence[LoadReading]) -> None:
    """Write atomically; if that fails, the next reading starts over."""
    temporary = file.with_name(f"{file.name}.{os.getpid()}")
    try:
        temporary.write_text(json.dumps([msgspec.to_builtins(row) for row in rows]))
        temporary.replace(file)
    except OSError:
        temporary.unlink(missing_ok=True)
