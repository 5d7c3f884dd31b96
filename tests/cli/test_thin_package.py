"""berth-cli: the command alone, in an environment without Django and without the portal."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest

from portal.cli.version import version
from provisioning.service.environ import ROOT
from tests.embedded.empty_environment import license_of, with_wheel_alone

NEEDED = (
    "httpx",
    "httpcore",
    "h11",
    "anyio",
    "idna",
    "certifi",
    "sniffio",
    "typing_extensions",
    "websockets",
)
"""httpx and websockets, and what these need."""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built from a copy, so that the checkout stays clean."""
    copy = tmp_path_factory.mktemp("source")
    ignored = shutil.ignore_patterns("__pycache__")
    for name in ("portal/cli", "packages/berth-cli"):
        shutil.copytree(ROOT / name, copy / name, ignore=ignored)
    shutil.copy(ROOT / "pyproject.toml", copy)
    subprocess.run(
        [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "--no-build-isolation", "-w", "dist",
         "packages/berth-cli"],
        cwd=copy, check=True, timeout=300,
    )  # fmt: skip
    (built,) = (copy / "dist").glob("berth_cli-*.whl")
    return built


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An environment with the wheel and only its dependencies."""
    environment = tmp_path_factory.mktemp("installed")
    site = with_wheel_alone(environment, wheel)
    for name in NEEDED:
        spec = importlib.util.find_spec(name)
        if spec is not None and spec.origin:
            there = Path(spec.origin)
            there = there.parent if there.name == "__init__.py" else there
            (site / there.name).symlink_to(there)
    return environment / "bin"


def ran(installed: Path, *command: str, **variables: str) -> subprocess.CompletedProcess[str]:
    environ = {"PATH": os.environ["PATH"], "HOME": str(installed.parent), **variables}
    return subprocess.run(
        [installed / command[0], *command[1:]],
        env=environ, cwd=installed, capture_output=True, text=True, timeout=120,
    )  # fmt: skip


def test_wheel_contains_only_the_command_line(wheel: Path) -> None:
    held = {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}
    assert held == {str(path.relative_to(ROOT)) for path in (ROOT / "portal" / "cli").rglob("*.py")}
    assert license_of(wheel) == ("Apache-2.0", (ROOT / "LICENSE").read_text())


def test_dependencies_are_a_subset_of_the_portals() -> None:
    whole = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]
    thin = tomllib.loads((ROOT / "packages/berth-cli/pyproject.toml").read_text())["project"]["dependencies"]
    assert set(thin) <= set(whole) and len(thin) == 2


def test_command_runs_without_the_portal(installed: Path) -> None:
    assert ran(installed, "berth", "--version").stdout == f"berth {version()}\n"
    every = "import importlib, pkgutil, portal.cli as cli\n"
    every += "for each in pkgutil.walk_packages(cli.__path__, 'portal.cli.'):\n"
    every += "    if each.name != 'portal.cli.node': importlib.import_module(each.name)"
    done = ran(installed, "python", "-c", every)
    assert done.returncode == 0, done.stderr
    asked = ran(installed, "berth", "ls", BERTH_URL="http://127.0.0.1:9", BERTH_TOKEN="berth_x")
    assert (asked.returncode, "does not answer" in asked.stderr) == (4, True), asked.stderr


@pytest.mark.parametrize("command", [("gpu", "check"), ("node", "status")])
def test_commands_that_need_the_portal_name_its_package(installed: Path, command: tuple[str, ...]) -> None:
    done = ran(installed, "berth", *command)
    assert done.returncode != 0
    assert "Traceback" not in done.stderr and "the package berth" in done.stderr
