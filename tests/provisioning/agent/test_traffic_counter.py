"""The counter through which a relay outside gVisor reports its traffic to the agent inside."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from provisioning.agent.program.app_listener import AppListener, read_counter
from provisioning.agent.program.gvisor import counter


def app_listener(counted_at: str = "") -> AppListener:
    parts: Any = SimpleNamespace()
    return AppListener(-1, parts, None, parts, counted_at)


def test_additions_by_the_relay_are_visible_to_the_agent(tmp_path: Path) -> None:
    path = str(tmp_path / "traffic")
    passed, inside = counter(path), app_listener(path)
    assert inside.counts and inside.traffic_bytes() == 0
    passed[0] += (1 << 40) + 7
    assert inside.traffic_bytes() == (1 << 40) + 7
    # Replacing the file name in the workspace does not affect the counter outside.
    victim = tmp_path / "victim"
    victim.write_bytes(b"as it was")
    (tmp_path / "traffic").unlink()
    (tmp_path / "traffic").symlink_to(victim)
    passed[0] += 1
    assert victim.read_bytes() == b"as it was" and inside.traffic_bytes() is None


def test_existing_file_is_not_used_as_counter(tmp_path: Path) -> None:
    (tmp_path / "traffic").write_bytes(bytes(8))
    with pytest.raises(FileExistsError):
        counter(str(tmp_path / "traffic"))


@pytest.mark.parametrize("kind", ["missing", "short", "folder", "pipe"])
def test_unreadable_values_are_unknown(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "traffic"
    if kind == "short":
        path.write_bytes(b"1234567")
    elif kind == "folder":
        path.mkdir()
    elif kind == "pipe":
        os.mkfifo(path)
    assert read_counter(str(path)) is None


def test_no_count_without_listener_or_counter() -> None:
    assert not app_listener().counts
