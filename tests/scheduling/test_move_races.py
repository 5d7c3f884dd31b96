"""Cancelling a move in the moment in which it begins, on either database."""

from __future__ import annotations

from datetime import timedelta

import pytest
from django.db import transaction
from django.utils import timezone

from portal.common.errors import StateConflict
from portal.scheduling import evictions, moves, operator_moves
from portal.scheduling.codes import MoveCode
from portal.scheduling.models import Move, MoveOutcome
from portal.workspaces.domain_events import PreemptionDue
from portal.workspaces.lifecycle import State
from portal.workspaces.models import Preemption, Workspace
from portal.workspaces.transitions import lock_workspace
from tests.factories import WorkspaceFactory
from tests.races import Meanwhile
from tests.rows import reloaded

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def row(bob, team, local_pool, sent) -> Workspace:
    """A running workspace whose notice of a move is over."""
    row = WorkspaceFactory(owner=bob, team=team, pool=local_pool, state=State.RUNNING, generation=1)
    now = timezone.now()
    Preemption.objects.create(workspace=row, preempt_at=now - timedelta(seconds=1), cause="move")
    Move.objects.create(workspace=row, generation=1, pool=local_pool, source={}, target={}, asked_at=now)
    return row


@pytest.fixture(autouse=True)
def _target_is_free(monkeypatch):
    monkeypatch.setattr(moves, "still_possible", lambda _workspace: True)


def evict(row: Workspace) -> None:
    with transaction.atomic():
        evictions.evict(PreemptionDue(lock_workspace(row.pk)))


def test_a_cancellation_waits_for_the_stop_and_is_refused(row, olga, monkeypatch):
    meanwhile = Meanwhile(
        monkeypatch, moves, "still_possible", lambda: operator_moves.cancel(actor=olga, workspace_id=row.pk)
    )
    evict(row)
    refused = meanwhile.outcome()
    assert isinstance(refused, StateConflict), refused
    assert refused.reason.code == MoveCode.MOVE_BEGUN
    assert reloaded(row).state == State.STOPPING
    assert Move.objects.get().left_at is not None


def test_the_stop_waits_for_a_cancellation_and_does_nothing(row, olga, monkeypatch):
    meanwhile = Meanwhile(monkeypatch, moves, "cancel", lambda: evict(row))
    operator_moves.cancel(actor=olga, workspace_id=row.pk)
    assert meanwhile.outcome() is None
    assert reloaded(row).state == State.RUNNING
    assert (Move.objects.get().outcome, Move.objects.get().left_at) == (MoveOutcome.STAYED, None)
