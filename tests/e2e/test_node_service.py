"""`berth node join` under a real systemd: its unit is written, started, killed and removed.

Its own machine (tests/systemd_machine.py) joins a portal of this one. The tests run in order.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from provisioning.drivers.local import processes
from provisioning.host.folder import NodeFolder
from provisioning.host.unit import NAME
from provisioning.service import instance_lock
from provisioning.service.environ import ROOT
from tests import instance, mounts
from tests.e2e.second_machine import HOME_LIMIT_MIB
from tests.instance import Api, Berth, eventually
from tests.ports import consecutive_ports
from tests.systemd_machine import SystemdMachine, machine

pytestmark = [
    pytest.mark.engine,
    pytest.mark.xdist_group("node-service"),
    pytest.mark.thorough("a machine with systemd; `make test` checks the unit's text"),
]
LIMIT_S = 90
TOKEN = """
import django; django.setup()
from portal.common.actors import SYSTEM
from portal.fleet.inventory.models import Pool
from portal.fleet.machines import services
print(services.make_join_token(actor=SYSTEM, pool=Pool.objects.get(simulated=False)).text)
"""
OPERATOR = """
import django; django.setup()
from portal.people.accounts import tokens
from portal.people.accounts.models import User
from portal.common.actors import SYSTEM
print(tokens.create_token(actor=SYSTEM, user=User.objects.get(username="admin"), name="tests").secret)
"""


@dataclass
class Service:
    """A node of `site` as a service: of the system, or of `user`."""

    site: Site
    name: str
    folder: NodeFolder
    port: int
    user: str = ""
    variables: dict[str, str] = field(default_factory=dict)

    def systemctl(self, *arguments: str, check: bool = True) -> str:
        flags = ["--user"] if self.user else []
        return self.site.machine.ask("systemctl", *flags, *arguments, NAME, user=self.user, check=check)

    def command(self, *arguments: str) -> tuple[int, str]:
        """Run `berth node …` there; return exit code and output."""
        environment = instance.need_notebook_environment()
        variables = {
            "BERTH_HOME": str(self.folder.home), "BERTH_NOTEBOOK_ENV": str(environment), **self.variables,
        }  # fmt: skip
        given = [f"{name}={value}" for name, value in variables.items()]
        argv = ["env", f"--chdir={ROOT}", *given, sys.executable, "-m", "portal.cli.main", "node", *arguments]
        done = self.site.machine.run(*argv, user=self.user)
        return done.returncode, done.stdout + done.stderr

    def join(self) -> str:
        """Make it a node; return the command's output."""
        code, said = self.command(
            "join", self.site.door, "--token", self.site.snippet(TOKEN), "--name", self.name,
            "--gateway-port", str(self.port),
        )  # fmt: skip
        assert code == 0, said + self.journal()
        eventually(lambda: self.site.node(self.name).get("online"), limit_s=LIMIT_S, what=self.journal)
        return said

    def until_running(self) -> None:
        def look() -> bool:
            rows = instance_lock.read_state(self.folder.run).get("services", [])
            return bool(rows) and {row["state"] for row in rows} == {"running"}

        eventually(look, limit_s=LIMIT_S, what=self.journal)

    def journal(self) -> str:
        flags = ["--user-unit"] if self.user else ["--unit"]
        return self.site.machine.ask("journalctl", "--no-pager", "-n", "60", *flags, NAME, check=False)

    def shown(self, name: str) -> str:
        return self.site.machine.shown(NAME, name, user=self.user)

    def start_workspace(self, api: Api) -> str:
        """Start a workspace that only fits this node; return its id."""
        site = self.site
        others = [row for row in site.operator.json("GET", "nodes")["results"] if row["name"] != self.name]
        for row in others:
            site.operator.json("POST", f"nodes/{row['id']}/cordon", {})
        made = api.create("files", "tiny", name=f"on-{self.name}")
        api.wait(made["id"], "running", limit_s=LIMIT_S)
        assert self.owned(made["id"])
        for row in others:
            site.operator.json("POST", f"nodes/{row['id']}/uncordon", {})
        return str(made["id"])

    def owned(self, workspace_id: str) -> set[tuple[int, int]]:
        """Its processes by PID and start time, as seen from here; they are in another PID namespace."""
        marker = f"BERTH_WORKSPACE=ws-{workspace_id.replace('-', '')}".encode()
        found = set()
        for path in Path("/proc").glob("[0-9]*/environ"):
            with contextlib.suppress(OSError):
                if marker in path.read_bytes().split(b"\0"):
                    found.add((int(path.parent.name), processes.start_ticks(int(path.parent.name))))
        return found

    def groups(self, workspace_id: str) -> set[str]:
        return {Path(f"/proc/{pid}/cgroup").read_text() for pid, _ in self.owned(workspace_id)}


@dataclass
class Site:
    """A portal here, and a machine with systemd."""

    berth: Berth
    machine: SystemdMachine
    folder: Path
    door: str
    first_port: int
    ada: Api
    ben: Api
    operator: Api

    def snippet(self, code: str) -> str:
        return self.berth.run("-c", code, DJANGO_SETTINGS_MODULE="portal.settings").strip()

    def node(self, name: str) -> dict[str, Any]:
        rows = self.operator.json("GET", "nodes")["results"]
        return next((row for row in rows if row["name"] == name), {})


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    environment = instance.need_notebook_environment()
    folder = tmp_path_factory.mktemp("unit").resolve()
    shared = folder / "shared"
    shared.mkdir()
    door = consecutive_ports(4)
    variables = {
        "BERTH_NODES_ADDRESS": "127.0.0.1",
        "BERTH_NODES_PORT": str(door),
        "BERTH_HOME_LIMIT_MIB": HOME_LIMIT_MIB,
    }
    with (
        machine(folder / "systemd", shared=[shared]) as found,
        instance.running(folder, environment=environment, **variables) as berth,
    ):
        ada = berth.api("ada")
        ben = berth.api("ben")
        made = Site(berth, found, shared, f"https://127.0.0.1:{door}", door + 2, ada, ben, ada)
        berth.tokens["admin"] = made.snippet(OPERATOR)
        made.operator = berth.api("admin")
        try:
            yield made
            for api in (ada, ben):
                for row in api.json("GET", "workspaces")["results"]:
                    api.act(row["id"], "delete")
        finally:
            for api in (ada, ben, made.operator):
                api.close()
            mounts.detach(shared)


def test_system_service_from_join_to_leave(site: Site) -> None:
    node = Service(site, "node-b", NodeFolder(site.folder / "b"), site.first_port)
    said = node.join()
    assert "Service                connected" in said, said
    assert node.shown("StatusText").startswith("Connected: node node-b")
    assert node.shown("TasksMax") == "infinity" and node.shown("LimitNOFILE") == "65536"
    assert "cap_sys_time" not in node.shown("CapabilityBoundingSet")
    assert "cap_sys_admin" in node.shown("CapabilityBoundingSet")
    code, said = node.command("status")
    assert code == 0, said
    assert set(site.node("node-b")["limited"]) == {"cpu", "memory", "processes", "disk"}

    workspace = node.start_workspace(site.ada)
    before = node.owned(workspace)
    groups = node.groups(workspace)
    assert all(":memory:" not in group or workspace.replace("-", "") in group for group in groups), groups
    node.systemctl("restart")
    node.until_running()
    node.systemctl("stop")
    assert node.systemctl("is-active", check=False).strip() == "inactive"
    assert node.owned(workspace) == before
    node.systemctl("start")
    node.until_running()
    pid = node.shown("MainPID")
    site.machine.ask("kill", "-9", pid)
    eventually(lambda: node.shown("MainPID") not in {"0", pid}, limit_s=LIMIT_S, what=node.journal)
    node.until_running()
    site.machine.ask("systemctl", "daemon-reload")
    assert node.owned(workspace) == before and node.groups(workspace) == groups
    assert site.ada.workspace(workspace)["state"] == "running"

    site.ada.act(workspace, "stop")
    site.ada.wait(workspace, "stopped", limit_s=LIMIT_S)
    assert not node.owned(workspace), "the services that were started last stop it"
    code, said = node.command("leave")
    assert code == 0, said
    assert node.systemctl("is-active", check=False).strip() == "inactive"
    assert site.machine.run("test", "-e", f"/etc/systemd/system/{NAME}").returncode == 1


def test_user_service_from_join_to_leave(site: Site) -> None:
    machine = site.machine
    machine.ask("useradd", "--create-home", "ada")
    home = site.folder / "ada"
    home.mkdir()
    machine.ask("chown", "ada:", str(home))
    for path in (*home.parents, *Path(sys.base_prefix).resolve().parents, *ROOT.parents):
        if path != Path("/") and not path.stat().st_mode & 0o001:
            machine.ask("chmod", "o+x", str(path))  # in the machine's own memory
    machine.ask("loginctl", "enable-linger", "ada")
    eventually(
        lambda: machine.run("systemctl", "--user", "is-active", "default.target", user="ada").returncode == 0,
        limit_s=LIMIT_S,
        what="ada's systemd runs",
    )
    node = Service(
        site, "node-c", NodeFolder(home / "node"), site.first_port + 1, "ada", {"BERTH_MULTIUSER": "0"}
    )
    said = node.join()
    assert "Service                connected" in said, said
    assert "enable-linger" not in said, "she has done so"
    workspace = node.start_workspace(site.ben)
    before = node.owned(workspace)
    node.systemctl("restart")
    node.until_running()
    assert node.owned(workspace) == before
    site.ben.act(workspace, "stop")
    site.ben.wait(workspace, "stopped", limit_s=LIMIT_S)
    code, said = node.command("leave")
    assert code == 0, said
    assert machine.run("test", "-e", f"/home/ada/.config/systemd/user/{NAME}").returncode == 1
