"""A proxy on the loopback of a network namespace without any other route."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from provisioning import proxy_inside
from tests.instance import eventually

PORT = 808


def ticks(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].split()[19])


@pytest.fixture
def sandbox() -> Iterator[int]:
    """A process in its own user and network namespace, with loopback up."""
    argv = ["unshare", "-r", "-n", "sh", "-c", "ip link set lo up && echo up && exec sleep 120"]
    try:
        process = subprocess.Popen(argv, stdout=subprocess.PIPE, text=True)
    except FileNotFoundError:
        pytest.skip("unshare is not installed")
    assert process.stdout is not None
    if process.stdout.readline() != "up\n":
        process.wait(20)
        pytest.skip("no network namespace can be made here")
    yield process.pid
    process.kill()
    process.wait(20)
    process.stdout.close()


def lead_in(pid: int, folder: Path, **changes: object) -> subprocess.CompletedProcess[str]:
    plan = {
        "pid": pid, "start_ticks": ticks(pid), "port": PORT, "log": str(folder / "log"),
        "hosts": ["good.example"], "networks": [], **changes,
    }  # fmt: skip
    return subprocess.run(
        [sys.executable, "-I", "-S", proxy_inside.__file__, str(folder / "mark")],
        input=json.dumps(plan), capture_output=True, text=True, timeout=20, check=False,
    )  # fmt: skip


def ask(pid: int, text: str) -> bytes:
    """Send a request from inside. Returns the answer of the proxy."""
    call = (
        f"import socket; s = socket.create_connection(('127.0.0.1', {PORT}), 10); "
        f"s.sendall({text.encode()!r}); print(s.makefile('rb').readline().decode())"
    )
    argv = [
        "nsenter",
        f"--target={pid}",
        "--user",
        "--net",
        "--preserve-credentials",
        sys.executable,
        "-c",
        call,
    ]
    return subprocess.run(argv, capture_output=True, timeout=30, check=False).stdout


def proxies(folder: Path) -> list[int]:
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if os.fsencode(folder / "mark") in path.read_bytes().split(b"\0"):
                found.append(int(path.parent.name))
        except OSError:
            continue
    return found


def test_proxy_serves_in_the_namespace_and_ends_with_the_sandbox(sandbox: int, tmp_path: Path) -> None:
    done = lead_in(sandbox, tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert ask(sandbox, "CONNECT bad.example:443 HTTP/1.1\r\n\r\n").startswith(b"HTTP/1.1 403 Forbidden")
    assert (tmp_path / "log").read_text() == "refused: bad.example:443 is not on the list of allowed hosts\n"
    assert len(proxies(tmp_path)) == 1
    os.kill(sandbox, 9)
    eventually(lambda: not proxies(tmp_path) or None, limit_s=20, what="the proxy ends")


def test_second_proxy_and_proxy_for_another_process_are_refused(sandbox: int, tmp_path: Path) -> None:
    assert lead_in(sandbox, tmp_path, start_ticks=1).returncode != 0
    assert lead_in(sandbox, tmp_path).returncode == 0
    again = lead_in(sandbox, tmp_path)
    assert again.returncode != 0 and "in use" in again.stderr
    assert len(proxies(tmp_path)) == 1
