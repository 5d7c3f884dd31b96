"""The node as a systemd service, with a fake systemctl."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from provisioning.host import unit
from provisioning.host.folder import NodeFolder
from provisioning.service import instance_lock
from tests.host.conftest import Berth
from tests.host.portal_doors import Doors


@pytest.fixture
def systemd(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, berth: Berth) -> Path:
    """A machine with a fake systemd; the file records the calls of `systemctl`."""
    asked = tmp_path / "asked"
    program = tmp_path / "bin" / "systemctl"
    program.parent.mkdir()
    program.write_text(
        '#!/bin/sh\n[ "$1" = --version ] && { echo "systemd $SYSTEMD (made up)"; exit; }\n'
        f'echo "$@" >> {asked}\ncase "$*" in *"$BREAKS"*) echo no >&2; exit 5;; esac\n'
    )
    program.chmod(0o755)
    booted = tmp_path / "systemd"
    booted.mkdir()
    monkeypatch.setattr(unit, "BOOTED", booted)
    monkeypatch.setattr(unit, "SYSTEM_UNITS", tmp_path / "etc")
    monkeypatch.setenv("PATH", f"{program.parent}:{os.environ['PATH']}")
    monkeypatch.setenv("BREAKS", "nothing of this")
    monkeypatch.setenv("SYSTEMD", "255")
    monkeypatch.setattr("provisioning.host.joining.CONNECTED_LIMIT_S", 0)
    return asked


def test_root_gets_a_system_unit(
    join: Berth, berth: Berth, systemd: Path, folder: NodeFolder, tmp_path: Path, doors: Doors, monkeypatch
) -> None:
    monkeypatch.setattr(unit.os, "geteuid", lambda: 0)
    done = join()
    assert done.code == 0 and "berth node status" in done.out
    path = tmp_path / "etc" / "berth-node.service"
    text = path.read_text()
    assert f'"{folder.home}"' in text and "node run --home" in text
    for line in ("KillMode=process", "Delegate=cpu memory pids", "DelegateSubgroup=worker", "Restart=always"):
        assert line in text.splitlines()
    assert doors.token not in text and doors.passwords[0] not in text
    assert systemd.read_text().splitlines() == [
        "daemon-reload", "enable berth-node.service", "restart berth-node.service",
    ]  # fmt: skip
    systemd.unlink()
    assert berth("leave").code == 0
    assert not path.exists()
    assert systemd.read_text().splitlines() == ["disable --now berth-node.service", "daemon-reload"]


@pytest.mark.parametrize("version", ["252", "253", "254", "255", "none"])
def test_control_groups_are_delegated_if_systemd_supports_it(
    join: Berth, systemd: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: str
) -> None:
    monkeypatch.setattr(unit.os, "geteuid", lambda: 0)
    monkeypatch.setenv("SYSTEMD", version)
    assert join().code == 0
    lines = (tmp_path / "etc" / "berth-node.service").read_text().splitlines()
    knows = version in {"254", "255"}
    assert ("DelegateSubgroup=worker" in lines, "Delegate=cpu memory pids" in lines) == (knows, knows)
    assert "TasksMax=infinity" in lines and "OOMPolicy=continue" in lines


def test_user_unit_is_written_with_a_hint_to_enable_lingering(
    join: Berth, systemd: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(unit.os, "geteuid", lambda: 1000)
    monkeypatch.setattr(unit, "lingers", lambda: False)
    monkeypatch.setattr(unit, "_user", lambda: "ada")
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    done = join()
    assert done.code == 0 and "sudo loginctl enable-linger ada" in done.out
    path = tmp_path / "config" / "systemd" / "user" / "berth-node.service"
    text = path.read_text()
    assert "WantedBy=default.target" in text
    assert "CapabilityBoundingSet" not in text and "network-online" not in text, (
        "a user's systemd has neither"
    )
    assert systemd.read_text().splitlines()[0] == "--user daemon-reload"


def test_missing_user_session_is_reported_with_the_command(
    join: Berth, systemd: Path, folder: NodeFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(unit.os, "geteuid", lambda: 1000)
    monkeypatch.delenv("XDG_RUNTIME_DIR", raising=False)
    done = join()
    assert done.code == 0 and "XDG_RUNTIME_DIR is not set" in done.out and "node run --home" in done.out
    assert not systemd.exists()


def test_failed_service_is_reported_and_the_machine_has_joined(
    join: Berth, systemd: Path, folder: NodeFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BREAKS", "restart")
    done = join()
    assert done.code == 1
    assert "`systemctl restart berth-node.service` failed: no" in done.err and "journalctl" in done.err
    assert folder.state_file.exists() and not instance_lock.is_held(folder.run)


def test_no_unit_is_written_unless_requested(join: Berth, systemd: Path, tmp_path: Path) -> None:
    done = join("--no-service")
    assert done.code == 0 and "node run --home" in done.out
    assert not (tmp_path / "etc").exists() and not systemd.exists()
