"""`backup` while the portal writes, and `restore`, which keeps replaced files."""

from __future__ import annotations

import io
import json
import shutil
import sqlite3
import threading
from pathlib import Path

import pytest

from portal.embedded import backup, preflight
from portal.embedded.cli import main
from portal.embedded.environment import Instance
from provisioning.service import database_place, instance_lock
from provisioning.service.console import Console, Problem

HERE: dict[str, str] = {}


@pytest.fixture
def console() -> Console:
    return Console(io.StringIO(), io.StringIO())


@pytest.fixture
def portal(instance: Instance) -> Instance:
    """The files of an instance, with a database and its write-ahead log."""
    for folder in (instance.home / "secrets", instance.home / "keys", instance.tls_dir, instance.redis_dir):
        folder.mkdir(parents=True, mode=0o700)
        (folder / "value").write_text(f"{folder.name} of then\n")
        (folder / "value").chmod(0o600)
    write(instance, "then")
    return instance


def write(instance: Instance, *words: str) -> None:
    with sqlite3.connect(database_place.make_folder(instance.home)) as database:
        database.execute("PRAGMA journal_mode=WAL")
        database.execute("CREATE TABLE IF NOT EXISTS word (word TEXT)")
        database.executemany("INSERT INTO word VALUES (?)", [(word,) for word in words])
    database.close()


def words(folder: Path) -> list[str]:
    with sqlite3.connect(folder / backup.DATABASE) as database:
        found = [word for (word,) in database.execute("SELECT word FROM word ORDER BY rowid")]
    database.close()
    return found


def everything(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_backup_and_restore(portal: Instance, tmp_path: Path, console: Console) -> None:
    assert backup.back_up(portal, HERE, tmp_path / "kept", console) == 0
    assert (tmp_path / "kept").stat().st_mode & 0o777 == 0o700
    assert (tmp_path / "kept" / backup.DATABASE).stat().st_mode & 0o777 == 0o600
    write(portal, "later")
    (portal.home / "secrets" / "value").write_text("of later\n")
    (portal.redis_dir / "value").write_text("messages of later\n")

    with pytest.raises(Problem, match="Add --replace"):
        backup.restore(portal, HERE, tmp_path / "kept", console, replace=False)
    assert words(portal.home / database_place.FOLDER) == ["then", "later"]
    assert backup.restore(portal, HERE, tmp_path / "kept", console, replace=True) == 0
    assert words(portal.home / database_place.FOLDER) == ["then"]
    assert (portal.home / "secrets" / "value").read_text() == "secrets of then\n"
    assert (portal.home / "secrets" / "value").stat().st_mode & 0o777 == 0o600
    assert (portal.tls_dir / "value").read_text() == "tls of then\n"
    assert not portal.redis_dir.exists()
    preflight.prepare_home(portal.home)

    # The replaced files are kept complete beside it.
    (aside,) = portal.home.glob("replaced-*")
    assert words(aside / database_place.FOLDER) == ["then", "later"]
    assert (aside / "secrets" / "value").read_text() == "of later\n"
    assert (aside / "redis" / "value").read_text() == "messages of later\n"


def test_restore_onto_an_empty_machine(portal: Instance, tmp_path: Path, console: Console) -> None:
    backup.back_up(portal, HERE, tmp_path / "kept", console)
    shutil.rmtree(portal.home)
    backup.restore(portal, HERE, tmp_path / "kept", console, replace=False)
    assert words(portal.home / database_place.FOLDER) == ["then"]
    assert (portal.home / "keys" / "value").read_text() == "keys of then\n"
    assert not list(portal.home.glob("replaced-*"))


def test_backup_while_the_portal_writes(portal: Instance, tmp_path: Path, console: Console) -> None:
    """The copy has each transaction completely or not at all, and no write fails."""
    done, failures = threading.Event(), []

    def go_on() -> None:
        database = sqlite3.connect(database_place.database_file(portal.home), timeout=20)
        number = 0
        try:
            while not done.is_set():
                number += 1
                with database:
                    database.execute("INSERT INTO word VALUES (?)", (f"{number} first",))
                    database.execute("INSERT INTO word VALUES (?)", (f"{number} second",))
        except sqlite3.Error as error:
            failures.append(error)
        finally:
            database.close()

    thread = threading.Thread(target=go_on)
    thread.start()
    try:
        for number in range(5):
            backup.back_up(portal, HERE, tmp_path / f"kept-{number}", console)
            assert len(words(tmp_path / f"kept-{number}")) % 2 == 1
    finally:
        done.set()
        thread.join(30)
    assert not failures


def test_failed_operation_leaves_nothing(
    portal: Instance, tmp_path: Path, console: Console, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(backup.shutil, "copytree", full)
        with pytest.raises(Problem, match="No space left"):
            backup.back_up(portal, HERE, tmp_path / "kept", console)
    assert not (tmp_path / "kept").exists()
    backup.back_up(portal, HERE, tmp_path / "kept", console)
    with pytest.raises(Problem, match="already exists"):
        backup.back_up(portal, HERE, tmp_path / "kept", console)


@pytest.mark.parametrize("cut_off_at", range(6))
def test_interrupted_restore_can_be_repeated(
    portal: Instance, tmp_path: Path, console: Console, monkeypatch: pytest.MonkeyPatch, cut_off_at: int
) -> None:
    backup.back_up(portal, HERE, tmp_path / "kept", console)
    write(portal, "later")
    real, moves = shutil.move, 0

    def move(source: Path, target: Path) -> None:
        nonlocal moves
        if moves == cut_off_at:
            raise KeyboardInterrupt
        moves += 1
        real(source, target)

    with monkeypatch.context() as patched:
        patched.setattr(backup.shutil, "move", move)
        with pytest.raises(KeyboardInterrupt):
            backup.restore(portal, HERE, tmp_path / "kept", console, replace=True)
    with pytest.raises(Problem, match="was interrupted"):
        preflight.prepare_home(portal.home)
    backup.restore(portal, HERE, tmp_path / "kept", console, replace=True)
    assert words(portal.home / database_place.FOLDER) == ["then"]
    assert (portal.tls_dir / "value").read_text() == "tls of then\n"
    later = [
        path.parent for path in portal.home.glob(f"replaced-*/{database_place.FOLDER}/{backup.DATABASE}")
    ]
    assert ["then", "later"] in [words(folder) for folder in later]


def test_incomplete_backup_is_refused(portal: Instance, tmp_path: Path, console: Console) -> None:
    kept = tmp_path / "kept"
    backup.back_up(portal, HERE, kept, console)
    before = everything(portal.home)

    def refused(words: str) -> None:
        with pytest.raises(Problem, match=words):
            backup.restore(portal, HERE, kept, console, replace=True)

    manifest = (kept / backup.MANIFEST).read_text()
    (kept / "keys" / "more").write_text("x")
    refused("is damaged: keys/more")
    (kept / "keys" / "more").unlink()
    (kept / "keys" / "value").unlink()
    refused("is damaged: keys/value")
    (kept / backup.MANIFEST).write_text(json.dumps(json.loads(manifest) | {"version": "99.0.0"}))
    refused("is from Berth 99.0.0")
    (kept / backup.MANIFEST).write_text("{}")
    refused("is not a backup")
    (kept / backup.MANIFEST).unlink()
    refused("is not a backup")
    assert {name: text for name, text in everything(portal.home).items() if name != "run/up.lock"} == before


def test_restore_is_refused_while_running_and_for_a_database_server(
    portal: Instance, tmp_path: Path, console: Console
) -> None:
    backup.back_up(portal, HERE, tmp_path / "kept", console)
    portal.run_dir.mkdir(exist_ok=True)
    with (
        instance_lock.hold(portal.run_dir, refusal=lambda _: Problem("taken")),
        pytest.raises(Problem, match="Berth is running here"),
    ):
        backup.restore(portal, HERE, tmp_path / "kept", console, replace=True)
    with pytest.raises(Problem, match="pg_dump"):
        backup.back_up(portal, {"DATABASE_URL": "postgres://u@h/d"}, tmp_path / "other", console)


def test_damaged_database_is_reported(portal: Instance, tmp_path: Path, console: Console) -> None:
    database_place.database_file(portal.home).write_bytes(b"no database" * 1000)
    with pytest.raises(Problem, match="not a database"):
        backup.back_up(portal, HERE, tmp_path / "kept", console)
    assert not (tmp_path / "kept").exists()


def test_backup_command(
    portal: Instance, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("BERTH_HOME", str(portal.home))
    monkeypatch.delenv("DATABASE_URL", raising=False)
    assert main(["backup", str(tmp_path / "kept")]) == 0
    assert "Home folders are not included" in capsys.readouterr().out
    assert main(["restore", str(tmp_path / "kept")]) == 1
    assert "--replace" in "".join(capsys.readouterr())
    assert main(["restore", "--replace", str(tmp_path / "kept")]) == 0
