"""docs/systemd.md, command by command: a server of systemd units on its own machine.

The installation of programs (first step) is left out: the machine uses this checkout and its packages. It has
its own network, for the documented ports, and a new PostgreSQL cluster.
"""

from __future__ import annotations

import json
import re
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from provisioning.service.environ import ROOT
from tests import instance
from tests.instance import eventually
from tests.systemd_machine import WAY_OUT, SystemdMachine, machine

pytestmark = [
    pytest.mark.engine,
    pytest.mark.xdist_group("node-service"),
    pytest.mark.thorough("a machine with systemd; `make test` checks the unit's text"),
]
LIMIT_S = 90
HOST = "berth.example.org"
BLOCKS = re.findall(r"^```sh\n(.*?)^```", (ROOT / "docs" / "systemd.md").read_text(), flags=re.DOTALL | re.M)
PREPARE = f"""
set -e
mkdir -p /opt/berth
mount --bind {ROOT} /opt/berth
{WAY_OUT}
echo 127.0.0.1 {HOST} >> /etc/hosts
version=$(pg_lsclusters --no-header | awk 'NR == 1 {{ print $1 }}')
pg_dropcluster "$version" main
pg_createcluster "$version" main
systemctl start postgresql
"""
# A Python in a user's home is hidden from services.
HOMES = "[Service]\nProtectHome=read-only\n"
SNIPPET = """
import django; django.setup()
from portal.people.accounts import services as accounts, tokens
from portal.people.accounts.models import User
from portal.common.actors import SYSTEM
from portal.fleet.inventory.models import Pool
from portal.fleet.machines import services
from tests.populate import add_catalog
add_catalog()
admin = User.objects.get(username="admin")
admin.set_password("correct-horse-battery")
admin.save()
print(services.make_join_token(actor=SYSTEM, pool=Pool.objects.get(simulated=False)).text)
print(tokens.create_token(actor=SYSTEM, user=admin, name="tests").secret)
"""
AS_BERTH = [
    "systemd-run", "--quiet", "--pipe", "--wait", "--property=User=berth",
    "--property=EnvironmentFile=/etc/berth/berth.env", "--property=EnvironmentFile=/etc/berth/secrets.env",
    "--working-directory=/opt/berth", "--setenv=PYTHONPATH=/opt/berth",
    "--setenv=DJANGO_SETTINGS_MODULE=portal.settings", "/opt/berth/.venv/bin/python", "-c",
]  # fmt: skip


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SystemdMachine]:
    if not shutil.which("pg_createcluster") or not shutil.which("pg_lsclusters"):
        pytest.skip("PostgreSQL of Debian (postgresql-common) is not installed")
    if not shutil.which("ip") or not shutil.which("curl"):
        pytest.skip("needs the programs ip and curl")
    with machine(tmp_path_factory.mktemp("server").resolve(), own_network=True) as found:
        done = found.run("sh", "-c", PREPARE)
        assert done.returncode == 0, done.stdout + done.stderr
        for path in (*Path(sys.base_prefix).resolve().parents, *ROOT.parents):
            if path != Path("/") and not path.stat().st_mode & 0o001:
                found.ask("chmod", "o+x", str(path))  # in the machine's own memory
        if Path(sys.base_prefix).resolve().is_relative_to("/root"):
            folder = "/etc/systemd/system/berth-.service.d"
            found.ask("sh", "-c", f"mkdir -p {folder}; printf '{HOMES}' > {folder}/python.conf")
        yield found


def do(server: SystemdMachine, block: str) -> str:
    done = server.run("bash", "-ec", block)
    journal = server.ask("journalctl", "--no-pager", "-n", "80", "-o", "cat", "-u", "berth*", check=False)
    assert done.returncode == 0, done.stdout + done.stderr + journal
    return done.stdout


def health(server: SystemdMachine) -> dict[str, bool]:
    said = server.run("curl", "-s", "-m", "10", "localhost:8000/healthz").stdout
    try:
        return {part["name"]: part["ok"] for part in json.loads(said).get("parts", [])}
    except ValueError:
        return {}


def all_well(server: SystemdMachine) -> bool:
    parts = health(server)
    return bool(parts) and all(parts.values())


def active(server: SystemdMachine) -> set[str]:
    listed = server.ask("systemctl", "list-units", "--plain", "--no-legend", "--state=active", "berth*")
    return {line.split()[0] for line in listed.splitlines()}


def api(server: SystemdMachine, token: str, method: str, path: str, body: Any = None) -> Any:
    argv = [
        "curl",
        "-s",
        "-m",
        "20",
        "-X",
        method,
        "-H",
        f"Host: {HOST}",
        "-H",
        f"Authorization: Bearer {token}",
    ]
    if body is not None:
        argv += ["-H", "Content-Type: application/json", "-d", json.dumps(body)]
    said = server.run(*argv, f"localhost:8000/api/v1/{path}").stdout
    return json.loads(said) if said else None


def test_server_is_installed_as_documented(server: SystemdMachine) -> None:
    environment = instance.need_notebook_environment()
    programs, *steps, join = BLOCKS
    assert "apt-get" in programs and "node join" in join and len(steps) == 4
    said = [do(server, step) for step in steps][-1]
    assert f"https://{HOST}/welcome/" in said, "the administrator's link"
    eventually(
        lambda: [name for name, ok in health(server).items() if not ok] == ["node"],
        limit_s=LIMIT_S,
        what=lambda: f"all but the node: {health(server)}",
    )
    units = {path.name for path in (ROOT / "deploy" / "systemd").glob("berth*.service")}
    assert active(server) == {*units, "berth.target"}

    token, secret = do(server, " ".join([*AS_BERTH, f"'{SNIPPET}'"])).split()
    command = re.sub(r"berth-join\.\S+", token, join)
    do(server, f"export BERTH_NOTEBOOK_ENV={environment}\n{command}")
    eventually(lambda: all_well(server), limit_s=LIMIT_S, what=lambda: f"{health(server)}")
    # Starts are refused until the portal has processed the node's inventory.
    eventually(
        lambda: any(node["online"] for node in api(server, secret, "GET", "nodes")["results"]),
        limit_s=LIMIT_S,
        what=lambda: f"{api(server, secret, 'GET', 'nodes')}",
    )

    made = api(
        server, secret, "POST", "workspaces", {"team": "default", "template": "files", "flavor": "tiny"}
    )
    assert "id" in made, made
    where = f"workspaces/{made['id']}"
    eventually(
        lambda: api(server, secret, "GET", where)["state"] == "running",
        limit_s=LIMIT_S,
        what=lambda: f"{made} {api(server, secret, 'GET', where)}",
    )
    for user in ("berth", "berth-door", "berth-redis"):
        for command in ("ls /var/lib/berth/keys", "cat /var/lib/berth/authority/authority.key"):
            may = server.run("runuser", "-u", user, "--", *command.split()).returncode == 0
            assert may == (user == "berth"), (user, command)
        assert server.run("runuser", "-u", user, "--", "cat", "/etc/berth/secrets.env").returncode
    main = server.shown("berth-web.service", "MainPID")
    server.ask("kill", "-9", main)
    eventually(
        lambda: server.shown("berth-web.service", "MainPID") not in {"0", main},
        limit_s=LIMIT_S,
        what="systemd starts it again",
    )
    server.ask("systemctl", "restart", "berth.target")
    eventually(lambda: all_well(server), limit_s=LIMIT_S, what="all run after a restart")
    assert api(server, secret, "GET", where)["state"] == "running"
    api(server, secret, "DELETE", where)
    server.ask("systemctl", "stop", "berth.target")
    eventually(
        lambda: active(server) == {"berth-node.service"}, limit_s=LIMIT_S, what=lambda: f"{active(server)}"
    )
