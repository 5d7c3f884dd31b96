"""What the front door, with its own account, can access in folders owned by others."""

from __future__ import annotations

import os
import socket
import stat
from pathlib import Path

import pytest

from provisioning.drivers.local import door
from provisioning.drivers.local.state import WorkspaceDir, gateway_folder

UID = 199_996
pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root gives to others")


def owned(path: Path) -> tuple[int, int, int]:
    found = path.lstat()
    return found.st_uid, found.st_gid, stat.S_IMODE(found.st_mode)


def listening(path: Path) -> Path:
    folder = os.open(path.parent, os.O_PATH)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(f"/proc/self/fd/{folder}/{path.name}")
    os.close(folder)
    path.chmod(0o700)
    return path


@pytest.fixture
def base(tmp_path: Path) -> Path:
    """The folder of the local driver without a door: a workspace, a spare and a file server."""
    base = tmp_path / "local"
    gateway_folder(base)
    for name in ("ws-a", "files-b", ".spares/c", ".closed", ".uids"):
        (base / name).mkdir(mode=0o700, parents=True)
    (base / "ws-a" / "record.json").touch(mode=0o600)
    for name in ("ws-a/app.3.sock", "files-b/app.1.sock", "files-b/control.sock", ".spares/c/app.sock"):
        listening(base / name)
    base.chmod(0o700)
    return base


def test_only_sockets_are_opened_to_the_front_door(base: Path) -> None:
    before = {path: owned(path) for path in base.rglob("*")}
    door.open_to(base, UID)
    opened = {path: now for path in before if (now := owned(path)) != before[path]}
    folder, app = (0, UID, 0o710), (0, UID, 0o660)
    assert {str(path.relative_to(base)): now for path, now in opened.items()} == {
        "ws-a": folder, "files-b": folder, ".spares/c": folder,
        "ws-a/app.3.sock": app, "files-b/app.1.sock": app, ".spares/c/app.sock": app,
    }  # fmt: skip
    assert owned(base) == (0, UID, 0o710) and door.group_of(base) == UID
    door.open_to(base, 0)
    assert owned(base) == owned(base / "ws-a") == (0, 0, 0o700) and door.group_of(base) is None
    assert owned(base / "ws-a" / "app.3.sock") == (0, 0, 0o600)


def test_links_and_files_not_owned_by_root_are_unchanged(base: Path, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir(mode=0o700)
    listening(outside / "app.1.sock")
    (base / "ws-link").symlink_to(outside)
    (base / "ws-a" / "app.9.sock").symlink_to(outside / "app.1.sock")
    (base / "ws-theirs").mkdir(mode=0o700)
    os.chown(base / "ws-theirs", UID - 1, UID - 1)
    door.open_to(base, UID)
    assert owned(outside) == (0, 0, 0o700) and owned(outside / "app.1.sock") == (0, 0, 0o700)
    assert owned(base / "ws-theirs") == (UID - 1, UID - 1, 0o700)


def test_prepared_workspace_is_opened_like_its_parent_folder(base: Path) -> None:
    folder = WorkspaceDir(base, "ws-new")
    folder.prepare(door=door.group_of(base))
    assert owned(folder.path) == (0, 0, 0o700)
    door.open_to(base, UID)
    folder.prepare(door=door.group_of(base))
    assert owned(folder.path) == (0, UID, 0o710) and owned(folder.run) == (0, 0, 0o700)


def test_agent_socket_folder_is_the_one_mounted_in_sandboxes(base: Path, tmp_path: Path) -> None:
    shared, storage = gateway_folder(base), base / door.STORAGE
    shown = shared.stat().st_ino
    door.own_folders(base, UID)
    assert owned(shared) == (UID, UID, 0o711) and owned(storage) == (UID, UID, 0o700)
    (shared / "portal.sock").symlink_to("/etc/passwd")
    (shared / "deep" / "er").mkdir(parents=True)
    (storage / "kept").touch()
    door.own_folders(base, UID)
    assert (storage / "kept").exists() and (shared / "deep").exists()
    door.own_folders(base, 0)
    assert owned(shared) == (0, 0, 0o711) and owned(storage) == (0, 0, 0o700)
    assert not list(shared.iterdir()) and not list(storage.iterdir()) and shared.stat().st_ino == shown
    assert Path("/etc/passwd").exists()


def test_door_of_an_ordinary_user_is_that_user(base: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    door.open_to(base, UID)
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert door.group_of(base) is None
