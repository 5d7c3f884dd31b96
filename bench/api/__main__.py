"""Measure requests per second: `python -m bench.api [--rounds 3] [--seconds 6] [--rows 10000] [--json FILE]`.

Compares Berth as started by `make up`, with default settings in its own folder, with JupyterHub
(configurable-http-proxy, SQLite). For the gateway, a bare Traefik and a configurable-http-proxy run in
front of a JupyterLab of the same environment on a TCP port, since they cannot use a workspace's Unix socket.
JupyterLab gets its token from all three proxies.

JupyterLab is slower than all three proxies. So they are also measured in front of a small server, which in
Berth is the app of a workspace: those rows compare the proxies, and the rows of JupyterLab show what its user
gets. A file of 1 GiB in JupyterLab is downloaded through the gateway and through Traefik. The same list is
requested from a second Berth that has 10,000 more workspaces.

Loads alternate, so that changes in the machine's speed affect all of them equally. Each figure is the median
of its rounds, and each ratio the median of the rounds' ratios. wrk uses eight connections. Needs two cores.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path

import httpx

from bench.api.load import CONNECTIONS, Load, download, find_wrk, run
from bench.api.proxies import SMALL_SERVER, Proxy, bare_traefik, http_proxy, plain_lab, small_server
from bench.start_latency.__main__ import find_notebook_env, hub_environment, proxy_program
from bench.start_latency.contestants import ROOT, TIMEOUT_S, Berth, Hub

ROWS = 20
FILE_MIB = 1024
# Targets: minimum ratio of a load's requests per second to those of another load.
BOUNDS = (
    ("who am I", "JupyterHub: who am I", 2.0),
    ("list of 20", "JupyterHub: list of 20 users", 3.0),
    ("gateway", "bare Traefik", 0.9),
    ("gateway to a small server", "configurable-http-proxy to a small server", 1.2),
    ("gateway: MiB/s of a download", "bare Traefik: MiB/s of a download", 0.8),
)

Probe = Callable[[], Load]


class ApiBerth(Berth):
    """A Berth with twenty workspaces, of which a small server and a JupyterLab run, if there is capacity."""

    def fill(self, answer_size: int) -> None:
        """Create the workspaces. The small server answers with `answer_size` bytes."""
        template: dict[str, str | list[str]] = {
            "slug": "small-server",
            "name": "Small server",
            "team": "default",
            "program": "bash",
            "argv": ["python3", "-c", SMALL_SERVER.read_text(), "{port}", str(answer_size)],
        }
        slug = self._post("templates", template)["slug"]
        self.small = self._start("w0", slug)
        self.running = self._start("w1", "jupyterlab")
        for number in range(2, ROWS):
            self._create(f"w{number}", "jupyterlab")

    def _post(self, path: str, body: dict[str, str | list[str]]) -> dict[str, str]:
        answer = self.client.post(
            f"{self.base}/api/v1/{path}", json=body, headers={**self.host, **self.authorization}
        )
        answer.raise_for_status()
        created: dict[str, str] = answer.json()
        return created

    def _create(self, name: str, template: str) -> str:
        body: dict[str, str | list[str]] = {"name": name, "team": "default"}
        return self._post("workspaces", {**body, "template": template, "flavor": "cpu-small"})["id"]

    def _start(self, name: str, template: str) -> str:
        """Wait until the workspace runs, and return its host. Raises `TimeoutError`."""
        key = self._create(name, template)
        deadline = time.monotonic() + TIMEOUT_S
        while time.monotonic() < deadline:
            workspace = self.client.get(
                f"{self.base}/api/v1/workspaces/{key}", headers={**self.host, **self.authorization}
            ).json()
            if workspace["state"] == "running":
                return f"ws-{key.replace('-', '')}.localhost:{self.port}"
            time.sleep(0.2)
        raise TimeoutError(f"{name} does not run: {workspace['state']}, {workspace['error']}")

    def add_rows(self, count: int) -> None:
        subprocess.run(
            [sys.executable, "-m", "bench.api.rows", str(count)], env=self.environ, cwd=ROOT, check=True
        )

    def probe(self, path: str, seconds: int, host: str = "") -> Probe:
        headers = {"Host": host or self.host["Host"], **self.authorization}
        return lambda: run(self.base + path, headers, seconds)

    def download(self) -> Probe:
        """Return a file of `FILE_MIB` in the home of the running workspace."""
        home = next((self.folder / "var" / "homes").glob("*/*"))
        with (home / "large.bin").open("wb") as file:
            file.truncate(FILE_MIB << 20)
        headers = {"Host": self.running, **self.authorization}
        return lambda: download(self.base + "/files/large.bin", headers, FILE_MIB)


class ApiHub(Hub):
    """A JupyterHub with twenty users, of whom one has a running server."""

    def fill(self) -> None:
        for number in range(ROWS - 1):
            self.client.post(
                f"{self.base}/hub/api/users/user-{number}", headers=self.authorization
            ).raise_for_status()
        self.start()

    def probe(self, path: str, seconds: int) -> Probe:
        return lambda: run(self.base + path, self.authorization, seconds)


def main() -> int:
    arguments = parse()
    find_wrk()
    notebook_env = find_notebook_env(arguments.notebook_env)
    with tempfile.TemporaryDirectory(prefix="berth-bench-") as temporary:
        folder = Path(temporary)
        program = proxy_program()
        berth, crowded = (ApiBerth(folder / name, notebook_env) for name in ("few", "crowded"))
        hub = ApiHub(folder, notebook_env, hub_environment(), program)
        proxies: list[Proxy] = []
        try:
            hub.open()
            hub.fill()
            lab, credentials = plain_lab(folder, notebook_env)
            proxies.append(lab)
            lab.wait("/api")
            size = len(httpx.get(f"{lab.url}/api").content)
            for server in (berth, crowded):
                server.open()
                server.fill(size)
            crowded.add_rows(arguments.rows)
            small = small_server(folder, size)
            proxies.append(small)
            to_lab = [bare_traefik(folder, lab.url), http_proxy(program, folder, lab.url)]
            to_small = [bare_traefik(folder, small.url), http_proxy(program, folder, small.url)]
            proxies += [*to_lab, *to_small]
            for proxy in proxies:
                proxy.wait("/api")
            with (folder / "plain-lab" / "large.bin").open("wb") as file:
                file.truncate(FILE_MIB << 20)
            seconds = arguments.seconds
            listed = f"/api/v1/workspaces?page_size={ROWS}"
            among = f"list of 20 among {arguments.rows:,}"
            loads = measure(
                {
                    "who am I": berth.probe("/api/v1/me", seconds),
                    "JupyterHub: who am I": hub.probe("/hub/api/user", seconds),
                    "list of 20": berth.probe(listed, seconds),
                    among: crowded.probe(listed, seconds),
                    "JupyterHub: list of 20 users": hub.probe(f"/hub/api/users?limit={ROWS}", seconds),
                    "gateway": berth.probe("/api", seconds, berth.running),
                    "bare Traefik": lambda: run(to_lab[0].url + "/api", credentials, seconds),
                    "configurable-http-proxy": lambda: run(to_lab[1].url + "/api", credentials, seconds),
                    "gateway to a small server": berth.probe("/api", seconds, berth.small),
                    "bare Traefik to a small server": lambda: run(to_small[0].url + "/api", {}, seconds),
                    "configurable-http-proxy to a small server": lambda: run(
                        to_small[1].url + "/api", {}, seconds
                    ),
                    "gateway: MiB/s of a download": berth.download(),
                    "bare Traefik: MiB/s of a download": lambda: download(
                        to_lab[0].url + "/files/large.bin", credentials, FILE_MIB
                    ),
                },
                arguments.rounds,
            )
        finally:
            for proxy in proxies:
                proxy.close()
            berth.close()
            crowded.close()
            hub.close()
    return report(loads, among, arguments.json)


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.api", description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=int, default=6, help="of each load in each round")
    parser.add_argument("--rows", type=int, default=10_000, help="workspaces that are put into the database")
    parser.add_argument("--json", type=Path, help="write the figures here as well")
    parser.add_argument("--notebook-env", type=Path, help="default: what `make up` or `make test` has built")
    return parser.parse_args()


def measure(probes: dict[str, Probe], rounds: int) -> dict[str, list[Load]]:
    """Run each probe once per round, after a round that is not counted."""
    loads: dict[str, list[Load]] = {name: [] for name in probes}
    for number in range(rounds + 1):
        for name, probe in probes.items():
            load = probe()
            label = f"round {number}" if number else "warm-up"
            print(f"{label:8} {name:42} {load.per_s:9.1f}/s  p99 {load.p99_ms:.1f} ms", file=sys.stderr)
            if number:
                loads[name].append(load)
    return loads


def report(loads: dict[str, list[Load]], crowded: str, target: Path | None) -> int:
    """Print the table and the verdicts. Returns 1 if a bound is missed."""
    print(f"\n{'':42} {'req/s':>9} {'p50 ms':>8} {'p99 ms':>8} {'not 2xx':>8}")
    for name, runs in loads.items():
        medians = [
            statistics.median(getattr(load, key) for load in runs) for key in ("per_s", "p50_ms", "p99_ms")
        ]
        bad = sum(load.bad for load in runs)
        print(f"{name:42} {medians[0]:9.0f} {medians[1]:8.1f} {medians[2]:8.1f} {bad:8}")
    missed = 0
    ratios = {}
    for name, other, least in (*BOUNDS, (crowded, "list of 20", 0.9)):
        pairs = zip(loads[name], loads[other], strict=True)
        ratio = statistics.median(first.per_s / second.per_s for first, second in pairs)
        ratios[f"{name} / {other}"] = ratio
        missed += ratio < least
        print(f"{'ok  ' if ratio >= least else 'LESS'} {name} / {other}: {ratio:.2f} (asked: {least})")
    if target is not None:
        figures = {
            "when": datetime.now(UTC).isoformat(timespec="seconds"),
            "machine": f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}",
            "connections": CONNECTIONS,
            "loads": {name: [asdict(load) for load in runs] for name, runs in loads.items()},
            "ratios": ratios,
        }
        target.write_text(json.dumps(figures, indent=2) + "\n")
    return 1 if missed else 0


if __name__ == "__main__":
    raise SystemExit(main())
