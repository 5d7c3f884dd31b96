"""Environments in use: a starting process without arguments yet does not count as unused."""

from __future__ import annotations

from pathlib import Path

import pytest

from provisioning.environments import uses

FOLDER = Path("/srv/environments/env-1")


@pytest.fixture
def proc(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty replacement for /proc."""
    monkeypatch.setattr(uses, "PROC", tmp_path)
    return tmp_path


def process(proc: Path, *, program: bool = True, arguments: bytes = b"", mounts: bytes = b"") -> Path:
    entry = proc / "4711"
    entry.mkdir()
    if program:
        (entry / "exe").symlink_to("/usr/bin/python3")
    for name, content in (("cmdline", arguments), ("environ", b""), ("mountinfo", mounts)):
        (entry / name).write_bytes(content)
    return entry


def test_environment_without_processes_is_unused(proc: Path) -> None:
    process(proc, arguments=b"sleep\x001\0", mounts=b"22 1 8:1 / / rw - ext4 /dev/sda1 rw\n")
    assert not uses.in_use(FOLDER)


@pytest.mark.parametrize(
    "facts",
    [
        {"arguments": bytes(FOLDER) + b"/bin/python\0-c\0input()\0"},
        {"mounts": b"22 1 8:1 / " + bytes(FOLDER) + b" ro - ext4 /dev/sda1 rw\n"},
    ],
    ids=["named", "shown"],
)
def test_process_marks_its_environment_as_used(proc: Path, facts: dict[str, bytes]) -> None:
    process(proc, **facts)
    assert uses.in_use(FOLDER)


def test_starting_process_is_checked_again(proc: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    entry = process(proc)
    monkeypatch.setattr(
        uses, "sleep", lambda _: (entry / "cmdline").write_bytes(bytes(FOLDER) + b"/bin/python\0")
    )
    assert uses.in_use(FOLDER)


@pytest.mark.parametrize(("program", "looks"), [(True, uses.MAX_ATTEMPTS), (False, 0)])
def test_process_without_arguments_does_not_block(
    proc: Path, monkeypatch: pytest.MonkeyPatch, program: bool, looks: int
) -> None:
    """Kernel threads have no arguments and no program."""
    waited: list[float] = []
    process(proc, program=program)
    monkeypatch.setattr(uses, "sleep", waited.append)
    assert not uses.in_use(FOLDER)
    assert len(waited) == looks
