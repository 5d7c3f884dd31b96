"""A process is killed before each write of a requested move: all of it is done or nothing."""

from __future__ import annotations

import pytest

from portal.common.events.models import Event, Notification
from portal.reclaim.models import RebalanceProposal
from portal.reclaim.rebalancing import proposing, services
from portal.scheduling import snapshot_cache
from portal.scheduling.models import Move
from portal.workspaces.models import Preemption, QueueEntry, Workspace
from tests.reclaim import test_kills, test_rebalancing
from tests.reclaim.test_kills import killed_before, rolled_back

pytestmark = pytest.mark.django_db
fragmented = test_rebalancing.fragmented
_notice = test_rebalancing._notice
_transactions = test_kills._transactions


def visible_state() -> list[object]:
    """Return the state of the move for portal and people."""
    return [
        list(RebalanceProposal.objects.values_list("pk", "state", "decided_by")),
        list(Preemption.objects.order_by("workspace").values_list("workspace", "cause")),
        list(Move.objects.order_by("workspace").values_list("workspace", "generation", "outcome")),
        list(QueueEntry.objects.order_by("workspace").values_list("workspace", "nominated")),
        list(Workspace.objects.order_by("pk").values_list("pk", "state", "desired_state")),
        Event.objects.filter(kind__in=["rebalance.applied", "workspace.preempting"]).count(),
        Notification.objects.filter(kind="workspace.preempting").count(),
    ]


@pytest.mark.thorough("a kill at every write; `make test` has them in test_kills")
def test_kill_before_any_write_requests_all_moves_or_none(fragmented, olga):
    assert proposing.run().proposed == 1
    row = RebalanceProposal.objects.get()
    before = visible_state()
    with rolled_back():
        services.apply(actor=olga, proposal_id=row.pk)
        after = visible_state()
    assert before != after
    for statement in range(1, 200):
        snapshot_cache.forget()
        with rolled_back():
            with killed_before(statement) as hit:
                services.apply(actor=olga, proposal_id=row.pk)
            if not hit:
                break
            assert visible_state() in (before, after), hit
            services.apply(actor=olga, proposal_id=row.pk)
            assert visible_state() == after, hit
    else:
        pytest.fail("it does not end")
    assert statement > 3
