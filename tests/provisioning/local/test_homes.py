"""Deleting home folders with any content, without touching files outside."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from provisioning.drivers.local import homes as deleting
from provisioning.drivers.local import mount_table
from provisioning.drivers.local.failures import HomeProtected
from provisioning.errors import BackendUnavailable

DEEP = 3000


@pytest.fixture
def homes(tmp_path: Path) -> Path:
    found = tmp_path / "homes"
    for owner in ("ada", "bob"):
        (found / "vision" / owner / "work").mkdir(parents=True)
        (found / "vision" / owner / "work" / "thesis.txt").write_text("years of work")
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "secret.txt").write_text("somebody else's")
    return found


@pytest.fixture(autouse=True)
def _others_stay(request, tmp_path):
    """Bob's home and files outside are unchanged after every test."""
    yield
    if "homes" in request.fixturenames:
        bobs = tmp_path / "homes" / "vision" / "bob"
        assert (bobs / "work" / "thesis.txt").read_text() == "years of work"
        assert (tmp_path / "outside" / "secret.txt").read_text() == "somebody else's"
        assert (tmp_path / "outside").stat().st_mode & 0o777 == 0o755


def delete(homes: Path, *, limit_s: float = 60) -> bool:
    return deleting.delete(homes, "vision", "ada", limit_s=limit_s)


def left(homes: Path) -> list[str]:
    return sorted(path.name for path in (homes / "vision").iterdir())


def deep(folder: Path, depth: int) -> None:
    """Create folders nested deeper than a path can be long, as a user would."""
    place = os.open(folder, os.O_RDONLY)
    for _ in range(depth):
        os.mkdir("deeper", dir_fd=place)
        within = os.open("deeper", os.O_RDONLY, dir_fd=place)
        os.close(place)
        place = within
    os.close(os.open("at-the-end", os.O_CREAT | os.O_WRONLY, dir_fd=place))
    os.close(place)


def test_whole_home_is_deleted(homes):
    ada = homes / "vision" / "ada"
    os.mkfifo(ada / "pipe")
    (ada / ".hidden").mkdir()
    (ada / "new\nline").write_text("x")
    (ada / os.fsdecode(b"no-utf8-\xff")).write_text("x")
    assert delete(homes)
    assert left(homes) == ["bob"]
    assert delete(homes)


def test_links_are_deleted_and_their_targets_kept(homes, tmp_path):
    ada = homes / "vision" / "ada"
    for name, target in (
        ("outside", tmp_path / "outside"),
        ("bob", "../bob"),
        ("file", tmp_path / "outside" / "secret.txt"),
        ("up", ".."),
        ("root", "/"),
        ("nowhere", "/nonexistent"),
        ("self", "self"),
    ):
        (ada / name).symlink_to(target)
        (ada / "work" / name).symlink_to(target)
    os.link(tmp_path / "outside" / "secret.txt", ada / "hard")
    assert delete(homes)
    assert left(homes) == ["bob"]


def test_home_that_is_a_link_is_not_deleted(homes, tmp_path):
    (homes / "vision" / "eve").symlink_to("bob")
    (homes / "vision" / "eva").symlink_to(tmp_path / "outside")
    for owner in ("eve", "eva"):
        with pytest.raises(HomeProtected) as refused:
            deleting.delete(homes, "vision", owner, limit_s=60)
        assert "is not a folder" in refused.value.message and not refused.value.retryable
        assert (homes / "vision" / owner).is_symlink()


def test_team_folder_that_is_a_link_is_not_followed(homes, tmp_path):
    (homes / "sound").symlink_to("vision")
    with pytest.raises(HomeProtected):
        deleting.delete(homes, "sound", "ada", limit_s=60)
    assert left(homes) == ["ada", "bob"]


def test_homes_on_another_disk_are_deleted_through_the_link_of_the_operator(homes, tmp_path):
    (tmp_path / "var").symlink_to(homes)
    assert delete(tmp_path / "var")
    assert left(homes) == ["bob"]


@pytest.mark.parametrize("inside", ["", "/notes", "/notes/a b/c"])
def test_mounts_are_untouched(homes, tmp_path, monkeypatch, inside):
    point = f"{homes.resolve()}/vision/ada{inside}".replace(" ", "\\040")
    table = tmp_path / "mountinfo"
    table.write_text(f"1 0 0:1 / / rw - ext4 /dev/x rw\n2 1 0:2 /shared {point} rw - nfs server:/x rw\n")
    monkeypatch.setattr(mount_table, "TABLE", table)
    with pytest.raises(HomeProtected) as refused:
        delete(homes)
    assert "mount point" in refused.value.message
    assert (homes / "vision" / "ada" / "work" / "thesis.txt").exists()
    table.write_text(f"2 1 0:2 /shared {homes.resolve()}/vision/ada-2 rw - nfs server:/x rw\n")
    assert delete(homes)


def test_new_mounts_are_untouched(homes, tmp_path, monkeypatch):
    assert not delete(homes, limit_s=0)
    table = tmp_path / "mountinfo"
    table.write_text(f"2 1 0:2 /x {homes.resolve()}/vision/.deleting-ada/1/x rw - nfs server:/x rw\n")
    monkeypatch.setattr(mount_table, "TABLE", table)
    with pytest.raises(HomeProtected):
        delete(homes)


def test_deep_and_unreadable_folders_are_deleted(homes):
    ada = homes / "vision" / "ada"
    deep(ada / "work", DEEP)
    shut = ada / "shut" / "inner"
    shut.mkdir(parents=True)
    (shut / "file").write_text("x")
    for path in (shut, shut.parent, ada):
        path.chmod(0)
    assert delete(homes)
    assert left(homes) == ["bob"]


def test_home_is_renamed_at_once_and_deleted_step_by_step(homes):
    ada = homes / "vision" / "ada"
    deep(ada / "work", 50)
    for number in range(200):
        (ada / f"file-{number}").write_text("x")
    calls = 1
    while not delete(homes, limit_s=0):
        assert "ada" not in left(homes)
        calls += 1
        assert calls < 2000, "it never ends"
    assert calls > 20
    assert left(homes) == ["bob"]


def test_two_deletions_at_once_both_finish(homes):
    ada = homes / "vision" / "ada"
    deep(ada / "work", 200)
    for number in range(500):
        (ada / f"folder-{number}").mkdir()
        (ada / f"folder-{number}" / "file").write_text("x")
    problems: list[BaseException] = []

    def work() -> None:
        try:
            while not delete(homes, limit_s=0.01):
                pass
        except BaseException as error:
            problems.append(error)

    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert problems == []
    assert left(homes) == ["bob"]


def test_write_error_is_reported_and_deletion_retried(make_pool, monkeypatch):
    pool = make_pool()
    home = pool.home / "homes" / "analysts" / "ada"
    home.mkdir(parents=True)
    (home / "file").write_text("x")

    def broken(*_: object, **__: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(deleting.os, "unlink", broken)
    with pytest.raises(BackendUnavailable) as refused:
        pool.driver.delete_home(team="analysts", owner="ada")
    assert refused.value.retryable and "homes" in refused.value.message
    monkeypatch.undo()
    assert pool.driver.delete_home(team="analysts", owner="ada")
    assert list(home.parent.iterdir()) == []
