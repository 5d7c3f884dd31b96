"""Where root starts Berth: what somebody may do who has got into one of its services.

A process of the services' user, in what the web processes see of the file system, is what is let loose here.
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
from provisioning.service.environ import ROOT
from tests import instance
from tests.instance import Api, Berth, eventually

CONFINED = {"redis", "web", "gateway", "control", "beat"}
pytestmark = [
    pytest.mark.skipif(os.geteuid() != 0, reason="only root can give services a user of their own"),
    pytest.mark.skipif(shutil.which("nsenter") is None, reason="needs nsenter (util-linux)"),
]


@pytest.fixture(scope="module")
def closed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that nobody else enters, as `/root` is."""
    made = tmp_path_factory.mktemp("services")
    made.chmod(0o700)
    return made


@pytest.fixture(scope="module")
def berth(closed: Path) -> Iterator[Berth]:
    environment = instance.notebook_environment()
    with instance.running(closed, environment=environment) as found:
        yield found


def status_of(pid: int) -> dict[str, list[str]]:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return {key: value.split() for key, _, value in (line.partition(":") for line in lines)}


def let_loose(berth: Berth, service: str, code: str, **given: Any) -> Any:
    """What a program says that runs as the service's user and sees what it sees; `given` are its names."""
    pid = berth.services()[service]["pid"]
    names = "\n".join(f"{name} = {value!r}" for name, value in given.items())
    done = subprocess.run(
        [
            "nsenter", f"--target={pid}", "--mount", f"--setuid={SERVICES_UID}", f"--setgid={SERVICES_UID}",
            sys.executable, "-I", "-S", "-c", f"{TRIED}\n{names}\n{code}",
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
import json, os, signal
def tried(act, *arguments):
    try:
        act(*arguments)
    except OSError as error:
        return type(error).__name__
    return 'done'
def written(path):
    with open(path, 'ab'):
        pass
"""


def test_services_have_no_rights(berth: Berth) -> None:
    assert not any("run as root" in line for line in berth.lines)
    for name, row in berth.services().items():
        status = status_of(row["pid"])
        if name in CONFINED:
            assert status["Uid"] == status["Gid"] == [str(SERVICES_UID)] * 4, name
            assert status["Groups"] == [] and status["NoNewPrivs"] == ["1"], name
            for kind in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"):
                assert status[kind] == ["0" * 16], (name, kind)
        else:
            assert status["Uid"] == ["0"] * 4, name


def test_so_have_their_children(berth: Berth) -> None:
    for name in ("web", "control"):
        pid = berth.services()[name]["pid"]
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        assert children, name
        for child in children:
            assert status_of(int(child))["Uid"] == [str(SERVICES_UID)] * 4


def test_what_is_the_nodes_and_other_peoples_is_not_seen(berth: Berth) -> None:
    homes = berth.home / "homes" / "lab" / "ben"
    homes.mkdir(parents=True, exist_ok=True)
    (homes / "note").write_text("ben's")
    paths = [
        homes / "note", berth.home / "secrets" / "node_key", berth.home / "secrets" / "redis_node",
        berth.home / "local", berth.home / "environments", berth.home / "run" / "redis.acl",
        berth.home / "run" / "front-door.json", berth.home / "logs" / "node.log", Path("/etc/shadow"),
        Path("/root/.ssh"), Path(f"/proc/{berth.services()['node']['pid']}/environ"),
    ]  # fmt: skip
    said = let_loose(
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


def test_each_service_sees_only_its_own(berth: Berth) -> None:
    assert seen_by(berth, "redis", berth.home) == {"redis", "run"}
    assert seen_by(berth, "redis", berth.home / "run") == {"redis.acl", "redis.conf"}
    of_the_portal = {"database", "keys", "secrets", "services", "static"}
    for name in ("gateway", "beat"):
        assert seen_by(berth, name, berth.home) == of_the_portal, name
    for name in ("web", "control"):
        assert seen_by(berth, name, berth.home) == of_the_portal | {"run"}, name
        assert seen_by(berth, name, berth.home / "run" / "tls") == {"authority.key", "authority.pem"}


def test_the_program_and_environments_cannot_be_changed(berth: Berth) -> None:
    """Or else root would run, at the next start, what they left there."""
    places = [ROOT / "portal", ROOT / "provisioning", Path(sys.prefix) / "lib", Path(sys.base_prefix), ROOT]
    files = [*(place / "planted.py" for place in places), ROOT / "portal" / "settings.py"]
    said = let_loose(
        berth,
        "web",
        "print(json.dumps({path: tried(written, path) for path in paths}))",
        paths=[str(path) for path in (*files, berth.home / "planted", berth.home / "static" / "planted")],
    )
    assert set(said.values()) <= {"OSError", "PermissionError"}, said


def test_the_database_is_not_replaced_by_a_link(berth: Berth) -> None:
    code = """
said = []
for end in ('', '-wal', '-shm'):
    said.append(tried(os.unlink, file + end))
    said.append(tried(os.rename, file + end, file + '.aside'))
said.append(tried(written, file))
print(json.dumps(said))
"""
    file = str(berth.home / "database" / "berth.sqlite3")
    assert let_loose(berth, "web", code, file=file) == ["PermissionError"] * 6 + ["done"]


def test_roots_processes_are_not_theirs(berth: Berth) -> None:
    pids = [berth.services()["node"]["pid"], berth.services()["front-door"]["pid"], os.getpid()]
    code = "print(json.dumps([tried(os.kill, pid, signal.SIGTERM) for pid in pids] + [tried(os.setuid, 0)]))"
    assert let_loose(berth, "web", code, pids=pids) == ["PermissionError"] * 4


@contextlib.contextmanager
def ada_of(berth: Berth) -> Iterator[Api]:
    ada = berth.api("ada")
    try:
        yield ada
    finally:
        ada.close()


def entered(berth: Berth, ada: Api) -> str:
    """A workspace of ada's that has answered."""
    made = ada.create("files", "tiny")["id"]
    ada.wait(made, "running")
    assert berth.enter(made, berth.tokens["ada"]) == 200
    return str(made)


def test_a_workspace_starts_and_answers_however_folders_above_are_opened_and_closed(
    berth: Berth, closed: Path
) -> None:
    """Whoever closes a folder above an instance later, as test runs do, takes nothing from it."""
    with ada_of(berth) as ada:
        for mode in (0o755, 0o700, 0o711, 0o700):
            closed.chmod(mode)
            closed.parent.chmod(mode)
            made = entered(berth, ada)
            ada.act(made, "stop")
            ada.wait(made, "stopped", limit_s=40)
    assert httpx.get(f"{berth.url}/healthz", timeout=20).status_code == 200


@pytest.mark.parametrize("name", sorted(CONFINED))
def test_a_service_that_is_killed_comes_back_without_rights(berth: Berth, name: str) -> None:
    before = berth.services()[name]
    os.kill(before["pid"], signal.SIGKILL)

    def again() -> dict[str, Any] | None:
        row = berth.services()[name]
        return row if row["state"] == "running" and row["pid"] != before["pid"] else None

    row = eventually(again, limit_s=60, what=f"{name} runs again")
    assert status_of(row["pid"])["Uid"] == [str(SERVICES_UID)] * 4
    eventually(
        lambda: httpx.get(f"{berth.url}/healthz", timeout=20).status_code == 200,
        limit_s=60,
        what="all is well",
    )


def uids(berth: Berth) -> set[str]:
    return {status_of(row["pid"])["Uid"][0] for name, row in berth.services().items() if name in CONFINED}


def test_there_and_back_with_a_workspace_running(tmp_path: Path) -> None:
    """An upgrade from services of root's, and the way back, keep workspaces and the database."""
    berth = Berth(tmp_path, environment=None, BERTH_SERVICES_UID="0")
    try:
        berth.start()
        berth.populate()
        assert uids(berth) == {"0"}
        with ada_of(berth) as ada:
            made = entered(berth, ada)
        for number, expected in (("199997", "199997"), ("0", "0")):
            berth.down_keeping_workspaces()
            berth.environ["BERTH_SERVICES_UID"] = number
            berth.start()
            assert uids(berth) == {expected}
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


def test_where_it_cannot_be_everything_runs_as_root_and_says_why(tmp_path: Path) -> None:
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
