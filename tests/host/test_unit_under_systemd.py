"""The unit written by `berth node join`, loaded and run by a real systemd."""

from __future__ import annotations

import contextlib
import json
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from provisioning.host import unit
from provisioning.host.folder import NodeFolder
from provisioning.service.environ import ROOT
from provisioning.types import LimitedResource
from tests.instance import eventually
from tests.provisioning.local.test_delegation import ROOTS
from tests.systemd_machine import SystemdMachine, machine

pytestmark = [pytest.mark.engine, pytest.mark.xdist_group("node-service")]


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="there is no systemd-analyze")
@pytest.mark.parametrize("user", [False, True])
def test_systemd_accepts_every_line(tmp_path: Path, folder: NodeFolder, user: bool, monkeypatch) -> None:
    program = shutil.which("systemctl")
    assert program is not None
    version = unit._version(program)
    assert version > 200
    path = tmp_path / unit.NAME
    path.write_text(unit.text(folder, "b", user=user, version=version))
    argv = ["systemd-analyze", *(["--user"] if user else []), "verify", "--man=no", str(path)]
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    done = subprocess.run(argv, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout + done.stderr) == (0, "")
    path.write_text(path.read_text().replace("KillMode=process", "KillMode=some"))
    done = subprocess.run(argv, capture_output=True, text=True, timeout=60)
    assert "kill mode" in done.stderr, "it looks at this file"


@pytest.fixture(scope="module")
def version_2(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[SystemdMachine, Path]]:
    """A machine with control groups v2 and `ada`, whose systemd runs; and a shared folder."""
    folder = tmp_path_factory.mktemp("version-2").resolve()
    shared = folder / "shared"
    shared.mkdir()
    shared.chmod(0o777)
    with machine(folder / "systemd", shared=[shared], version_2=True) as found:
        found.ask("useradd", "--create-home", "ada")
        found.ask("loginctl", "enable-linger", "ada")
        eventually(
            lambda: (
                found.run("systemctl", "--user", "is-active", "default.target", user="ada").returncode == 0
            ),
            limit_s=20,
            what="ada's systemd runs",
        )
        for path in (*shared.parents, *Path(sys.base_prefix).resolve().parents, *ROOT.parents):
            if path != Path("/") and not path.stat().st_mode & 0o001:
                found.ask("chmod", "o+x", str(path))  # in the machine's own memory
        yield found, shared


def give(found: SystemdMachine, *groups: str) -> None:
    """Enable the one available controller down to these groups."""
    root = next(path for path in ROOTS if (path / "cgroup.controllers").exists())
    with contextlib.suppress(OSError):
        (root / "cgroup.subtree_control").write_text("+hugetlb")
    for group in groups:
        place = Path("/sys/fs/cgroup")
        for part in ("", *filter(None, group.split("/"))):
            place = place / part
            done = found.run("sh", "-c", f"echo +hugetlb > {place}/cgroup.subtree_control")
            if done.returncode:
                pytest.skip(f"no controller of version 2 is free here: {done.stderr.strip()}")


def written(folder: Path, version: int, *, user: bool, file: Path) -> str:
    """The unit, with a program that sets limits like the worker."""
    node = NodeFolder(folder)
    text = unit.text(node, "b", user=user, version=version)
    run = f"ExecStart={sys.executable} -m tests.host.limited_worker {file}"
    return re.sub(r"^ExecStart=.*$", run, text, flags=re.MULTILINE)


def started(found: SystemdMachine, file: Path, *systemctl: str, user: str) -> dict:
    file.unlink(missing_ok=True)
    done = found.run("systemctl", *systemctl, unit.NAME, user=user)
    journal = ["journalctl", "--no-pager", "-n", "30", *(["--user"] if user else []), "-u", unit.NAME]
    assert done.returncode == 0, done.stderr + found.ask(*journal, user=user, check=False)
    return json.loads(eventually(lambda: file.exists() and file.read_text(), limit_s=20, what="it runs"))


@pytest.mark.parametrize("user", ["", "ada"])
def test_services_restart_while_limited_processes_keep_running(version_2, user: str) -> None:
    found, shared = version_2
    uid = found.ask("id", "-u", "ada").strip()
    give(found, f"user.slice/user-{uid}.slice/user@{uid}.service/app.slice" if user else "system.slice")
    path = Path(f"/home/ada/.config/systemd/user/{unit.NAME}" if user else f"/etc/systemd/system/{unit.NAME}")
    flags = ["--user"] if user else []
    file = shared / f"written-{user}"
    version = int(found.ask("systemctl", "--version").split()[1])
    text = written(shared, version, user=bool(user), file=file)
    (shared / "unit").write_text(text)
    found.ask("mkdir", "-p", str(path.parent), user=user)
    found.ask("cp", str(shared / "unit"), str(path), user=user)
    found.ask("systemctl", *flags, "daemon-reload", user=user)
    held = [started(found, file, *flags, verb, user=user) for verb in ("start", "restart")]
    found.ask("systemctl", *flags, "stop", unit.NAME, user=user)
    found.ask("systemctl", *flags, "daemon-reload", user=user)
    held.append(started(found, file, *flags, "start", user=user))
    assert len({each["held"] for each in held}) == 3
    for each in held:
        assert each["holds"] == len(LimitedResource), "limits can be given"
        now = found.ask("cat", f"/proc/{each['held']}/cgroup").strip().splitlines()[-1].removeprefix("0::")
        assert [f"/sys/fs/cgroup{now}"] == each["groups"], "it goes on, within its limits"
