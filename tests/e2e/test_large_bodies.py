"""Memory of the front door and of web before, during and after 24 large bodies at once (ADR 0110)."""

from __future__ import annotations

import contextlib
import json
import socket
import time
from pathlib import Path

import pytest

from portal.embedded.proxy import MAX_BODY_BYTES, MAX_LARGE_BODIES
from portal.embedded.views import LARGE_BODIES
from tests.instance import Berth, eventually

pytestmark = [
    pytest.mark.engine,
    pytest.mark.xdist_group("e2e"),
    pytest.mark.thorough("waits for memory; tests/security/test_slow_bodies.py has the limits"),
]
MIB = 1 << 20
ANSWER_S = 60
RETURN_S = 480
"""Caddy keeps used buffers for 2 garbage collections. Without traffic, Go runs one every 2 minutes."""
KEPT_MIB = {"front-door": 64, "web": 160}
"""What they may keep of 200 MiB and 900 MiB: fragments that the next bodies use."""
DIGESTIBLE = 2_400_000
"""Below the largest body that web parses."""


def process_tree(pid: int) -> list[int]:
    """The process and its descendants."""
    found = [pid]
    for each in found:
        with contextlib.suppress(OSError):
            children = Path(f"/proc/{each}/task/{each}/children").read_text().split()
            found += map(int, children)
    return found


def memory_mib(berth: Berth, service: str) -> float:
    """Private memory of a service's processes, plus their proportional shared memory."""
    total = 0
    for pid in process_tree(berth.services()[service]["pid"]):
        with contextlib.suppress(OSError):
            lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
            total += next(int(line.split()[1]) for line in lines if line.startswith("Pss:"))
    return total / 1024


def hold_body(berth: Berth, token: str, body: bytes) -> socket.socket:
    """A connection whose body lacks its last byte."""
    sock = socket.create_connection(("127.0.0.1", berth.port), timeout=ANSWER_S)
    head = (
        "POST /api/v1/workspaces HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"
        f"Authorization: Bearer {token}\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(body)}\r\n\r\n"
    )
    sock.sendall(head.encode() + body[:-1])
    return sock


def status_of(answer: bytes) -> int:
    return int(answer.split(b" ", 2)[1]) if answer.startswith(b"HTTP/") else 0


def read(sock: socket.socket) -> bytes:
    answer = b""
    with contextlib.suppress(OSError):
        while part := sock.recv(65536):
            answer += part
    return answer


def large(size: int) -> bytes:
    """JSON of `size` bytes with many small values, which takes far more memory once parsed."""
    values = [{"n": number} for number in range(size // 16)]
    body = json.dumps({"template": values}).encode()[: size - 3]
    return body[: body.rindex(b",")].ljust(size - 2) + b"]}"


def send(berth: Berth, tokens: list[str], body: bytes) -> dict[str, float]:
    """Send as many bodies at once as the front door accepts; return the memory meanwhile."""
    # The limit per user and window.
    time.sleep(LARGE_BODIES.window_s)
    with contextlib.ExitStack() as stack:
        sockets = [
            stack.enter_context(hold_body(berth, tokens[number % len(tokens)], body))
            for number in range(MAX_LARGE_BODIES)
        ]
        time.sleep(2)
        during = memory(berth)
        for sock in sockets:
            sock.sendall(body[-1:])
        statuses = [status_of(read(sock)) for sock in sockets]
    assert set(statuses) <= {400, 413}, statuses
    return during


def memory(berth: Berth) -> dict[str, float]:
    return {name: memory_mib(berth, name) for name in KEPT_MIB}


def shown(found: dict[str, float]) -> str:
    return ", ".join(f"{name} {mib:.0f} MiB" for name, mib in found.items())


def test_memory_returns_after_large_bodies(shared_berth: Berth) -> None:
    tokens = [shared_berth.tokens["ada"], shared_berth.tokens["ben"]]
    tokens.append(shared_berth.manage("create_token", "admin", "--name", "large bodies"))
    before = memory(shared_berth)
    print(f"\nbefore {shown(before)}")
    for size in (MAX_BODY_BYTES, DIGESTIBLE):
        during = send(shared_berth, tokens, large(size))
        print(f"{size} bytes: {shown(during)}; answered {shown(memory(shared_berth))}")
    began = time.monotonic()

    def returned() -> bool:
        now = memory(shared_berth)
        return all(now[name] <= before[name] + KEPT_MIB[name] for name in KEPT_MIB)

    try:
        eventually(returned, limit_s=RETURN_S, what=lambda: f"memory returns: {shown(memory(shared_berth))}")
    finally:
        print(f"after {time.monotonic() - began:.0f} s {shown(memory(shared_berth))}")
