"""Generate one load: wrk with keep-alive connections to one address, or one large download."""

from __future__ import annotations

import http.client
import re
import shutil
import subprocess
import sys
import time
from dataclasses import dataclass
from urllib.parse import urlsplit

CONNECTIONS = 8
_UNITS_MS = {"us": 0.001, "ms": 1.0, "s": 1000.0, "m": 60_000.0}


@dataclass(frozen=True, slots=True)
class Load:
    """Result of one run of wrk. `bad` counts answers other than 2xx and 3xx, and broken connections."""

    per_s: float
    p50_ms: float
    p99_ms: float
    bad: int


def find_wrk() -> str:
    path = shutil.which("wrk")
    if path is None:
        sys.exit("wrk is not installed (apt-get install wrk).")
    return path


def run(url: str, headers: dict[str, str], seconds: int) -> Load:
    """Run eight connections for `seconds`. Raises `RuntimeError` if wrk prints no result."""
    options = [part for name, value in headers.items() for part in ("-H", f"{name}: {value}")]
    process = subprocess.run(
        [find_wrk(), "-t1", f"-c{CONNECTIONS}", f"-d{seconds}s", "--latency", *options, url],
        capture_output=True,
        text=True,
    )
    rate = re.search(r"Requests/sec:\s+([\d.]+)", process.stdout)
    if rate is None:
        raise RuntimeError(f"wrk: {process.stdout}{process.stderr}")
    bad = re.search(r"Non-2xx or 3xx responses: (\d+)", process.stdout)
    broken = re.search(
        r"Socket errors: connect (\d+), read (\d+), write (\d+), timeout (\d+)", process.stdout
    )
    return Load(
        per_s=float(rate[1]),
        p50_ms=_latency(process.stdout, "50%"),
        p99_ms=_latency(process.stdout, "99%"),
        bad=int(bad[1] if bad else 0) + sum(map(int, broken.groups() if broken else ())),
    )


def download(url: str, headers: dict[str, str], size_mib: int) -> Load:
    """Download one answer of `size_mib`; return MiB per second. Raises `RuntimeError` for another answer."""
    parts = urlsplit(url)
    room = bytearray(1 << 20)
    began = time.monotonic()
    connection = http.client.HTTPConnection(parts.netloc, timeout=60)
    try:
        connection.request("GET", parts.path, headers=headers)
        answer = connection.getresponse()
        first = time.monotonic() - began
        size = 0
        while part := answer.readinto(room):
            size += part
    finally:
        connection.close()
    if answer.status != 200 or size != size_mib << 20:
        raise RuntimeError(f"{url}: {answer.status} with {size} bytes")
    took = time.monotonic() - began
    return Load(per_s=size_mib / took, p50_ms=first * 1000, p99_ms=first * 1000, bad=0)


def _latency(text: str, share: str) -> float:
    match = re.search(rf"{share}\s+([\d.]+)(us|ms|s|m)\b", text)
    return float(match[1]) * _UNITS_MS[match[2]] if match else 0.0
