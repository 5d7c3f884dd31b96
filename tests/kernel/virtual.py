"""Starts the virtual machines in which the other files here run: `make test-kernel`.

File names here do not match pytest's pattern, so that only that command collects them.
"""

from __future__ import annotations

import os
import shlex
import sys
from pathlib import Path

import pytest

from tests import virtual_machine

INSIDE = ("-m", "pytest", "-q", "--color=no", "--noconftest", "-p", "no:django", "-p", "no:xdist")
OPTIONS = ("-p", "no:cacheprovider", "-o", "addopts=", "-o", "filterwarnings=")
BASE = "--basetemp=/var/tmp/berth-tests"
# As systemd delegates a group to a user service (`Delegate=yes`).
ORDINARY = """
set -e
echo "+cpu +memory +pids" > /sys/fs/cgroup/cgroup.subtree_control
group=/sys/fs/cgroup/berth.service
mkdir $group
chown nobody $group $group/cgroup.procs $group/cgroup.subtree_control $group/cgroup.threads
install -d -o nobody -m 0700 /var/berth-home
echo $$ > $group/cgroup.procs
exec setpriv --reuid=65534 --regid=65534 --clear-groups env HOME=/var/berth-home "$@"
"""
LIMIT_S = 1800


def closed_above(*paths: Path) -> list[Path]:
    """The folders above these paths, and above this Python, that not everyone may enter."""
    folders = {above for path in (*paths, Path(sys.base_prefix)) for above in path.resolve().parents}
    return sorted(path for path in folders if not path.stat().st_mode & 0o001)


@pytest.mark.parametrize("name", ["quotas", "groups", "groups-ordinary", "shortages"])
def test_kernel_tests_pass_in_a_virtual_machine(name: str, tmp_path: Path) -> None:
    file, _, ordinary = name.partition("-")
    if os.geteuid() != 0:
        pytest.skip("only root may let a virtual machine read all files of this one")
    command = [sys.executable, "-B", *INSIDE, *OPTIONS, BASE, f"tests/kernel/{file}.py"]
    if ordinary:
        open_up = [
            f"chmod o+x {shlex.quote(str(path))}" for path in closed_above(Path.cwd(), Path(sys.prefix))
        ]
        command = ["sh", "-c", "\n".join([*open_up, ORDINARY]), "sh", *command]
    ran = virtual_machine.run(tmp_path, command, disks={"vda": 512, "vdb": 512}, limit_s=LIMIT_S)
    print(ran.output)
    assert ran.returncode == 0, ran.output
