"""The node worker of `make up` in a systemd user scope, with a fake `systemd-run`."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from provisioning.drivers.local import delegation
from provisioning.service import user_scope


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A cgroup v2 machine with an ordinary user. Returns variables and the group folder."""
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    monkeypatch.setattr(delegation, "own_paths", lambda: {"": "/user.slice/session-2.scope"})
    monkeypatch.setattr(os, "access", lambda *_: False)
    root = tmp_path / "cgroup"
    (root / "user.slice" / "session-2.scope").mkdir(parents=True)
    (root / "cgroup.controllers").write_text("cpu memory pids\n")
    monkeypatch.setattr(delegation, "delegated", lambda group: False)
    return {"PATH": f"{tmp_path}:/usr/bin:/bin", "XDG_RUNTIME_DIR": str(tmp_path)}, root


def systemd_run(folder: Path, script: str) -> Path:
    path = folder / "systemd-run"
    path.write_text(f'#!/bin/sh\necho "$@" >> {folder}/calls\n{script}\n')
    path.chmod(0o755)
    return path


@pytest.fixture(autouse=True)
def found(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """`os.access` is replaced, so programs are found by existence."""
    monkeypatch.setattr(
        user_scope.shutil, "which", lambda name, path: next(
            (str(each) for each in [tmp_path / name] if each.exists()), None
        )
    )  # fmt: skip


def test_worker_gets_a_group_in_a_systemd_session(machine, tmp_path):
    environ, root = machine
    program = systemd_run(tmp_path, "exit 0")
    prefix = user_scope.prefix(environ, root=root)
    assert prefix[0] == str(program)
    assert {"--user", "--scope", "--property=Delegate=yes"} < set(prefix)
    assert prefix[-1] == "--"
    assert (tmp_path / "calls").read_text().endswith("-- true\n"), "it was tried out"


def test_user_without_a_session_starts_without_scope(machine, tmp_path):
    environ, root = machine
    systemd_run(tmp_path, "echo 'Failed to connect to bus' >&2; exit 1")
    assert user_scope.prefix(environ, root=root) == ()


def test_unneeded_features_are_not_probed(machine, tmp_path, monkeypatch):
    environ, root = machine
    systemd_run(tmp_path, "exit 0")
    assert user_scope.prefix({**environ, "XDG_RUNTIME_DIR": ""}, root=root) == ()
    assert user_scope.prefix(environ, root=tmp_path / "version-1") == ()
    with monkeypatch.context() as patch:
        patch.setattr(delegation, "delegated", lambda group: True)
        assert user_scope.prefix(environ, root=root) == ()
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    assert user_scope.prefix(environ, root=root) == ()
    assert not (tmp_path / "calls").exists()


def test_machine_without_systemd_starts_without_scope(machine):
    environ, root = machine
    assert user_scope.prefix(environ, root=root) == ()
