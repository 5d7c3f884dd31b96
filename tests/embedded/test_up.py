"""`up` with all processes, which are killed in several ways."""

from __future__ import annotations

import json
import os
import queue
import signal
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from portal.embedded.environment import Instance
from provisioning.drivers.local.driver import LocalDriver
from provisioning.service import instance_lock, probes, processes
from provisioning.service.environ import ROOT
from provisioning.types import PoolConfig
from tests import mounts
from tests.embedded.conftest import free_ports
from tests.instance import eventually

pytestmark = [
    pytest.mark.engine,
    pytest.mark.thorough("each test starts Berth; `make test` starts, kills and stops the shared one"),
]
START_LIMIT_S = 240.0
RECOVERY_LIMIT_S = 90.0
SERVICES = ("redis", "web", "gateway", "front-door", "control", "node", "beat")


class Running:
    """One `up` and its output."""

    def __init__(self, instance: Instance, *arguments: str) -> None:
        self.instance = instance
        self.lines: list[str] = []
        self._news: queue.Queue[str] = queue.Queue()
        self.process = subprocess.Popen(
            [sys.executable, "-m", "portal.embedded", "up", *arguments],
            cwd=ROOT,
            env=environ_of(instance),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        with self.process.stdout as stream:
            for line in stream:
                self._news.put(line.rstrip())
        self._news.put("(end)")

    def until(self, part: str, *, limit_s: float = START_LIMIT_S) -> str:
        """The next line that contains `part`."""
        deadline = time.monotonic() + limit_s
        while True:
            try:
                line = self._news.get(timeout=max(deadline - time.monotonic(), 0.001))
            except queue.Empty:
                pytest.fail(f"no line with “{part}” in {limit_s} s; there were:\n" + "\n".join(self.lines))
            self.lines.append(line)
            if part in line:
                return line
            if line == "(end)":
                pytest.fail(f"it ended before a line with “{part}”:\n" + "\n".join(self.lines))

    def services(self) -> dict[str, dict[str, Any]]:
        return {
            row["name"]: row for row in instance_lock.read_state(self.instance.run_dir).get("services", [])
        }

    def health(self) -> tuple[int, dict[str, Any]]:
        try:
            with urllib.request.urlopen(
                f"http://127.0.0.1:{self.instance.port}/healthz", timeout=20
            ) as answer:
                return answer.status, json.load(answer)
        except urllib.error.HTTPError as error:
            with error:
                return error.code, json.load(error) if error.code == 503 else {}
        except (OSError, ValueError):
            return 0, {}

    def wait_healthy(self, *, limit_s: float = RECOVERY_LIMIT_S) -> None:
        deadline = time.monotonic() + limit_s
        while (seen := self.health())[0] != 200:
            if time.monotonic() > deadline:
                pytest.fail(f"not healthy within {limit_s} s: {seen}\n" + "\n".join(self.lines))
            time.sleep(0.1)

    def end(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        self._reader.join(10)
        processes.end(processes.leftovers(self.instance.id), self.instance.id, grace_s=2)
        mounts.detach(self.instance.home)


def environ_of(instance: Instance) -> dict[str, str]:
    kept = {key: value for key, value in os.environ.items() if not key.startswith(("BERTH_", "DATABASE_"))}
    return {
        **kept,
        **instance.variables(),
        "BERTH_SKIP_NOTEBOOK": "1",
        "BERTH_ADMIN_PASSWORD": "correct-horse-battery",
    }


def command(instance: Instance, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "portal.embedded", *arguments],
        cwd=ROOT,
        env=environ_of(instance),
        capture_output=True,
        text=True,
        timeout=150,
    )


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Instance:
    port, web, redis, gateway = free_ports(4)
    return Instance.from_environ(
        {
            "BERTH_HOME": str(tmp_path_factory.mktemp("instance") / "home"),
            "BERTH_PORT": str(port),
            "BERTH_WEB_PORT": str(web),
            "BERTH_REDIS_PORT": str(redis),
            "BERTH_GATEWAY_PORT": str(gateway),
            "BERTH_NODE_NAME": "node-a",
        }
    )


@pytest.fixture(scope="module")
def running(place: Instance) -> Iterator[Running]:
    up = Running(place)
    try:
        up.until("Berth is ready")
        yield up
    finally:
        up.end()


def test_all_parts_are_healthy_and_the_url_is_printed_last(running: Running) -> None:
    assert f"Berth is ready: {running.instance.public_url}" in running.lines[-1]
    status, report = running.health()
    assert status == 200, report
    names = [part["name"] for part in report["parts"]]
    assert names == ["database", "redis", "front door", "gateway", "control", "node", "beat"]
    assert all(part["ok"] and part["detail"] for part in report["parts"])


def test_messages_of_the_scheduler_are_accepted(running: Running) -> None:
    """The scheduler signs as the control plane, which runs only signed messages."""
    password = (running.instance.home / "secrets" / "redis_control").read_text().strip()
    with probes.redis_client(running.instance.redis_url("control", password)) as client:
        # Removed by one of its tasks only.
        client.hset(
            "berth:acc:token-uses", "00000000-0000-0000-0000-000000000000", "2026-11-22T00:00:00+00:00"
        )
        eventually(
            lambda: not client.exists("berth:acc:token-uses"), limit_s=60, what="uses of tokens are stored"
        )
    assert "dropped" not in (running.instance.logs_dir / "control.log").read_text()


def test_status_shows_every_service(running: Running) -> None:
    def told() -> bool:
        done = command(running.instance, "status")
        assert done.returncode == 0, done.stdout + done.stderr
        for name in SERVICES:
            assert f"  {name} " in done.stdout
        # The workspace count starts a process and can take half a minute.
        return "workspaces: none" in done.stdout

    eventually(told, limit_s=120, what="the workspaces are counted")


def test_each_process_gets_only_its_secrets(running: Running) -> None:
    secrets = {path.name: path.read_text().strip() for path in (running.instance.home / "secrets").iterdir()}
    for name, row in running.services().items():
        environ = processes.environ_of(row["pid"])
        seen = {key for key, value in secrets.items() if any(value in text for text in environ.values())}
        assert seen == ({"redis_node", "node_key"} if name == "node" else set()), name
        argv = Path(f"/proc/{row['pid']}/cmdline").read_bytes().decode()
        assert not any(value in argv for value in secrets.values()), name


def test_node_plane_cannot_read_gateway_keys(running: Running) -> None:
    import redis

    secrets = running.instance.home / "secrets"
    url = running.instance.redis_url(
        running.instance.redis_node_user, (secrets / "redis_node").read_text().strip()
    )
    with probes.redis_client(url) as node:
        name = running.instance.node_name
        assert node.hget(f"berth:q:node.{name}:heartbeat", f"node@{name}")
        for attempt in (
            lambda: node.get("berth:gw:ws:ws-1"),
            lambda: node.set("berth:gw:ws:ws-1", "{}"),
            lambda: node.keys("*"),
            lambda: node.config_get("*"),
            lambda: node.flushall(),
            lambda: node.acl_list(),
        ):
            with pytest.raises(redis.exceptions.NoPermissionError):
                attempt()
    with (
        redis.Redis(port=running.instance.redis_port, retry=None) as nobody,
        pytest.raises(redis.exceptions.AuthenticationError),
    ):
        nobody.ping()


def test_front_door_hides_agent_and_forward_auth_paths(running: Running) -> None:
    secret = (running.instance.home / "secrets" / "gateway_secret").read_text().strip()
    base = f"http://127.0.0.1:{running.instance.port}"
    for path in (
        f"/gateway/{secret}/auth",
        "/agent/v1/ready",
        "//agent/v1/ready",
    ):
        with pytest.raises(urllib.error.HTTPError) as refused:
            urllib.request.urlopen(base + path, timeout=20)
        assert refused.value.code == 404, path
        with refused.value as answer:
            # The front door's own response, without the portal.
            assert answer.headers["Content-Type"] == "application/problem+json"
            assert json.load(answer)["code"] == "not_found"
            assert "X-Request-Id" not in answer.headers


@pytest.mark.parametrize("name", SERVICES)
def test_killed_service_is_restarted(running: Running, name: str) -> None:
    known = running.services()
    before = known[name]
    os.kill(before["pid"], signal.SIGKILL)
    running.until(f"{name} is running again", limit_s=RECOVERY_LIMIT_S)
    after = running.services()[name]
    assert after["pid"] != before["pid"] and after["restarts"] == before["restarts"] + 1
    running.wait_healthy()
    others = [(row["pid"], row["restarts"]) for row in known.values() if row["name"] != name]
    assert others == [
        (row["pid"], row["restarts"]) for row in running.services().values() if row["name"] != name
    ]


def test_redis_with_unreadable_data_starts_empty(running: Running) -> None:
    data = running.instance.home / "redis" / "appendonlydir"
    for path in data.iterdir():
        path.write_bytes(b"\x00garbage" * 100)
    os.kill(running.services()["redis"]["pid"], signal.SIGKILL)
    running.until("Its data was moved", limit_s=RECOVERY_LIMIT_S)
    running.until("redis is running again", limit_s=RECOVERY_LIMIT_S)
    running.wait_healthy()


def test_start_after_a_killed_supervisor_cleans_up(running: Running) -> None:
    old = {row["pid"] for row in running.services().values()}
    running.process.kill()
    running.process.wait()
    again = Running(running.instance)
    try:
        again.until("Berth is ready")
        assert again.health()[0] == 200
        now = {left.pid for left in processes.leftovers(running.instance.id)}
        assert not old & now
        # A supervisor killed while services hang: the next start ends them.
        stuck = [row["pid"] for row in again.services().values()]
        for pid in stuck:
            os.kill(pid, signal.SIGSTOP)
        again.process.kill()
        again.process.wait()
        third = Running(running.instance)
        try:
            assert "leftover" in third.until("This machine")
            third.until("Berth is ready")
            assert all(processes.started_at(pid) is None for pid in stuck)
            assert third.health()[0] == 200
            done = command(running.instance, "down")
            assert done.returncode == 0, done.stdout + done.stderr
            assert third.process.wait(timeout=60) == 0
            third.until("Berth is stopped.")
        finally:
            third.end()
    finally:
        again.end()
    assert processes.leftovers(running.instance.id) == []
    assert command(running.instance, "status").returncode == 3


def test_ctrl_c_stops_in_order_and_keeps_data(place: Instance) -> None:
    up = Running(place, "--keep-workspaces")
    try:
        up.until("Berth is ready")
        (place.home / "homes" / "lab" / "ada").mkdir(parents=True)
        question = {"do": "list", "path": "", "offset": 0, "limit": 10}
        driver = LocalDriver(PoolConfig("local", "local", {"home": str(place.home), "sandbox": "none"}))
        assert driver.files(team="lab", owner="ada", question=question)["ok"]["entries"] == []
        assert len(list(place.local_dir.glob("files-*"))) == 1
        up.process.send_signal(signal.SIGINT)
        up.until("Berth is stopped. Workspaces keep running", limit_s=60)
        assert not list(place.local_dir.glob("files-*"))
        assert up.process.wait(timeout=60) == 0
        assert not any("Workspaces  " in line for line in up.lines)
        assert (place.home / "database" / "berth.sqlite3").exists()
    finally:
        up.end()
    assert processes.leftovers(place.id) == []


def test_ctrl_c_during_startup(place: Instance) -> None:
    up = Running(place)
    try:
        up.until("This machine")
        up.process.send_signal(signal.SIGINT)
        assert up.process.wait(timeout=60) in {0, 130}
    finally:
        up.end()
    assert processes.leftovers(place.id) == []
    assert command(place, "status").returncode == 3
