from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from portal.cli.main import main
from provisioning.host import abilities, unit
from provisioning.host.abilities import AbilityResult
from provisioning.host.folder import NodeFolder
from tests.embedded.conftest import free_ports
from tests.host.authority import Authority
from tests.host.portal_doors import Doors


@pytest.fixture
def authority() -> Authority:
    return Authority()


@pytest.fixture
def doors(tmp_path: Path, authority: Authority) -> Iterator[Doors]:
    portal_doors = Doors(tmp_path / "doors", authority)
    yield portal_doors
    portal_doors.close()


@dataclass(frozen=True, slots=True)
class Ran:
    """The output of a command and its exit code."""

    code: int
    out: str
    err: str


Berth = Callable[..., Ran]


@pytest.fixture
def folder(tmp_path: Path) -> NodeFolder:
    return NodeFolder((tmp_path / "node home").resolve())


@pytest.fixture
def berth(
    folder: NodeFolder, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> Berth:
    """`berth node …` in this process, on a machine without systemd, in its own folder."""
    for name in list(os.environ):
        if name.startswith("BERTH_"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("BERTH_HOME", str(folder.home))
    monkeypatch.setenv("BERTH_SKIP_NOTEBOOK", "1")
    monkeypatch.setattr(unit, "BOOTED", tmp_path / "no-systemd")
    # Has its own tests; it takes seconds.
    monkeypatch.setattr(abilities, "probe", lambda *_, **__: (AbilityResult("Sandbox", True, "bubblewrap"),))

    def run(*arguments: str) -> Ran:
        code = main(["node", *arguments])
        output = capsys.readouterr()
        return Ran(code, output.out, output.err)

    return run


@pytest.fixture
def port() -> str:
    return str(free_ports(1)[0])


@pytest.fixture
def join(berth: Berth, doors: Doors, port: str) -> Berth:
    """`berth node join` as b, at the tests' doors."""

    def run(*arguments: str) -> Ran:
        return berth(
            "join", doors.url, "--token", doors.token, "--name", "b", "--gateway-port", port, *arguments
        )

    return run
