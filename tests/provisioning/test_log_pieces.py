"""Reading a log by position: whole lines, none twice, across rotations."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from provisioning.agent.program.log import Log
from provisioning.drivers.local.log_files import read_log
from provisioning.drivers.local.state import WorkspaceDir
from provisioning.log_pieces import CUT_OFF, PIECE_BYTES, last_lines, lines_from


@pytest.fixture
def folder(tmp_path: Path) -> WorkspaceDir:
    made = WorkspaceDir(tmp_path, "ws-1")
    made.run.mkdir(parents=True)
    return made


@pytest.fixture
def agent_log(folder: WorkspaceDir) -> Log:
    """The log writer of the agent, rotating at 1000 bytes."""
    return Log(str(folder.app_log), 1000, [])


def lines_after(folder: WorkspaceDir, after: int | None, *, whole: bool = False) -> tuple[str, int]:
    piece = read_log(folder, after=after, tail_lines=3, whole=whole)
    return piece.text, piece.reached


def test_reading_continues_at_the_last_position(folder: WorkspaceDir, agent_log: Log) -> None:
    assert lines_after(folder, None) == ("", 0)
    agent_log.feed(b"1\n2\n3\n4\n5")
    assert lines_after(folder, None) == ("2\n3\n4\n", 8)
    assert lines_after(folder, 8) == ("", 8)
    assert lines_after(folder, 8, whole=True) == ("5", 9)
    agent_log.feed(b"5\n6\n")
    assert lines_after(folder, 8) == ("55\n6\n", 13)


def test_reading_continues_across_rotations(folder: WorkspaceDir, agent_log: Log) -> None:
    said, after = "", 0
    for number in range(300):
        agent_log.feed(b"line %03d\n" % number)
        if number % 40 == 39:
            text, after = lines_after(folder, after)
            said += text
    said += lines_after(folder, after)[0]
    assert said == "".join(f"line {number:03d}\n" for number in range(300))


def test_late_reader_gets_the_cut_off_marker(folder: WorkspaceDir, agent_log: Log) -> None:
    for number in range(500):
        agent_log.feed(b"line %03d\n" % number)
    text, reached = lines_after(folder, 9)
    assert text.startswith(CUT_OFF) and text.endswith("line 499\n")
    assert reached == 500 * 9
    assert lines_after(folder, 10**9) == ("", 500 * 9)


def test_reading_during_a_rotation_returns_nothing(folder: WorkspaceDir, agent_log: Log) -> None:
    for number in range(500):
        agent_log.feed(b"line %03d\n" % number)
    # Between the new file and its mark.
    agent_log._mark = lambda: None
    agent_log.max_bytes = 1
    agent_log.feed(b"next\n")
    assert lines_after(folder, 40) == ("", 40)


@pytest.mark.parametrize("name", ["app.log", "app.log.1", "app.log.start"])
def test_links_made_by_a_workspace_are_not_followed(
    folder: WorkspaceDir, agent_log: Log, tmp_path: Path, name: str
) -> None:
    for number in range(500):
        agent_log.feed(b"line %03d\n" % number)
    (tmp_path / "secret").write_text("secret\n" * 100)
    (folder.run / name).unlink()
    (folder.run / name).symlink_to(tmp_path / "secret")
    assert "secret" not in lines_after(folder, None)[0] + lines_after(folder, 0)[0]
    (folder.run / name).unlink()
    os.mkfifo(folder.run / name)
    lines_after(folder, 0)


@pytest.mark.parametrize("mark", ["", "x y", "1", "1 -5", "9" * 200, "²²  3"])
def test_invalid_rotation_mark_is_ignored(folder: WorkspaceDir, mark: str) -> None:
    folder.app_log.write_text("one\n")
    (folder.run / "app.log.start").write_text(mark)
    assert lines_after(folder, None)[1] >= 0
    (folder.run / "app.log.start").write_text(f"{folder.app_log.stat().st_ino} {'9' * 30}")
    assert lines_after(folder, None)[1] == 10**11 + 4


def test_long_line_is_cut_between_characters() -> None:
    data = ("a" + "ü" * PIECE_BYTES).encode() + b"\nnext\n"
    position, said = 0, ""
    while True:
        piece = lines_from(data[position:], position, whole=False)
        said, position = said + piece.text, piece.reached
        if not piece.more:
            break
    assert said == data.decode()


def test_last_lines_of_a_log() -> None:
    assert last_lines(b"a\nb\nc", 105, 1, whole=False).text == "b\n"
    assert last_lines(b"a\nb\nc", 105, 1, whole=False).reached == 104
    assert last_lines(b"a\nb\nc", 105, 2, whole=True).text == "b\nc"
    assert last_lines(b"a\n", 2, 0, whole=True).text == ""
