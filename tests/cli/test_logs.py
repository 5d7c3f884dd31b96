"""berth logs -f: the portal's stream of a log in files on a node."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from portal.cli.client import BerthClient
from portal.cli.client.workspaces import Workspaces
from portal.cli.errors import Unreachable
from portal.cli.logs import fresh_lines
from portal.common.errors import Unavailable
from portal.common.reasons.reason import Reason
from portal.workspaces import dispatch, log_stream
from portal.workspaces.codes import WorkspaceCode
from portal.workspaces.lifecycle import State
from portal.workspaces.models import Workspace, WorkspaceStatus
from provisioning.drivers.local.log_files import read_log
from provisioning.drivers.local.state import WorkspaceDir
from provisioning.types import LogPiece
from tests.factories import WorkspaceFactory


class Program:
    """The output of a workspace, and what happens at each poll of the portal."""

    def __init__(self, folder: WorkspaceDir, workspace: Workspace) -> None:
        self.folder = folder
        self.workspace = workspace
        self.looks: list[Callable[[], None]] = []
        self.asked: list[int | None] = []

    def write(self, text: str) -> None:
        with self.folder.app_log.open("a") as file:
            file.write(text)

    def end(self, state: State, kept: str = "") -> None:
        Workspace.objects.filter(pk=self.workspace.pk).update(state=state)
        WorkspaceStatus.objects.filter(pk=self.workspace.pk).update(log_tail=kept)

    def read(self, _workspace: Workspace, *, after: int | None, tail_lines: int, complete: bool) -> LogPiece:
        self.asked.append(after)
        if self.looks:
            self.looks.pop(0)()
        return read_log(self.folder, after=after, tail_lines=tail_lines, whole=complete)


@pytest.fixture
def program(
    as_bob: Any, bob: Any, team: Any, pool: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Program:
    workspace = WorkspaceFactory(
        owner=bob, team=team, name="mine", state=State.RUNNING, pool=pool, generation=1
    )
    folder = WorkspaceDir(tmp_path / "local", "ws-1")
    folder.run.mkdir(parents=True)
    made = Program(folder, workspace)
    monkeypatch.setattr(dispatch, "read_log_after", made.read)
    return made


def test_followed_lines_are_printed_once_until_the_workspace_stops(as_bob: Any, program: Program) -> None:
    program.write("".join(f"old {n}\n" for n in range(5)))
    program.looks = [
        lambda: None,
        lambda: program.write("three\nhal"),
        lambda: program.write("f\nfour\nno end"),
        lambda: program.end(State.STOPPED),
    ]
    ran = as_bob("logs", "mine", "--follow", "--tail", "2")
    assert (ran.code, ran.out) == (0, "old 3\nold 4\nthree\nhalf\nfour\nno end\n"), ran.err
    # Requests resume at the last position.
    assert program.asked[:3] == [None, 30, 36]


def test_json_output_has_one_object_per_line(as_bob: Any, program: Program) -> None:
    program.write("one\ntwo\n")
    program.looks = [lambda: program.end(State.STOPPED)]
    ran = as_bob("logs", "mine", "-f", "--json")
    rows = [json.loads(line) for line in ran.out.splitlines()]
    assert rows == [{"line": "one"}, {"line": "two"}, {"state": "stopped"}]


def test_lost_connection_neither_skips_nor_repeats_lines(
    as_bob: Any, program: Program, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("portal.cli.logs.RETRY_S", 0.01)
    program.write("one\n")
    program.looks = [
        lambda: None,
        lambda: program.write("two\n"),
        lambda: program.write("three\n"),
        lambda: program.end(State.STOPPED),
    ]
    stream = Workspaces.stream_logs

    def breaks(self: Workspaces, *arguments: Any, **more: Any) -> Iterator[Any]:
        for number, told in enumerate(stream(self, *arguments, **more)):
            yield told
            if not told["over"] and number == 0:
                raise Unreachable("It broke.")

    monkeypatch.setattr(Workspaces, "stream_logs", breaks)
    ran = as_bob("logs", "mine", "-f")
    assert (ran.code, ran.out) == (0, "one\ntwo\nthree\n")
    assert "It broke. Retrying …" in ran.err


def test_last_lines_of_a_failed_workspace_are_printed(as_bob: Any, program: Program) -> None:
    program.write("one\ntwo\n")
    program.looks = [lambda: None, lambda: program.end(State.FAILED, kept="one\ntwo\nKilled")]
    ran = as_bob("logs", "mine", "-f")
    assert (ran.code, ran.out) == (0, "one\ntwo\nKilled\n")


def test_silent_node_is_reported_once(as_bob: Any, program: Program, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_stream, "SILENT_S", 0.01)

    def silent() -> None:
        raise Unavailable(Reason(WorkspaceCode.NODE_SILENT))

    program.write("zero\none\n")
    program.looks = [silent, silent, lambda: None, lambda: program.write("two\n")]
    program.looks.append(lambda: program.end(State.STOPPED))
    ran = as_bob("logs", "mine", "-f", "--tail", "1")
    assert (ran.code, ran.out) == (0, "one\ntwo\n")
    assert ran.err.count("node") == 1, ran.err


def test_complete_log_is_not_requested_again(as_bob: Any, program: Program) -> None:
    program.write("one\n")
    program.end(State.STOPPED)
    with BerthClient(os.environ["BERTH_URL"], os.environ["BERTH_TOKEN"]) as client:
        told = list(client.workspaces.stream_logs(str(program.workspace.pk)))
        assert [each["over"] for each in told] == [True]
        assert list(client.workspaces.stream_logs(str(program.workspace.pk), after=told[-1]["id"])) == []
    assert program.asked == [None]


def test_interrupt_exits_with_130(as_bob: Any, program: Program, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: Any, **__: Any) -> Iterator[Any]:
        raise KeyboardInterrupt
        yield

    monkeypatch.setattr(Workspaces, "stream_logs", interrupted)
    assert as_bob("logs", "mine", "-f").code == 130


@pytest.mark.parametrize(
    ("seen", "now", "fresh"),
    [
        ([], ["a"], ["a"]),
        (["a", "b"], ["a", "b"], []),
        (["a", "b"], ["b", "c"], ["c"]),
        (["a"], ["x", "y"], ["x", "y"]),
        (["x", "a"], ["a", "a", "b"], ["a", "b"]),
    ],
)
def test_new_lines_follow_the_printed_ones(seen: Any, now: Any, fresh: Any) -> None:
    assert fresh_lines(seen, now) == fresh
