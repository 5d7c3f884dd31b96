"""deploy/systemd: the processes of compose.yaml with equal confinement, accepted by systemd."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from provisioning.service.environ import ROOT
from tests.embedded.test_deploy import CONTROL_PLANE, volumes_of

FOLDER = ROOT / "deploy" / "systemd"
PROGRAMS = "/opt/berth/.venv/bin/"
STATE = "/var/lib/berth/"
# PostgreSQL is Debian's; the unit of the node is written by `berth node join`.
ELSEWHERE = {"postgres", "node"}
# Part of the image or in its memory; here they are folders.
COMPANION_SUFFIXES = {"web": {"static:ro"}, "migrate": {"static"}, "render": {"logs", "environments"}}
Unit = dict[str, list[str]]


def read(path: Path) -> Unit:
    """The lines of a unit by name."""
    found: Unit = {}
    for line in path.read_text().splitlines():
        name, equals, value = line.partition("=")
        if equals and not line.startswith("#"):
            found.setdefault(name, []).append(value)
    return found


def assignments(path: Path) -> dict[str, str]:
    return dict(re.findall(r"^(\w+)=(.*)$", path.read_text(), flags=re.MULTILINE))


@pytest.fixture(scope="module")
def units() -> dict[str, Unit]:
    return {path.stem.removeprefix("berth-"): read(path) for path in FOLDER.glob("berth-*.service")}


@pytest.fixture(scope="module")
def compose() -> dict[str, Any]:
    services: dict[str, Any] = yaml.safe_load((ROOT / "compose.yaml").read_text())["services"]
    return {name: service for name, service in services.items() if name not in ELSEWHERE}


def command_of(name: str, service: dict[str, Any]) -> list[str]:
    """The command of a container, as words."""
    if name == "redis":
        return ["python", "-m", "portal.embedded.redis_server", *service["command"]]
    found = service.get("command")
    if found is None:
        (line,) = re.findall(r"^CMD (.*)$", (ROOT / "Dockerfile").read_text(), flags=re.MULTILINE)
        found = yaml.safe_load(line)
    if found[:2] == ["sh", "-c"]:
        found = shlex.split(found[2].removeprefix("exec "))
    return [re.sub(r"\$\{\w+:-([^}]*)\}", r"\1", word) for word in found]


def test_every_process_has_a_unit(units: dict[str, Unit], compose: dict[str, Any]) -> None:
    assert set(units) == set(compose)
    for name, unit in units.items():
        assert unit["WantedBy"] == unit["PartOf"] == ["berth.target"], name


def test_unit_runs_the_command_of_the_container(units: dict[str, Unit], compose: dict[str, Any]) -> None:
    known = assignments(FOLDER / "berth.env.example")
    for name, unit in units.items():
        run = []
        for line in unit["ExecStart"]:
            assert line.startswith(PROGRAMS), name
            filled = re.sub(r"\$\{(\w+)\}", lambda found: known[found[1]], line.replace(PROGRAMS, ""))
            run.append(filled.replace(f"control@{known['BERTH_NODE_NAME']}", "control@$$BERTH_NODE_NAME"))
        expected = " ".join(command_of(name, compose[name]))
        # A script's first line names its environment's folder, which services may not see.
        expected = re.sub(r"^(celery|uvicorn) ", r"python -m \1 ", expected)
        if name == "migrate":
            # The image contains the static files.
            assert run.pop() == "python manage.py collectstatic --noinput --verbosity 0"
        assert " && ".join(run) == expected, name


def test_front_door_starts_after_its_upstreams_are_ready(units: dict[str, Unit]) -> None:
    """It also stops first, since systemd stops in reverse order."""
    (after,) = (line for line in units["front-door"]["After"] if "berth-web" in line)
    assert {"berth-web.service", "berth-gateway.service"} <= set(after.split())
    # Units of type `exec` count as started before their program answers.
    assert units["web"]["Type"] == ["notify"]
    assert units["gateway"]["ExecStartPost"] == [
        f"{PROGRAMS}python -m portal.embedded.ready ${{BERTH_GATEWAY_PORT}}"
    ]


def test_unit_sees_the_folders_of_the_container(units: dict[str, Unit], compose: dict[str, Any]) -> None:
    for name, unit in units.items():
        assert unit["TemporaryFileSystem"] == ["/var/lib/berth:ro"], name
        seen = {path.removeprefix(STATE) for path in unit.get("BindPaths", [])}
        seen |= {path.removeprefix(STATE) + ":ro" for path in unit.get("BindReadOnlyPaths", [])}
        # Of `run`, which is one volume there, a server sees its own files.
        seen = {"run:ro" if path.startswith("run/") else path for path in seen}
        expected = {path.removeprefix(STATE) for path in volumes_of(compose[name]).values()}
        assert seen - COMPANION_SUFFIXES.get(name, set()) == expected, name


def test_only_the_control_plane_gets_secrets(units: dict[str, Unit]) -> None:
    for name, unit in units.items():
        secret = "/etc/berth/secrets.env" in unit["EnvironmentFile"]
        assert secret == (name in CONTROL_PLANE | {"render"}), name
        assert (unit["User"] == ["berth"]) == secret, "no other user may look into its processes"
    example = (FOLDER / "berth.env.example").read_text()
    assert not re.findall(r"^\w*(?:PASSWORD|SECRET|_KEY)\w*=", example, flags=re.MULTILINE)


def test_all_units_are_sandboxed(units: dict[str, Unit]) -> None:
    for name, unit in units.items():
        for line in ("NoNewPrivileges", "PrivateDevices", "PrivateTmp", "RestrictNamespaces"):
            assert unit[line] == ["true"], (name, line)
        assert unit["CapabilityBoundingSet"] == [""] and unit["ProtectSystem"] == ["strict"], name
        assert unit["SystemCallFilter"] == ["@system-service"] and unit["UMask"] == ["0077"], name
        if unit["Type"] != ["oneshot"]:
            assert unit["Restart"] == ["always"] and unit["StartLimitIntervalSec"] == ["0"], name


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="there is no systemd-analyze")
def test_systemd_accepts_every_line(tmp_path: Path) -> None:
    for path in FOLDER.glob("berth*"):
        text = path.read_text().replace(PROGRAMS, f"{Path(sys.prefix) / 'bin'}/")
        (tmp_path / path.name).write_text(re.sub(r"^Documentation=.*\n", "", text, flags=re.MULTILINE))
    files = sorted(str(path) for path in tmp_path.glob("berth*") if path.suffix in {".service", ".target"})
    argv = ["systemd-analyze", "verify", "--man=no", *files]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=60)
    mine = [line for line in (done.stdout + done.stderr).splitlines() if "berth" in line]
    assert not mine
    web = tmp_path / "berth-web.service"
    web.write_text(web.read_text().replace("Type=notify", "Type=notify\nTypo=yes"))
    done = subprocess.run(argv, capture_output=True, text=True, timeout=60)
    assert "Typo" in done.stderr, "it looks at these files"
