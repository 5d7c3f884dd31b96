"""Compare workspaces that have their own network with workspaces that share the machine's.

    python -m bench.isolation --json isolation.json [--count 50] [--rounds 3] [--idle-s 30]

Uses the local driver. `start`: from `ensure_started` until the app runs, one after the other in alternating
rounds. `memory`: proportional set size of each part. `idle`: CPU of the isolation's processes without
requests. `way`: an answer of two bytes, and one of a gigabyte, through a bare Traefik to the app's port,
through the front door to its socket, and through the front door with forward-auth by a small server with a
constant answer.
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
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from bench.api.proxies import traefik_program
from bench.start_latency.contestants import free_port
from portal.embedded import authority, proxy
from portal.embedded.preflight import find_binaries
from provisioning import node_gateway
from provisioning.drivers.local import driver as local
from provisioning.drivers.local import network, processes
from provisioning.drivers.local.driver import LocalDriver
from provisioning.drivers.local.isolation import SandboxProbe, probe
from provisioning.endpoints import PORTAL_SOCKET, socket_name
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
AUTH = """
import asyncio, sys
SOCKET = f"X-Berth-Socket: {sys.argv[2]}"
HEADERS = ("HTTP/1.1 200 OK", "Content-Length: 0", "Authorization: x", SOCKET, "", "")
SAID = "\\r\\n".join(HEADERS)
async def serve(reader, writer):
    try:
        while True:
            await reader.readuntil(b"\\r\\n\\r\\n")
            writer.write(SAID.encode())
    except (asyncio.IncompleteReadError, ConnectionError):
        writer.close()
async def main():
    server = await asyncio.start_server(serve, "127.0.0.1", int(sys.argv[1]))
    await server.serve_forever()
asyncio.run(main())
"""
HOST = "ws-" + "0" * 32 + ".localhost"


class Node:
    """A local driver in its own folder, with or without networks for its workspaces."""

    def __init__(self, folder: Path, *, own: bool) -> None:
        self.home = folder
        config = {"home": str(folder), "environment": str(folder / "none"), "spares": 0}
        self.driver = LocalDriver(PoolConfig("bench", "local", config))
        self.probe: SandboxProbe = probe() if own else replace(probe(), network=None, network_reason="")
        self.refs: list[WorkspaceRef] = []

    def start(self) -> tuple[Observation, float]:
        """Start a workspace; return it with the milliseconds until it runs."""
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
        local.probe = lambda: self.probe  # type: ignore[attr-defined]  # what this machine is said to have
        begun = time.perf_counter()
        self.driver.ensure_started(spec, Placement((NodePlacement(self.driver.node_name),)))
        while True:
            observation = self.driver.observe(ref)
            if observation.state is ObservedState.RUNNING:
                return observation, (time.perf_counter() - begun) * 1000
            if observation.state is not ObservedState.STARTING:
                raise SystemExit(f"bench.isolation: {observation.message} {observation.log_tail}")
            time.sleep(0.002)

    def parts(self, ref: WorkspaceRef) -> dict[str, list[int]]:
        """Return the processes of a workspace by their role."""
        folder = self.driver._dir(ref)
        pids_by_kind: dict[str, list[int]] = {
            "pasta": [pid for pid, _ in network.egress_processes(folder.path)]
        }
        owned = processes.scan(self.driver.instance, folder.name)
        agent = next(process.pid for process in owned if process.is_agent)
        for process in owned:
            command_line = Path(f"/proc/{process.pid}/cmdline").read_bytes()
            if process.pid == agent:
                kind = "agent"
            elif b"agent.py" in command_line and b"bwrap" not in command_line:
                kind = "relay"
            else:
                kind = "bubblewrap" if b"bwrap" in command_line.split(b"\0")[0] else "app"
            pids_by_kind.setdefault(kind, []).append(process.pid)
        return pids_by_kind

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
    """Start a program that listens on `port`; return its PID."""
    with (folder / f"server-{port}.log").open("w") as log:
        process = subprocess.Popen(argv, cwd=folder, stdout=log, stderr=log)
    try:
        deadline = time.monotonic() + 20
        while True:
            with (
                contextlib.suppress(OSError),
                contextlib.closing(http.client.HTTPConnection("127.0.0.1", port)) as stream,
            ):
                stream.connect()
                break
            if time.monotonic() > deadline:
                raise SystemExit(f"bench.isolation: {argv[0]} does not listen, see {folder}")
            time.sleep(0.02)
        yield process.pid
    finally:
        process.terminate()
        process.wait(20)


def traefik(folder: Path, upstream: str) -> tuple[list[str], int]:
    """Return the command and port of a bare Traefik in front of one upstream."""
    port = free_port()
    routes, static = folder / "bare-routes.yml", folder / "bare.yml"
    services = {"app": {"loadBalancer": {"servers": [{"url": upstream}]}}}
    routers = {"all": {"rule": "PathPrefix(`/`)", "service": "app"}}
    routes.write_text(json.dumps({"http": {"routers": routers, "services": services}}))
    static.write_text(
        json.dumps(
            {
                "global": {"checkNewVersion": False, "sendAnonymousUsage": False},
                "entryPoints": {"web": {"address": f"127.0.0.1:{port}"}},
                "providers": {"file": {"filename": str(routes)}},
            }
        )
    )
    return [str(traefik_program()), f"--configFile={static}"], port


def front_door(folder: Path, base: Path, auth_port: int, name: str) -> tuple[list[str], int]:
    """Return the command and port of an instance's front door; without `auth_port`, without forward-auth."""
    port = free_port()
    (base / PORTAL_SOCKET).parent.mkdir(parents=True, exist_ok=True)
    nowhere = "127.0.0.1:9"
    config = json.loads(
        proxy.config(
            listen=f"127.0.0.1:{port}",
            places=proxy.Upstreams(nowhere, f"127.0.0.1:{auth_port or 9}", f"http://{nowhere}"),
            domain="localhost",
            secret="bench" * 4,
            certificates=authority.ensure(folder / "tls").front,
            storage=folder / f"caddy-{port}",
        )
    )
    servers = config["apps"]["http"]["servers"]
    del servers["agents"]
    if not auth_port:
        workspace, _, generation = name.partition(".")
        upstreams = [{"dial": f"unix/{workspace}/app.{generation}.sock"}]
        servers["front-door"]["routes"] = [{"handle": [{**node_gateway.to_socket(), "upstreams": upstreams}]}]
    path = folder / f"front-door-{port}.json"
    path.write_text(json.dumps(config))
    return [str(find_binaries().caddy), "run", "--config", str(path)], port


def small_ms(port: int, count: int) -> list[float]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    durations = []
    for _ in range(count):
        begun = time.perf_counter()
        connection.request("GET", "/", headers={"Host": HOST})
        connection.getresponse().read()
        durations.append((time.perf_counter() - begun) * 1000)
    connection.close()
    return durations


def large_mib_s(port: int) -> float:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=120)
    begun = time.perf_counter()
    connection.request("GET", "/large", headers={"Host": HOST})
    answer = connection.getresponse()
    while answer.readinto(bytearray(1 << 20)):  # type: ignore[arg-type]
        pass
    connection.close()
    return 1024 / (time.perf_counter() - begun)


def measure_routes(folder: Path, shared: Node, own: Node, rounds: int) -> dict[str, Any]:
    """Measure both routes to an app, alternating."""
    plain, _ = shared.start()
    apart, _ = own.start()
    state = shared.driver._dir(plain.ref).agent_state()
    assert state is not None
    base = own.home / "local"
    name = socket_name(apart.endpoint)
    auth_port = free_port()
    servers: dict[str, tuple[list[str], int]] = {
        "bare Traefik": traefik(folder, f"http://127.0.0.1:{state.port}"),
        "socket": front_door(folder, base, 0, name),
        "front door": front_door(folder, base, auth_port, name),
    }
    small: dict[str, list[float]] = {route: [] for route in servers}
    large: dict[str, list[float]] = {route: [] for route in servers}
    pids: dict[str, int] = {}
    with contextlib.ExitStack() as up:
        up.enter_context(server([sys.executable, "-c", AUTH, str(auth_port), name], folder, auth_port))
        for route, (command, port) in servers.items():
            pids[route] = up.enter_context(server(command, folder if route == "bare Traefik" else base, port))
        for _ in range(rounds):
            for route, (_, port) in servers.items():
                small_ms(port, 200)
                small[route] += small_ms(port, 2000)
                large[route].append(large_mib_s(port))
        return {
            "small_median_ms": {
                route: round(statistics.median(values), 3) for route, values in small.items()
            },
            "small_p99_ms": {
                route: round(sorted(values)[len(values) * 99 // 100], 3) for route, values in small.items()
            },
            "large_mib_s": {route: round(statistics.median(values)) for route, values in large.items()},
            "memory_mib": {route: round(pss_mib([pid]), 1) for route, pid in pids.items()},
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
            report["way"] = measure_routes(Path(folder), shared, own, options.rounds)
            print("way", report["way"], flush=True)
            starts_ms: dict[str, list[float]] = {"shared": [], "own": []}
            for _ in range(options.count):
                for name, node in (("shared", shared), ("own", own)):
                    starts_ms[name].append(node.start()[1])
                    if name == "shared":
                        node.close()
                        node.refs.clear()
            report["start_ms"] = {
                name: round(statistics.median(durations), 1) for name, durations in starts_ms.items()
            }
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
