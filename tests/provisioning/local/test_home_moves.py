"""Moving a home between the folders of two machines by their sandboxed file servers."""

from __future__ import annotations

import contextlib
import hashlib
import http.client
import json
import os
import signal
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from local_support import Pool

from provisioning.drivers.local.failures import Busy
from provisioning.drivers.local.file_server import Home, _process_tree
from provisioning.drivers.local.home_moves import HomeExists
from provisioning.endpoints import files_socket_name
from provisioning.home_messages import HomeMoved, HomeMoveOrder, MoveCommand, MovePhase
from provisioning.node import home_moves as node
from provisioning.types import PoolConfig
from tests.node_sockets import plug
from tests.suite.choice import quick_of

pytestmark = [pytest.mark.engine, pytest.mark.apart]
TEAM, OWNER = "t", "ada"
HOME = Home(TEAM, OWNER)


class Machines:
    """The old machine, the new one, and the connection that the front door makes otherwise."""

    def __init__(self, old: Pool, new: Pool) -> None:
        self.old, self.new = old, new
        self.home: Path = old.home / "homes" / TEAM / OWNER
        self.target: Path = new.home / "homes" / TEAM / OWNER
        self.home.mkdir(parents=True)
        self.answers: list[HomeMoved] = []
        self.parts: list[str] = []

    def moves(self, pool: Pool) -> Any:
        return pool.driver.home_moves(team=TEAM, owner=OWNER)

    def do(self, do: MoveCommand, *, move: str = "m1") -> HomeMoved:
        pool = self.old if do in (MoveCommand.OFFER, MoveCommand.REMOVE) else self.new
        order = HomeMoveOrder(
            move, "lease", do, PoolConfig("p", "local", {}), TEAM, OWNER, time.time() + 60, lifetime_s=60,
            digest=hashlib.sha256(b"ticket").hexdigest(), ticket="ticket", host="ws-x.localhost",
        )  # fmt: skip
        driver, node.driver_for = node.driver_for, lambda _: pool.driver
        try:
            answer = node.run(order, now=time.time())
        finally:
            node.driver_for = driver
        self.answers.append(answer)
        return answer

    def to_the_end(self, *, move: str = "m1", limit: int = 300) -> HomeMoved:
        for _ in range(limit):
            answer = self.do(MoveCommand.FETCH, move=move)
            if answer.failure and answer.failure.code == "offer_gone":
                assert self.do(MoveCommand.OFFER, move=move).done
            elif answer.done or answer.failure:
                return answer
        raise AssertionError(self.answers[-3:])

    @contextlib.contextmanager
    def reading(self, order: HomeMoveOrder, asked: Mapping[str, Any]) -> Iterator[Iterator[bytes]]:
        self.parts.append(str(asked["part"]))
        connection = http.client.HTTPConnection("home", timeout=30)
        name = files_socket_name(TEAM, OWNER).partition(".")[0]
        try:
            connection.sock = plug(self.old.home / "local" / name / "app.1.sock")
            connection.request("POST", f"/.berth/files/{order.ticket}", json.dumps(asked).encode())
            with connection.getresponse() as answer:
                if answer.status != 200:
                    raise node.OfferExpired("gone")
                yield node._pieces(answer)
        except OSError as error:
            raise node.OfferExpired("gone") from error
        finally:
            connection.close()

    def end(self) -> None:
        for pool in (self.old, self.new):
            for incoming in (False, True):
                pool.driver._file_servers().end(Home(TEAM, OWNER, incoming))


@pytest.fixture(params=quick_of(("bwrap", "none"), ("bwrap",), "`make test` has the sandbox"))
def machines(
    make_pool: Callable[..., Pool], request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Machines]:
    more = {}
    if request.param == "bwrap":
        request.getfixturevalue("sandbox")
    else:
        more = {"sandbox": "none"}
    found = Machines(make_pool("old", **more), make_pool("new", **more))
    monkeypatch.setattr(node, "_open_stream", found.reading)
    yield found
    found.end()


def fill(home: Path) -> dict[str, bytes]:
    (home / "data").mkdir()
    (home / "data" / "large").write_bytes(os.urandom(20 << 20))
    for number in range(50):
        (home / "data" / f"{number}").write_text(f"{number}")
    (home / "link").symlink_to("data/large")
    os.link(home / "data" / "1", home / "again")
    return content(home)


def content(home: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(home)): os.fsencode(path.readlink()) if path.is_symlink() else path.read_bytes()
        for path in home.rglob("*")
        if path.is_symlink() or path.is_file()
    }


def moving(machines: Machines) -> Path:
    return machines.target.with_name(f".moving-{OWNER}")


def test_home_is_moved_to_another_machine(machines: Machines) -> None:
    before = fill(machines.home)
    assert machines.do(MoveCommand.OFFER).done
    answer = machines.to_the_end()
    assert answer.phase is MovePhase.PLACED and answer.failure is None
    assert answer.bytes_done == answer.bytes_total > 20 << 20
    assert answer.entries_done == answer.entries_total == 54
    assert content(machines.target) == before and not moving(machines).exists()
    assert (machines.target / "again").stat().st_ino == (machines.target / "data" / "1").stat().st_ino
    if os.geteuid() == 0:
        own = machines.home.stat().st_uid
        assert all(
            path.lstat().st_uid == machines.target.stat().st_uid for path in machines.target.rglob("*")
        )
        assert (machines.target.stat().st_uid == 0) == (own == 0)
    assert machines.do(MoveCommand.FETCH).done, "twice is the same"
    assert content(machines.home) == before, "the old one stays until it is told to go"
    assert machines.do(MoveCommand.REMOVE).done
    assert not machines.home.exists() and content(machines.target) == before


@pytest.mark.parametrize("victim", quick_of(("old", "new", "both"), ("both",), "`make test` kills both"))
def test_sender_and_receiver_killed_at_every_step(
    machines: Machines, monkeypatch: pytest.MonkeyPatch, victim: str
) -> None:
    """SIGKILL every few parts: the home is complete at the end and never partially there."""
    before = fill(machines.home)
    monkeypatch.setattr(node, "STEP_S", 0.0)
    pieces, count = node._pieces, 0

    def cut(answer: http.client.HTTPResponse) -> Iterator[bytes]:
        nonlocal count
        for data in pieces(answer):
            count += 1
            if count in (1, 3, 30, 50, 90):
                if victim in ("old", "both"):
                    kill(machines.old, Home(TEAM, OWNER))
                if victim in ("new", "both"):
                    kill(machines.new, Home(TEAM, OWNER, incoming=True))
            yield data

    monkeypatch.setattr(node, "_pieces", cut)
    for _ in range(200):
        answer = machines.do(MoveCommand.FETCH)
        assert answer.done == machines.target.exists()
        if answer.done:
            break
        if answer.failure and answer.failure.code == "offer_gone":
            machines.do(MoveCommand.OFFER)
    assert count > 90
    assert content(machines.target) == before == content(machines.home)


def kill(pool: Pool, home: Home) -> None:
    servers = pool.driver._file_servers()
    folder = servers._folder(home)
    launched = folder.launched()
    if launched is not None:
        for pid in _process_tree(launched.pid):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def test_cancelled_transfer_is_discarded(machines: Machines, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(machines.home)
    monkeypatch.setattr(node, "STEP_S", 0.0)
    machines.do(MoveCommand.OFFER)
    machines.do(MoveCommand.FETCH)
    machines.do(MoveCommand.FETCH)
    assert moving(machines).exists()
    assert machines.do(MoveCommand.DISCARD, move="another").done and moving(machines).exists()
    assert machines.do(MoveCommand.DISCARD).done and machines.do(MoveCommand.DISCARD).done
    assert not moving(machines).exists() and not machines.target.exists()
    machines.to_the_end()
    assert machines.do(MoveCommand.DISCARD).done, "also where it was put in its place, and was then given up"
    assert not machines.target.exists() and machines.home.exists()


def test_another_move_restarts_the_transfer(machines: Machines, monkeypatch: pytest.MonkeyPatch) -> None:
    before = fill(machines.home)
    monkeypatch.setattr(node, "STEP_S", 0.0)
    machines.do(MoveCommand.OFFER)
    machines.do(MoveCommand.FETCH)
    (moving(machines) / "home" / "stray").write_text("of before")
    machines.to_the_end(move="m2")
    assert content(machines.target) == before


def test_existing_target_home_is_unchanged(machines: Machines) -> None:
    fill(machines.home)
    machines.target.mkdir(parents=True)
    (machines.target / "mine").write_text("of before")
    machines.do(MoveCommand.OFFER)
    answer = machines.do(MoveCommand.FETCH)
    assert answer.failure is not None and answer.failure.code == HomeExists.code
    assert not answer.failure.retryable
    assert content(machines.target) == {"mine": b"of before"}
    assert machines.do(MoveCommand.DISCARD).done and (machines.target / "mine").exists()
    (machines.target / "mine").unlink()
    assert machines.to_the_end().done, "an empty one is none"


def test_missing_disk_space_is_reported_with_amounts(
    machines: Machines, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(machines.home)
    machines.do(MoveCommand.OFFER)
    monkeypatch.setenv("BERTH_DISK_RESERVE_MIB", str(1 << 30))
    answer = machines.to_the_end()
    assert answer.failure is not None and answer.failure.code == "no_room_for_home"
    assert not machines.target.exists()


def test_unreadable_home_is_not_moved(machines: Machines) -> None:
    machines.do(MoveCommand.OFFER)
    path = machines.home
    for _ in range(205):
        path = path / "d"
        path.mkdir()
    answer = machines.to_the_end()
    assert answer.failure is not None and answer.failure.code == "home_unreadable"


def test_only_one_move_of_a_home_at_a_time(machines: Machines) -> None:
    fill(machines.home)
    machines.do(MoveCommand.OFFER)
    with machines.moves(machines.new).exclusive(HOME):
        answer = machines.do(MoveCommand.FETCH)
        assert answer.failure is not None and answer.failure.code == Busy.code
    assert machines.to_the_end().done


def test_transfer_requires_a_valid_ticket(machines: Machines) -> None:
    fill(machines.home)
    answer = machines.do(MoveCommand.FETCH)
    assert answer.failure is not None and answer.failure.code == "offer_gone"
    assert machines.do(MoveCommand.OFFER).done
    name = files_socket_name(TEAM, OWNER).partition(".")[0]
    for ticket in ("", "x", "ticket2"):
        connection = http.client.HTTPConnection("home", timeout=10)
        connection.sock = plug(machines.old.home / "local" / name / "app.1.sock")
        # The server may answer and close before the body has been sent.
        with contextlib.suppress(BrokenPipeError):
            connection.request("POST", f"/.berth/files/{ticket}", b'{"part": "manifest"}')
        with connection.getresponse() as answered:
            assert answered.status == 403
    assert machines.do(MoveCommand.FETCH, move="m1").failure is None
