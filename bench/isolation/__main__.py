"""Workspaces with a network of their own beside workspaces that share the machine's, by the local driver.

    python -m bench.isolation --json isolation.json [--count 50] [--rounds 3] [--idle-s 30]

`start`: from `ensure_started` until it runs, one after the other, in alternating rounds. `memory`:
proportional set size of each part. `idle`: CPU of what isolation adds, while nobody asks. `way`: an answer
of two bytes, and a gigabyte, through a bare Traefik to the app's port, and through Traefik and the node's
gateway to its socket.
"""

from __future__ import annotations

import argparse
import contextlib
import http.client
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from bench.start_latency.contestants import free_port
from portal.embedded import authority
from portal.embedded.preflight import find_binaries
from provisioning.drivers.local import driver as local
from provisioning.drivers.local import network, processes
from provisioning.drivers.local.driver import LocalDriver
from provisioning.drivers.local.isolation import SandboxProbe, probe
from provisioning.endpoints import PORTAL_SOCKET, SOCKET_HEADER, socket_name
from provisioning.node.gateway import NODE_NAME, caddy_config
from provisioning.types import (
    AgentSpec,
    AppSpec,
    NodePlacement,
    Observation,
    ObservedState,
    Placement,
    PoolConfig,
    ResourceRequest,
    WorkspaceRef,
    WorkspaceSpec,
)

APP = """
import asyncio, sys
SMALL = b"HTTP/1.1 200 OK\\r\\nContent-Length: 2\\r\\n\\r\\nok"
LARGE = b"HTTP/1.1 200 OK\\r\\nContent-Length: 1073741824\\r\\n\\r\\n"
CHUNK = b"x" * (1 << 20)
async def serve(reader, writer):
    try:
        while True:
            head = await reader.readuntil(b"\\r\\n\\r\\n")
            if not head.startswith(b"GET /large "):
                writer.write(SMALL)
                continue
            writer.write(LARGE)
            for _ in range(1024):
                writer.write(CHUNK)
                await writer.drain()
    except (asyncio.IncompleteReadError, ConnectionError):
        writer.close()
async def main():
    server = await asyncio.start_server(serve, "127.0.0.1", int(sys.argv[1]))
    await server.serve_forever()
asyncio.run(main())
"""
TOLD = Callable[[str], None]


class Node:
    """A local driver in a folder of its own, with or without networks for its workspaces."""

    def __init__(self, folder: Path, *, own: bool) -> None:
        self.home = folder
        config = {"home": str(folder), "environment": str(folder / "none"), "spares": 0}
        self.driver = LocalDriver(PoolConfig("bench", "local", config))
        self.found: SandboxProbe = probe() if own else replace(probe(), network=None, network_reason="")
        self.refs: list[WorkspaceRef] = []

    def start(self) -> tuple[Observation, float]:
        """A workspace that runs, and the milliseconds that it took."""
        ref = WorkspaceRef(str(uuid.uuid4()), 1)
        spec = WorkspaceSpec(
            ref=ref,
            name="bench",
            owner="ada",
            team="bench",
            template="bench",
            app=AppSpec(argv=("python3", "-c", APP, "{port}"), start_timeout_s=60),
            resources=ResourceRequest(cpu_milli=1000, memory_mib=256),
            agent=AgentSpec("http://127.0.0.1:9", "agent"),
            app_token="app",
        )
        self.refs.append(ref)
        local.probe = lambda: self.found  # type: ignore[attr-defined]  # what this machine is said to have
        begun = time.perf_counter()
        self.driver.ensure_started(spec, Placement((NodePlacement(self.driver.node_name),)))
        while True:
            seen = self.driver.observe(ref)
            if seen.state is ObservedState.RUNNING:
                return seen, (time.perf_counter() - begun) * 1000
            if seen.state is not ObservedState.STARTING:
                raise SystemExit(f"bench.isolation: {seen.message} {seen.log_tail}")
            time.sleep(0.002)

    def parts(self, ref: WorkspaceRef) -> dict[str, list[int]]:
        """The processes of a workspace by what they are."""
        folder = self.driver._dir(ref)
        found: dict[str, list[int]] = {"pasta": [pid for pid, _ in network.ways_out(folder.path)]}
        owned = processes.scan(self.driver.instance, folder.name)
        agent = next(one.pid for one in owned if one.is_agent)
        for one in owned:
            words = Path(f"/proc/{one.pid}/cmdline").read_bytes()
            if one.pid == agent:
                kind = "agent"
            elif b"agent.py" in words and b"bwrap" not in words:
                kind = "relay"
            else:
                kind = "bubblewrap" if b"bwrap" in words.split(b"\0")[0] else "app"
            found.setdefault(kind, []).append(one.pid)
        return found

    def close(self) -> None:
        for ref in self.refs:
            while self.driver.ensure_deleted(ref, grace_s=0).state is not ObservedState.ABSENT:
                time.sleep(0.01)


def pss_mib(pids: list[int]) -> float:
    total = 0
    for pid in pids:
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                total += int(line.split()[1])
    return total / 1024


def cpu_s(pids: list[int]) -> float:
    ticks = 0
    for pid in pids:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].split()
        ticks += int(fields[11]) + int(fields[12])
    return ticks / os.sysconf("SC_CLK_TCK")


@contextlib.contextmanager
def server(argv: list[str], folder: Path, port: int) -> Iterator[int]:
    """A program that listens on `port`; its PID."""
    with (folder / f"server-{port}.log").open("w") as log:
        process = subprocess.Popen(argv, cwd=folder, stdout=log, stderr=log)
    try:
        deadline = time.monotonic() + 20
        while True:
            with (
                contextlib.suppress(OSError),
                contextlib.closing(http.client.HTTPConnection("127.0.0.1", port)) as one,
            ):
                one.connect()
                break
            if time.monotonic() > deadline:
                raise SystemExit(f"bench.isolation: {argv[0]} does not listen, see {folder}")
            time.sleep(0.02)
        yield process.pid
    finally:
        process.terminate()
        process.wait(20)


def traefik(
    folder: Path, name: str, upstream: dict[str, Any], transports: dict[str, Any]
) -> tuple[list[str], int]:
    """Its command and port, in front of one upstream."""
    port = free_port()
    middlewares = {"name": {"headers": {"customRequestHeaders": upstream.pop("headers", {"X-Bench": "1"})}}}
    service = {"loadBalancer": upstream}
    router = {"rule": "PathPrefix(`/`)", "service": "app", "middlewares": ["name"]}
    http_part = {
        "routers": {"all": router},
        "services": {"app": service},
        "middlewares": middlewares,
        **transports,
    }
    (folder / f"{name}-routes.yml").write_text(json.dumps({"http": http_part}))
    static = {
        "global": {"checkNewVersion": False, "sendAnonymousUsage": False},
        "entryPoints": {"web": {"address": f"127.0.0.1:{port}"}},
        "providers": {"file": {"filename": str(folder / f"{name}-routes.yml")}},
    }
    (folder / f"{name}.yml").write_text(json.dumps(static))
    return [str(find_binaries().traefik), f"--configFile={folder / f'{name}.yml'}"], port


def small_ms(port: int, count: int) -> list[float]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    taken = []
    for _ in range(count):
        begun = time.perf_counter()
        connection.request("GET", "/")
        connection.getresponse().read()
        taken.append((time.perf_counter() - begun) * 1000)
    connection.close()
    return taken


def large_mib_s(port: int) -> float:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=120)
    begun = time.perf_counter()
    connection.request("GET", "/large")
    answer = connection.getresponse()
    while answer.readinto(bytearray(1 << 20)):  # type: ignore[arg-type]
        pass
    connection.close()
    return 1024 / (time.perf_counter() - begun)


def ways(folder: Path, shared: Node, own: Node, rounds: int) -> dict[str, Any]:
    """Both ways to an app, alternating."""
    plain, _ = shared.start()
    apart, _ = own.start()
    state = shared.driver._dir(plain.ref).agent_state()
    assert state is not None
    issued = authority.ensure(folder / "tls")
    gateway_port = free_port()
    base = own.home / "local"
    (base / PORTAL_SOCKET).parent.mkdir(parents=True, exist_ok=True)
    config = caddy_config(
        listen=f"127.0.0.1:{gateway_port}",
        certificates=issued.node,
        portal_url="http://127.0.0.1:9",
        storage=folder / "caddy",
    )
    (folder / "gateway.json").write_text(config)
    gateway = [str(find_binaries().caddy), "run", "--config", str(folder / "gateway.json")]
    bare = traefik(folder, "bare", {"servers": [{"url": f"http://127.0.0.1:{state.port}"}]}, {})
    transport = {
        "serverName": NODE_NAME,
        "rootCAs": [str(issued.front.authority)],
        "certificates": [{"certFile": str(issued.front.certificate), "keyFile": str(issued.front.key)}],
        "disableHTTP2": True,
    }
    whole = traefik(
        folder,
        "whole",
        {
            "servers": [{"url": f"https://127.0.0.1:{gateway_port}"}],
            "serversTransport": "nodes",
            "headers": {SOCKET_HEADER: socket_name(apart.endpoint)},
        },
        {"serversTransports": {"nodes": transport}},
    )
    small: dict[str, list[float]] = {"bare": [], "whole": []}
    large: dict[str, list[float]] = {"bare": [], "whole": []}
    with contextlib.ExitStack() as up:
        caddy_pid = up.enter_context(server(gateway, base, gateway_port))
        for command, port in (bare, whole):
            up.enter_context(server(command, folder, port))
        for _ in range(rounds):
            for name, (_, port) in (("bare", bare), ("whole", whole)):
                small_ms(port, 200)
                small[name] += small_ms(port, 2000)
                large[name].append(large_mib_s(port))
        return {
            "small_median_ms": {name: round(statistics.median(taken), 3) for name, taken in small.items()},
            "small_p99_ms": {
                name: round(sorted(taken)[len(taken) * 99 // 100], 3) for name, taken in small.items()
            },
            "large_mib_s": {name: round(statistics.median(taken)) for name, taken in large.items()},
            "gateway_mib": round(pss_mib([caddy_pid]), 1),
        }


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.isolation", description=__doc__)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--count", type=int, default=50)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--idle-s", type=float, default=30.0)
    options = parser.parse_args()
    if probe().network is None:
        print(f"bench.isolation: {probe().warning}", file=sys.stderr)
        return 2
    report: dict[str, Any] = {}
    with tempfile.TemporaryDirectory(prefix="berth-bench-") as folder:
        shared, own = Node(Path(folder, "shared"), own=False), Node(Path(folder, "own"), own=True)
        try:
            report["way"] = ways(Path(folder), shared, own, options.rounds)
            print("way", report["way"], flush=True)
            taken: dict[str, list[float]] = {"shared": [], "own": []}
            for _ in range(options.count):
                for name, node in (("shared", shared), ("own", own)):
                    taken[name].append(node.start()[1])
                    if name == "shared":
                        node.close()
                        node.refs.clear()
            report["start_ms"] = {name: round(statistics.median(each), 1) for name, each in taken.items()}
            print("start_ms", report["start_ms"], flush=True)
            parts: dict[str, list[int]] = {}
            for ref in own.refs:
                for kind, pids in own.parts(ref).items():
                    parts.setdefault(kind, []).extend(pids)
            report["memory_mib"] = {
                kind: round(pss_mib(pids) / len(own.refs), 1) for kind, pids in parts.items()
            }
            added = parts["pasta"] + parts["relay"]
            before = cpu_s(added)
            time.sleep(options.idle_s)
            report["idle_cpu_percent"] = round(
                (cpu_s(added) - before) / options.idle_s * 100 / len(own.refs), 4
            )
            report["workspaces"] = len(own.refs)
            print(json.dumps(report), flush=True)
        finally:
            shared.close()
            own.close()
    if options.json:
        options.json.write_text(json.dumps(report, indent=2) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
