"""Starts the virtual machines in which the other files here are run: `make test-kernel`.

No file here is named as pytest's are, so that nothing but that command finds them.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from tests import virtual_machine

INSIDE = ("-m", "pytest", "-q", "--color=no", "--noconftest", "-p", "no:django", "-p", "no:xdist")
OPTIONS = ("-p", "no:cacheprovider", "-o", "addopts=", "-o", "filterwarnings=", "--basetemp=/var/berth-tests")
LIMIT_S = 1800


@pytest.mark.parametrize("name", ["quotas", "groups"])
def test_under_another_kernel(name: str, tmp_path: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root may let a virtual machine read all files of this one")
    command = [sys.executable, "-B", *INSIDE, *OPTIONS, f"tests/kernel/{name}.py"]
    ran = virtual_machine.run(tmp_path, command, disks={"vda": 512, "vdb": 512}, limit_s=LIMIT_S)
    print(ran.output)
    assert ran.returncode == 0, ran.output
