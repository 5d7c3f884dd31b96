"""A compromised service of a Berth started by root.

The attacker is a process with the user of the service and its view of the file system.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from portal.embedded.environment import SERVICES_UID
from provisioning.service.door_uid import DOORS_UID
from provisioning.service.environ import ROOT
from tests import instance
from tests.instance import Api, Berth, eventually
from tests.ports import consecutive_ports

CONFINED = {"redis", "web", "gateway", "control", "beat"}
DOORS = {"front-door", "nodes-door", "nodes-guard", "redis-door"}
OWNER_UID, STRANGER = 200_000, 180_000
PYTHON = shutil.which("python3", path="/usr/bin:/usr/local/bin") or sys.executable
"""One that everybody sees: the front door has none of Berth's."""
pytestmark = [
    pytest.mark.thorough("a Berth of its own; `make test` has the accounts in tests/embedded"),
    pytest.mark.skipif(os.geteuid() != 0, reason="only root can give services a user of their own"),
    pytest.mark.skipif(shutil.which("nsenter") is None, reason="needs nsenter (util-linux)"),
]


@pytest.fixture(scope="module")
def closed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that only root enters, like `/root`."""
    made = tmp_path_factory.mktemp("services")
    made.chmod(0o700)
    return made


@pytest.fixture(scope="module")
def berth(closed: Path) -> Iterator[Berth]:
    environment = instance.notebook_environment()
    machines = {
        "BERTH_NODES_ADDRESS": "127.0.0.1",
        "BERTH_NODES_BIND": "127.0.0.1",
        "BERTH_NODES_PORT": str(consecutive_ports(2)),
    }
    with instance.running(closed, environment=environment, **machines) as found:
        yield found


def status_of(pid: int) -> dict[str, list[str]]:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return {key: value.split() for key, _, value in (line.partition(":") for line in lines)}


def run_as_service(berth: Berth, service: str, code: str, **given: Any) -> Any:
    """Run a program as the user of the service with its file system view.

    Returns its output; `given` defines its names.
    """
    pid = berth.services()[service]["pid"]
    user = DOORS_UID if service in DOORS else SERVICES_UID
    names = "\n".join(f"{name} = {value!r}" for name, value in given.items())
    done = subprocess.run(
        [
            "nsenter", f"--target={pid}", "--mount", f"--setuid={user}", f"--setgid={user}",
            PYTHON if service in DOORS else sys.executable, "-I", "-S", "-c", f"{TRIED}\n{names}\n{code}",
        ],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        cwd="/",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


TRIED = """
import json, os, signal, socket
def tried(act, *arguments):
    try:
        act(*arguments)
    except OSError as error:
        return type(error).__name__
    return 'done'
def written(path):
    with open(path, 'ab'):
        pass
def met(path):
    # A socket's path may have 107 bytes only.
    with socket.socket(socket.AF_UNIX) as connection:
        folder = os.open(os.path.dirname(path), os.O_PATH)
        connection.connect(f'/proc/self/fd/{folder}/{os.path.basename(path)}')
"""


def test_services_have_no_rights(berth: Berth) -> None:
    assert not any("run as root" in line for line in berth.lines)
    for name, row in berth.services().items():
        status = status_of(row["pid"])
        if name in CONFINED | DOORS:
            user = str(DOORS_UID if name in DOORS else SERVICES_UID)
            # The front door finds its passes through the group of the gateway process.
            groups = [str(SERVICES_UID)] if name == "front-door" else []
            assert status["Uid"] == status["Gid"] == [user] * 4, name
            assert status["Groups"] == groups and status["NoNewPrivs"] == ["1"], name
            for kind in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"):
                assert status[kind] == ["0" * 16], (name, kind)
        else:
            assert status["Uid"] == ["0"] * 4, name
    assert {*berth.services()} == CONFINED | DOORS | {"node"}


def test_child_processes_of_services_have_no_rights(berth: Berth) -> None:
    for name in ("web", "control"):
        pid = berth.services()[name]["pid"]
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        assert children, name
        for child in children:
            assert status_of(int(child))["Uid"] == [str(SERVICES_UID)] * 4


def test_files_of_the_node_and_of_other_users_are_hidden(berth: Berth) -> None:
    homes = berth.home / "homes" / "lab" / "ben"
    homes.mkdir(parents=True, exist_ok=True)
    (homes / "note").write_text("ben's")
    paths = [
        homes / "note", berth.home / "secrets" / "node_key", berth.home / "secrets" / "redis_node",
        berth.home / "local", berth.home / "environments", berth.home / "run" / "redis.acl",
        berth.home / "run" / "front-door.json", berth.home / "logs" / "node.log", Path("/etc/shadow"),
        Path("/root/.ssh"), Path(f"/proc/{berth.services()['node']['pid']}/environ"),
    ]  # fmt: skip
    said = run_as_service(
        berth,
        "web",
        "look = lambda path: os.listdir(path) if os.path.isdir(path) else open(path)\n"
        "print(json.dumps({path: tried(look, path) for path in paths}))",
        paths=[str(path) for path in paths],
    )
    assert set(said.values()) <= {"FileNotFoundError", "PermissionError"}, said


def seen_by(berth: Berth, service: str, folder: Path) -> set[str]:
    pid = berth.services()[service]["pid"]
    return {path.name for path in Path(f"/proc/{pid}/root{folder}").iterdir()}


def test_each_service_sees_only_its_own_files(berth: Berth) -> None:
    assert seen_by(berth, "redis", berth.home) == {"redis", "run"}
    assert seen_by(berth, "redis", berth.home / "run") == {"redis.acl", "redis.conf"}
    of_the_portal = {"database", "keys", "secrets", "services", "static"}
    for name in ("gateway", "beat"):
        assert seen_by(berth, name, berth.home) == of_the_portal, name
    run = berth.home / "run"
    assert seen_by(berth, "front-door", berth.home) == {"local", "run"}
    assert seen_by(berth, "front-door", run) == {"front-door.json", "tls"}
    assert seen_by(berth, "front-door", run / "tls") == {"authority.pem", "front-door.key", "front-door.pem"}
    assert seen_by(berth, "nodes-door", berth.home) == {"door-socket", "run"}
    assert seen_by(berth, "nodes-door", run) == {"nodes-door.json", "tls"}
    assert seen_by(berth, "nodes-guard", berth.home) == {"door-socket"}
    assert seen_by(berth, "redis-door", berth.home) == {"run"}
    for name in ("nodes-door", "redis-door"):
        assert seen_by(berth, name, run / "tls") == {"authority.pem", "nodes-door.key", "nodes-door.pem"}
    for name in ("web", "control"):
        assert seen_by(berth, name, berth.home) == of_the_portal | {"run"}, name
        assert seen_by(berth, name, berth.home / "run" / "tls") == {"authority.key", "authority.pem"}


def test_program_and_environments_are_read_only_for_services(berth: Berth) -> None:
    """Otherwise root would run planted files at the next start."""
    places = [ROOT / "portal", ROOT / "provisioning", Path(sys.prefix) / "lib", Path(sys.base_prefix), ROOT]
    files = [*(place / "planted.py" for place in places), ROOT / "portal" / "settings" / "__init__.py"]
    said = run_as_service(
        berth,
        "web",
        "print(json.dumps({path: tried(written, path) for path in paths}))",
        paths=[str(path) for path in (*files, berth.home / "planted", berth.home / "static" / "planted")],
    )
    assert set(said.values()) <= {"OSError", "PermissionError"}, said


def test_database_cannot_be_replaced_by_a_link(berth: Berth) -> None:
    code = """
said = []
for end in ('', '-wal', '-shm'):
    said.append(tried(os.unlink, file + end))
    said.append(tried(os.rename, file + end, file + '.aside'))
said.append(tried(written, file))
print(json.dumps(said))
"""
    file = str(berth.home / "database" / "berth.sqlite3")
    assert run_as_service(berth, "web", code, file=file) == ["PermissionError"] * 6 + ["done"]


def test_root_processes_cannot_be_signalled(berth: Berth) -> None:
    pids = [berth.services()["node"]["pid"], berth.services()["front-door"]["pid"], os.getpid()]
    code = "print(json.dumps([tried(os.kill, pid, signal.SIGTERM) for pid in pids] + [tried(os.setuid, 0)]))"
    assert run_as_service(berth, "web", code, pids=pids) == ["PermissionError"] * 4
    pids = [berth.services()[name]["pid"] for name in ("node", "web", "redis")]
    assert run_as_service(berth, "front-door", code, pids=pids) == ["PermissionError"] * 4


def as_user(uid: int, code: str, **given: Any) -> Any:
    """Run a program as this system user, unconfined. Returns its output."""
    names = "\n".join(f"{name} = {value!r}" for name, value in given.items())
    done = subprocess.run(
        [PYTHON, "-I", "-S", "-c", f"{TRIED}\n{names}\n{code}"],
        user=uid,
        group=uid,
        extra_groups=[],
        cwd="/",
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_front_door_reaches_workspaces_and_cannot_read_their_files(berth: Berth) -> None:
    with ada_of(berth) as ada:
        made = entered(berth, ada)
        folder = berth.instance.local_dir / f"ws-{made.replace('-', '')}"
        (app,) = folder.glob("app.*.sock")
        assert owned(folder) == (0, DOORS_UID, 0o710) and owned(app) == (0, DOORS_UID, 0o660)
        inside = [path for path in folder.iterdir() if path != app and path.name != "etc"]
        assert {folder / "run", folder / "record.json", folder / "alive.lock"} <= {*inside}
        code = """
print(json.dumps([
    tried(met, app),
    *(tried(os.listdir if os.path.isdir(path) else open, path) for path in inside),
    *(tried(os.listdir, path) for path in folders),
    *(tried(written, path + '/planted') for path in folders),
    tried(os.unlink, app),
]))
"""
        given = {"app": str(app), "inside": [str(path) for path in inside]}
        folders = [str(folder), str(folder.parent), str(folder.parent / ".spares")]
        said = run_as_service(berth, "front-door", code, folders=folders, **given)
        assert said[0] == "done" and {*said[1:]} <= {"PermissionError", "OSError"}, said
        ada.act(made, "delete")


def test_others_cannot_reach_workspace_sockets_or_doors(berth: Berth, closed: Path) -> None:
    """Neither its own user, another user with open parent folders, nor the portal services."""
    with ada_of(berth) as ada:
        made = entered(berth, ada)
        local = berth.instance.local_dir
        (app,) = (local / f"ws-{made.replace('-', '')}").glob("app.*.sock")
        sockets = [app, berth.instance.door_socket_dir / "nodes-door.sock"]
        assert sockets[1].is_socket()
        code = "print(json.dumps([tried(met, path) for path in sockets]))"
        addresses = [str(path) for path in sockets]
        modes = {path: path.stat().st_mode for path in (berth.home, *berth.home.parents) if path != Path("/")}
        try:
            for path in modes:
                path.chmod(0o755)
            for uid in (OWNER_UID, STRANGER, SERVICES_UID):
                assert as_user(uid, code, sockets=addresses) == ["PermissionError"] * 2, uid
            assert as_user(DOORS_UID, code, sockets=addresses) == ["done"] * 2
        finally:
            for path, mode in modes.items():
                path.chmod(mode)
        assert run_as_service(berth, "web", code, sockets=addresses) == ["FileNotFoundError"] * 2
        # Caddy's admin API is off: no process listens there.
        configured = json.loads((berth.home / "run" / "front-door.json").read_text())
        assert configured["admin"]["disabled"] is True
        ada.act(made, "delete")


def owned(path: Path) -> tuple[int, int, int]:
    found = path.lstat()
    return found.st_uid, found.st_gid, found.st_mode & 0o7777


@contextlib.contextmanager
def ada_of(berth: Berth) -> Iterator[Api]:
    ada = berth.api("ada")
    try:
        yield ada
    finally:
        ada.close()


def entered(berth: Berth, ada: Api) -> str:
    """A workspace of ada that has answered."""
    made = ada.create("files", "tiny")["id"]
    ada.wait(made, "running")
    assert berth.enter(made, berth.tokens["ada"]) == 200
    return str(made)


def test_workspace_is_reachable_with_any_mode_of_parent_folders(berth: Berth, closed: Path) -> None:
    """Closing a parent folder later, as test runs do, does not affect the instance."""
    with ada_of(berth) as ada:
        for mode in (0o755, 0o700, 0o711, 0o700):
            closed.chmod(mode)
            closed.parent.chmod(mode)
            made = entered(berth, ada)
            ada.act(made, "stop")
            ada.wait(made, "stopped", limit_s=40)
    assert httpx.get(f"{berth.url}/healthz", timeout=20).status_code == 200


@pytest.mark.parametrize("name", sorted(CONFINED | {"front-door", "nodes-door"}))
def test_killed_service_restarts_without_rights(berth: Berth, name: str) -> None:
    before = berth.services()[name]
    os.kill(before["pid"], signal.SIGKILL)

    def again() -> dict[str, Any] | None:
        row = berth.services()[name]
        return row if row["state"] == "running" and row["pid"] != before["pid"] else None

    row = eventually(again, limit_s=60, what=f"{name} runs again")
    user = str(DOORS_UID if name in DOORS else SERVICES_UID)
    # The existence of a socket does not show its creator.
    eventually(lambda: status_of(row["pid"])["Uid"] == [user] * 4, limit_s=20, what="it has no rights")
    eventually(
        lambda: httpx.get(f"{berth.url}/healthz", timeout=20).status_code == 200,
        limit_s=60,
        what="all is well",
    )


def uids(berth: Berth) -> set[str]:
    """Return the UIDs of the services and the front door."""
    names = CONFINED | {"front-door"}
    return {status_of(row["pid"])["Uid"][0] for name, row in berth.services().items() if name in names}


def test_switch_to_own_accounts_and_back_keeps_a_running_workspace(tmp_path: Path) -> None:
    """Switching services from root to their own accounts and back keeps workspaces and database."""
    berth = Berth(tmp_path, environment=None, BERTH_SERVICES_UID="0")
    try:
        berth.start()
        berth.populate()
        assert uids(berth) == {"0"}
        with ada_of(berth) as ada:
            made = entered(berth, ada)
        (app,) = berth.instance.local_dir.glob("ws-*/app.*.sock")
        assert owned(app) == (0, 0, 0o700) and owned(app.parent) == owned(app.parent.parent) == (0, 0, 0o700)
        for services, doors in (("199997", "199996"), ("0", "0")):
            berth.down_keeping_workspaces()
            berth.environ["BERTH_SERVICES_UID"] = services
            # UID 0 for the services applies to the doors, too.
            berth.environ["BERTH_DOORS_UID"] = "" if doors == "0" else doors
            berth.start()
            assert uids(berth) == {services, doors}
            for path in (app.parent, app.parent.parent):
                assert owned(path) == (0, int(doors), 0o700 if doors == "0" else 0o710)
            assert owned(app) == (0, int(doors), 0o600 if doors == "0" else 0o660)
            with ada_of(berth) as ada:
                assert ada.workspace(made)["state"] == "running"
            eventually(
                lambda: berth.enter(made, berth.tokens["ada"]) == 200,
                limit_s=30,
                what="the workspace answers",
            )
        berth.down()
    finally:
        berth.end()


def test_services_run_as_root_with_a_warning_if_confinement_fails(tmp_path: Path) -> None:
    closed = tmp_path / "breached"
    closed.write_text("")
    closed.chmod(0o600)
    berth = Berth(tmp_path, environment=None, BERTH_BREACHED_PASSWORDS_FILE=str(closed))
    try:
        berth.start()
        (line,) = [line for line in berth.lines if "run as root" in line]
        assert f"{closed} cannot be used by user {SERVICES_UID}" in line and "BERTH_SERVICES_UID=0" in line
        assert uids(berth) == {"0"}
        berth.down()
    finally:
        berth.end()
