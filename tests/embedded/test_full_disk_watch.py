"""The reserved space of the database, and Redis persistence on a full disk."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from portal.embedded import database_reserve, full_disk
from portal.embedded.database_reserve import RESERVE_BYTES, Reserve


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "berth.sqlite3"
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA journal_mode=WAL")
        connection.execute("CREATE TABLE notes (text TEXT)")
    return path


@pytest.fixture
def reserve(file: Path):
    made = Reserve(file)
    yield made
    made.close()


def ask(file: Path, statement: str) -> int:
    with closing(sqlite3.connect(file)) as connection:
        return int(connection.execute(statement).fetchone()[0])


def sizes(file: Path) -> tuple[int, int]:
    return file.stat().st_size, Path(f"{file}-wal").stat().st_size


def test_reserve_is_created_once_and_used_by_writes(file, reserve):
    reserve.refill()
    assert database_reserve.unused(lambda asked: ask(file, asked)) >= RESERVE_BYTES
    before = sizes(file)
    assert before[1] >= RESERVE_BYTES
    reserve.refill()
    with closing(sqlite3.connect(file)) as connection, connection:
        connection.execute("INSERT INTO notes VALUES (zeroblob(?))", [RESERVE_BYTES // 4])
    assert sizes(file) == before
    assert ask(file, "SELECT count(*) FROM sqlite_master") == 1


def test_reserve_is_restored_when_space_is_free(file, reserve, monkeypatch):
    reserve.refill()
    with closing(sqlite3.connect(file)) as connection, connection:
        connection.execute("INSERT INTO notes VALUES (zeroblob(?))", [RESERVE_BYTES * 3 // 4])
    monkeypatch.setattr(database_reserve, "free", lambda _: database_reserve.SPARE_BYTES - 1)
    reserve.refill()
    assert database_reserve.unused(lambda asked: ask(file, asked)) < RESERVE_BYTES // 2
    monkeypatch.undo()
    reserve.refill()
    assert database_reserve.unused(lambda asked: ask(file, asked)) >= RESERVE_BYTES


def test_only_a_full_disk_is_reported(file, reserve, monkeypatch):
    reserve.refill()
    assert database_reserve.remaining_bytes_when_full(file, lambda asked: ask(file, asked)) is None
    monkeypatch.setattr(database_reserve, "free", lambda _: 0)
    left = database_reserve.remaining_bytes_when_full(file, lambda asked: ask(file, asked))
    assert left is not None and left >= RESERVE_BYTES


def test_database_file_of_the_url(tmp_path):
    assert full_disk.database_file({}, tmp_path) == tmp_path / "database" / "berth.sqlite3"
    assert full_disk.database_file({"DATABASE_URL": "sqlite:////srv/b.db"}, tmp_path) == Path("/srv/b.db")
    assert full_disk.database_file({"DATABASE_URL": "postgres://server/berth"}, tmp_path) is None


class Redis:
    """A fake Redis with its persistence state, and the commands it received."""

    def __init__(self, *, enabled: bool, well: bool) -> None:
        self.enabled, self.well = enabled, well

    def info(self, section: str) -> dict[str, object]:
        assert section == "persistence"
        return {"aof_enabled": int(self.enabled), "aof_last_write_status": "ok" if self.well else "err"}

    def config_set(self, name: str, value: str) -> None:
        assert name == "appendonly"
        self.enabled = value == "yes"


@pytest.mark.parametrize(
    ("enabled", "well", "free", "then"),
    [
        (True, True, 0, True),
        (True, False, 0, False),
        (False, False, 1 << 20, False),
        (False, False, 1 << 30, True),
    ],
)
def test_redis_persistence_follows_free_space(tmp_path, monkeypatch, enabled, well, free, then):
    redis = Redis(enabled=enabled, well=well)
    monkeypatch.setattr(full_disk.database_reserve, "free", lambda _: free)
    watch = full_disk.DiskWatch(redis_url="", redis_dir=tmp_path, database=None, say=print)
    said = watch._adapt(redis)
    assert redis.enabled is then
    assert bool(said) is (then is not enabled)
