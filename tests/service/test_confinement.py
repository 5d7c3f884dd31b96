"""The file system view and permissions of a service without rights."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from provisioning.service.confinement import ServiceNeeds, plan, topmost
from provisioning.service.supervisor import LAUNCHER

UID = 199_998
root_only = pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")


@pytest.mark.parametrize(
    ("path", "above"),
    [
        ("/root/berth/portal", "/root"),
        ("/tmp/pytest-of-root/pytest-1/home/database", "/tmp/pytest-of-root"),
        ("/home/ada/berth", "/home/ada"),
        ("/var/lib/berth/database", "/var/lib/berth"),
        ("/data/berth", "/data"),
        # Directly below a system folder there is nothing to hide.
        ("/opt/berth", None),
        ("/usr/lib/python3", None),
        ("/dev/shm/berth-0-1", None),
    ],
)
def test_topmost_folder_outside_the_system(path: str, above: str | None) -> None:
    assert topmost(Path(path)) == (None if above is None else Path(above))


def test_folders_are_hidden_for_any_mode(tmp_path: Path) -> None:
    (tmp_path / "outer" / "program").mkdir(parents=True)
    needs = ServiceNeeds(reads=(tmp_path / "outer" / "program",))
    plans = set()
    for mode in (0o755, 0o700):
        (tmp_path / "outer").chmod(mode)
        plans.add(plan(UID, needs))
    (said,) = map(json.loads, plans)
    assert said["covers"] == [str(topmost(tmp_path / "outer"))]


def test_data_within_the_program_is_hidden_and_homes_are_not_visible(tmp_path: Path) -> None:
    """As in a checkout, with `var` inside the visible folder."""
    program, home = tmp_path / "program", tmp_path / "program" / "var"
    for folder in (home / "database", home / "homes", tmp_path / "elsewhere"):
        folder.mkdir(parents=True)
    needs = ServiceNeeds(
        reads=(program, program / "portal"),
        writes=(home / "database",),
        covered=(home, home / "homes", tmp_path / "elsewhere"),
    )
    said = json.loads(plan(UID, needs))
    # Folders below a hidden one need no entry.
    assert said["covers"] == sorted([str(topmost(program)), str(home)])
    assert said["binds"] == [[str(program), False], [str(home / "database"), True]]


def test_links_in_needed_paths_are_available(tmp_path: Path) -> None:
    (tmp_path / "python-3.11.7" / "bin").mkdir(parents=True)
    (tmp_path / "python-3.11").symlink_to("python-3.11.7")
    said = json.loads(plan(UID, ServiceNeeds(reads=(tmp_path / "python-3.11" / "bin",))))
    assert said["links"] == [[str(tmp_path / "python-3.11"), "python-3.11.7"]]
    assert said["binds"] == [[str(tmp_path / "python-3.11.7" / "bin"), False]]


def test_link_loops_are_an_error(tmp_path: Path) -> None:
    (tmp_path / "one").symlink_to("two")
    (tmp_path / "two").symlink_to("one")
    with pytest.raises(OSError, match="too many symbolic links"):
        plan(UID, ServiceNeeds(reads=(tmp_path / "one",)))


LOOK = """
import json, os, sys
KEYS = ('Uid', 'Gid', 'Groups', 'CapEff', 'CapBnd', 'NoNewPrivs')
def tried(act, *arguments):
    try:
        return act(*arguments) is None or True
    except OSError as error:
        return error.strerror
home = sys.argv[1]
status = dict(line.split(':', 1) for line in open('/proc/self/status'))
print(json.dumps({
    'status': {key: status[key].split() for key in KEYS},
    'names': sorted(os.listdir(home)),
    'secret': open(home + '/secrets/ours').read(),
    'secrets': os.listdir(home + '/secrets'),
    'write': tried(lambda: open(home + '/database/new', 'w').close()),
    'beside': tried(lambda: open(home + '/new', 'w').close()),
    'change': tried(lambda: open(home + '/secrets/ours', 'w').close()),
    'program': tried(lambda: open(home + '/program/new', 'w').close()),
    'mask': os.umask(0),
    'signal': tried(os.kill, os.getppid(), 0),
    'root': tried(os.setuid, 0),
}))
"""


@pytest.fixture
def home(tmp_path: Path) -> Path:
    for name in ("database", "secrets", "program", "homes"):
        (tmp_path / name).mkdir(mode=0o700)
    for name in ("ours", "theirs"):
        (tmp_path / "secrets" / name).write_text(f"{name} is secret")
        (tmp_path / "secrets" / name).chmod(0o600)
    (tmp_path / "program").chmod(0o755)
    return tmp_path


def launched(confinement: str, *argv: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [
            sys.executable, "-I", "-S", str(LAUNCHER), str(os.getpid()), str(int(signal.SIGTERM)), "-",
            confinement, *argv,
        ],
        capture_output=True,
        text=True,
        timeout=30,
        cwd="/",
        umask=0o077,
    )  # fmt: skip


def needs_of(home: Path) -> ServiceNeeds:
    return ServiceNeeds(
        reads=(Path(sys.base_prefix), Path(sys.executable), Path(sys.prefix), home / "program"),
        writes=(home / "database",),
        copies=(home / "secrets" / "ours",),
        covered=(home,),
    )


@root_only
def test_service_sees_needed_files_and_has_no_rights(home: Path) -> None:
    os.chown(home / "database", UID, UID)
    done = launched(plan(UID, needs_of(home)), sys.executable, "-I", "-S", "-c", LOOK, str(home))
    assert done.returncode == 0, done.stderr
    seen: dict[str, Any] = json.loads(done.stdout)
    assert seen.pop("status") == {
        "Uid": [str(UID)] * 4,
        "Gid": [str(UID)] * 4,
        "Groups": [],
        "CapEff": ["0" * 16],
        "CapBnd": ["0" * 16],
        "NoNewPrivs": ["1"],
    }
    assert seen == {
        "names": ["database", "program", "secrets"],
        "secret": "ours is secret",
        "secrets": ["ours"],
        "write": True,
        "beside": "Read-only file system",
        "change": seen["change"],
        "program": "Read-only file system",
        "mask": 0o077,
        "signal": "Operation not permitted",
        "root": "Operation not permitted",
    }
    assert seen["change"] in {"Read-only file system", "Permission denied"}
    # Outside, only its written files changed.
    assert (home / "database" / "new").stat().st_uid == UID
    assert (home / "secrets" / "ours").stat().st_uid == 0
    assert sorted(path.name for path in home.iterdir()) == ["database", "homes", "program", "secrets"]


@root_only
def test_service_keeps_only_the_right_to_ports_below_1024(home: Path) -> None:
    look = """
import json, os, socket
try:
    os.chown('/proc/self/cwd', 0, 0)
    said = 'done'
except OSError as error:
    said = error.strerror
with socket.socket() as listener:
    listener.bind(('127.0.0.179', 79))
print(json.dumps([said, *(line.split()[1] for line in open('/proc/self/status') if line.startswith('Cap'))]))
"""
    argv = (sys.executable, "-I", "-S", "-c", look)
    os.chown(home / "database", UID, UID)
    done = launched(plan(UID, needs_of(home), groups=(UID - 1,), capabilities=(10,)), *argv)
    assert done.returncode == 0, done.stderr
    only = f"{1 << 10:016x}"
    assert json.loads(done.stdout) == ["Operation not permitted", *[only] * 5]
    assert launched(plan(UID, needs_of(home)), *argv).returncode == 1


@root_only
def test_link_in_place_of_a_written_folder_is_not_followed(home: Path) -> None:
    confinement = plan(UID, needs_of(home))
    (home / "database").rmdir()
    (home / "database").symlink_to("/etc")
    done = launched(confinement, sys.executable, "-I", "-S", "-c", "import os; print(os.getuid())")
    assert done.returncode != 0 and str(UID) not in done.stdout


@root_only
def test_missing_folder_is_reported(home: Path) -> None:
    confinement = plan(UID, needs_of(home))
    (home / "database").rmdir()
    done = launched(confinement, "/bin/true")
    assert done.returncode == 1
    assert "could not confine /bin/true" in done.stderr and "No such file" in done.stderr
