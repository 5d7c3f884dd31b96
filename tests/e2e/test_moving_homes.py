"""A home moves from the portal's machine to another and back, while processes are killed."""

from __future__ import annotations

import hashlib
import os
import signal
import time
from pathlib import Path

import pytest

from tests.e2e.test_two_machines import LIMIT_S, TOKEN, Pair, pair, wire
from tests.instance import eventually

__all__ = ["pair", "wire"]
pytestmark = [
    pytest.mark.engine,
    pytest.mark.xdist_group("two-machines"),
    pytest.mark.thorough("two whole machines; `make test` moves homes between two nodes without a portal"),
]
LARGE = 300 << 20


def digests(home: Path) -> dict[str, str]:
    found = {}
    for path in sorted(home.rglob("*")):
        if path.is_file() and not path.is_symlink():
            with path.open("rb") as file:
                found[str(path.relative_to(home))] = hashlib.file_digest(file, "sha256").hexdigest()
    return found


def move(pair: Pair, node: str) -> str:
    given = {"team": "lab", "pool": pair.node(node)["pool"], "node": node}
    return str(pair.ben.json("POST", "home-moves", given)["id"])


def state(pair: Pair, move_id: str) -> str:
    return str(pair.ben.json("GET", f"home-moves/{move_id}")["state"])


def test_home_is_moved_there_and_back_although_processes_are_killed(pair: Pair) -> None:
    done = pair.b.join(pair.door, pair.snippet(TOKEN), "node-b")
    assert done.returncode == 0, done.stdout + done.stderr
    pair.b.run()
    eventually(lambda: pair.node("node-b").get("online"), limit_s=LIMIT_S, what="node-b is there")
    workspace_id = pair.start_on("node-a", "node-b")
    pair.ben.act(workspace_id, "stop")
    pair.ben.wait(workspace_id, "stopped", limit_s=LIMIT_S)
    here = pair.berth.home / "homes" / "lab" / "ben"
    there = pair.b.folder.home / "homes" / "lab" / "ben"
    owner = here.stat().st_uid
    for name, size in (("large", LARGE), ("small", 1000)):
        with (here / name).open("wb") as file:
            while file.tell() < size:
                file.write(os.urandom(min(size - file.tell(), 1 << 20)))
        os.chown(here / name, owner, owner)
    before = digests(here)

    began = time.monotonic()
    first = move(pair, "node-b")
    incoming = there.with_name(".moving-ben") / "home" / "large"
    eventually(lambda: incoming.exists() or state(pair, first) == "done", limit_s=LIMIT_S, what="it begins")
    os.kill(pair.b.services()["node"]["pid"], signal.SIGKILL)
    assert not there.exists() and digests(here) == before
    eventually(
        lambda: state(pair, first) == "done",
        limit_s=240,
        what=lambda: str(pair.ben.json("GET", f"home-moves/{first}")),
    )
    print(f"300 MiB with a kill -9 of the new machine's worker: {time.monotonic() - began:.1f} s")
    assert digests(there) == before
    assert {path.lstat().st_uid for path in there.rglob("*")} == {there.stat().st_uid}
    eventually(lambda: not here.exists(), limit_s=LIMIT_S, what="the old one is taken away")

    pair.ben.act(workspace_id, "start")
    pair.ben.wait(workspace_id, "running", limit_s=LIMIT_S)
    assert pair.b.owned("ws-" + workspace_id.replace("-", "")), "it starts where the home is"
    pair.ben.act(workspace_id, "stop")
    pair.ben.wait(workspace_id, "stopped", limit_s=LIMIT_S)

    before = digests(there)
    began = time.monotonic()
    second = move(pair, "node-a")
    eventually(
        lambda: state(pair, second) == "done",
        limit_s=240,
        what=lambda: str(pair.ben.json("GET", f"home-moves/{second}")),
    )
    print(f"back: {time.monotonic() - began:.1f} s")
    assert digests(here) == before
    eventually(lambda: not there.exists(), limit_s=LIMIT_S, what="the old one is taken away")
