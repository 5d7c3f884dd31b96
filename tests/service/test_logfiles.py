from __future__ import annotations

from pathlib import Path

import pytest

from provisioning.service import logfiles


def test_log_within_its_limit_is_kept(tmp_path: Path) -> None:
    log = tmp_path / "web.log"
    log.write_text("x" * 100)
    assert not logfiles.rotate(log, limit_bytes=100)
    assert not logfiles.rotate(tmp_path / "missing.log")
    assert log.stat().st_size == 100


def test_old_logs_are_rotated_and_the_oldest_deleted(tmp_path: Path) -> None:
    log = tmp_path / "web.log"
    with log.open("ab") as service:
        for number in range(5):
            service.write(f"part {number}\n".encode())
            service.flush()
            assert logfiles.rotate(log, limit_bytes=3, keep=3)
        service.write(b"now\n")
        service.flush()
    assert log.read_text() == "now\n"
    kept = {path.name: path.read_text() for path in tmp_path.iterdir() if path != log}
    assert kept == {"web.log.1": "part 4\n", "web.log.2": "part 3\n", "web.log.3": "part 2\n"}


def test_full_disk_loses_only_the_old_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = tmp_path / "web.log"
    log.write_text("x" * 100)

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(logfiles.shutil, "copyfile", full)
    assert logfiles.rotate(log, limit_bytes=10)
    assert [path.name for path in tmp_path.iterdir()] == ["web.log"]
    assert log.stat().st_size == 0


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", ""),
        ("starting\nready\n", "ready"),
        ("ImportError: no gateway\n  at exit\n", "ImportError: no gateway"),
        ('{"event": "cannot bind", "level": "error", "timestamp": "t"}\n', "cannot bind"),
        (
            '{"level":"error","error":"port in use","message":"Provider error"}\n',
            "Provider error: port in use",
        ),
        ("[1, 2]\n", "[1, 2]"),
    ],
)
def test_last_line_of_a_log(tmp_path: Path, text: str, words: str) -> None:
    log = tmp_path / "web.log"
    log.write_text("an older error\n" + text)
    assert logfiles.last_line(log, since=len("an older error\n")) == words


def test_last_line_of_a_truncated_or_missing_log(tmp_path: Path) -> None:
    log = tmp_path / "web.log"
    log.write_text("short\n")
    assert logfiles.last_line(log, since=5000) == "short"
    assert logfiles.last_line(tmp_path / "none.log") == ""
