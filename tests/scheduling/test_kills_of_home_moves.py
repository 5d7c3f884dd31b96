"""The control plane is killed before each write of a home move; no byte is lost and the move completes.

Nodes are replaced by `Disks`, which hold a home completely or not at
all; `tests/provisioning/local` kills real nodes while they copy. The move is requested by a user or comes
with a start.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field

import pytest
from django.db import transaction
from django.utils import timezone

from portal.common.errors import StateConflict
from portal.scheduling import snapshot_cache
from portal.workspaces.homes import moves as home_moves
from portal.workspaces.lifecycle import State
from portal.workspaces.models import HomeMove, HomePlace, Workspace
from provisioning.home_messages import HomeMoveOrder, MoveCommand
from provisioning.types import Op
from tests.broker import Broker
from tests.reclaim import test_kills
from tests.reclaim.test_kills import killed_before
from tests.scheduling import homes, test_starts_with_home_moves

pytestmark = [
    pytest.mark.django_db,
    pytest.mark.thorough("a kill at every write; `make test` kills the nodes that copy"),
]
tickets = test_starts_with_home_moves.tickets
pool = test_starts_with_home_moves.pool
one_gpu = test_starts_with_home_moves.one_gpu
mate = test_starts_with_home_moves.mate
blocked = test_starts_with_home_moves.blocked
_transactions = test_kills._transactions
FILES = b"everything that Alice has"
MAX_ROUNDS = 30


@dataclass
class Disks:
    """The copies of the home on the nodes."""

    of: dict[str, bytes] = field(default_factory=lambda: {"gpu-1": FILES})

    def execute(self, order: HomeMoveOrder) -> None:
        if order.do is MoveCommand.FETCH and "gpu-2" not in self.of:
            self.of["gpu-2"] = self.of["gpu-1"]
        elif order.do is MoveCommand.REMOVE:
            self.of.pop("gpu-1", None)
        elif order.do is MoveCommand.DISCARD:
            self.of.pop("gpu-2", None)
        self.check()

    def check(self) -> None:
        """Assert that the node named by the portal has the whole home."""
        assert self.of[HomePlace.objects.get(owner__username="alice").node.name] == FILES


@dataclass
class Flow:
    """A move from its request to its end. `run` continues after a kill, with all messages lost."""

    sent: Broker
    ask: Callable[[], object]
    disks: Disks = field(default_factory=Disks)
    started: int = 0

    def run(self) -> None:
        self.ask()
        for _ in range(MAX_ROUNDS):
            for order in homes.orders(self.sent):
                self.disks.execute(order)
                homes.answer(order)
            # A start that was not woken is checked within 30 s.
            Workspace.objects.filter(state=State.PROVISIONING).update(next_reconcile_at=timezone.now())
            homes.reconcile_waiting()
            self._count_starts()
            if not HomeMove.objects.filter(open=True).exists():
                return
            homes.lose_all(self.sent)
        pytest.fail("the move does not end")

    def _count_starts(self) -> None:
        for message in self.sent.take("node.execute"):
            if message.command.op is Op.START:
                assert self.disks.of["gpu-2"] == FILES
                self.started += 1


@contextmanager
def rolled_back() -> Iterator[None]:
    """Roll back all writes of the block; its commits have their effects."""
    block = transaction.Atomic(using=None, savepoint=True, durable=False)
    block._from_testcase = True  # type: ignore[attr-defined]
    with block:
        yield
        transaction.set_rollback(True)


def with_a_start(make, alice, team) -> Callable[[], object]:
    return lambda: make(alice, "one-gpu", idempotency_key="once")


def on_request(make, alice, team) -> Callable[[], object]:
    place = HomePlace.objects.select_related("pool").get(owner=alice)

    def ask() -> None:
        # Refused once it has arrived, or while the old copy is being removed.
        with suppress(StateConflict):
            home_moves.move_home(actor=alice, owner=alice, team=team, pool=place.pool, node="gpu-2")

    return ask


@pytest.mark.parametrize("request_of", [with_a_start, on_request])
def test_kill_before_any_write_loses_no_byte(blocked, make, alice, team, sent, request_of):
    ask = request_of(make, alice, team)
    killed = 0
    for statement in range(1, 400):
        snapshot_cache.forget()
        sent.clear()
        with rolled_back():
            flow = Flow(sent, ask)
            with killed_before(statement) as hit:
                flow.run()
            flow.disks.check()
            if hit:
                killed += 1
                homes.lose_all(sent)
                snapshot_cache.forget()
                flow.run()
            assert flow.disks.of == {"gpu-2": FILES}, hit
            move = HomeMove.objects.get()
            assert (move.target_name, move.open) == ("gpu-2", False), hit
            if request_of is with_a_start:
                workspace = Workspace.objects.get(pk=move.workspace_id)
                assert (workspace.state, workspace.waits_for_home) == (State.PROVISIONING, False), hit
                assert flow.started or hit
        if not hit:
            break
    else:
        pytest.fail("it does not end")
    assert killed >= 20
