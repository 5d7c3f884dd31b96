"""Only requested workspaces are read from the database."""

from __future__ import annotations

import datetime as dt

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from portal.reclaim.rebalancing import reading
from portal.workspaces.lifecycle import State
from portal.workspaces.models import Workspace

pytestmark = pytest.mark.django_db


@pytest.fixture
def running(make, alice, pool, settle) -> list[Workspace]:
    rows = [make(alice, "sim-h100-x1", name=name) for name in ("one", "two")]

    def run() -> bool:
        return Workspace.objects.filter(state=State.RUNNING).count() == len(rows)

    settle(90, resting=run)
    return list(Workspace.objects.order_by("name"))


def test_requested_workspaces_are_read_once(running, monkeypatch):
    one, two = (str(row.pk) for row in running)
    for few in (reading.MAX_FILTERED_BY_KEY, 0):
        # Many are read in one query.
        monkeypatch.setattr(reading, "MAX_FILTERED_BY_KEY", few)
        with (
            reading.read_snapshot(timezone.now()) as (_snapshot, people),
            CaptureQueriesContext(connection) as seen,
        ):
            assert [str(each.pk) for each in people.get([two])] == [two]
            assert people.generations().keys() >= {running[1].pk}
            assert [str(each.pk) for each in people.get([two, one])] == [two, one]
            assert people.get([one])[0].allocations
        assert len(seen) == (2 if few else 1)


def test_workspaces_using_a_suspect_are_returned(running):
    with reading.read_snapshot(timezone.now()) as (_snapshot, people):
        (first,), (second,) = (people.get([str(row.pk)])[0].allocations for row in running)
        (grant,) = second[1].nodes[0].devices
        assert [each.pk for each in people.using({grant.uuid})] == [running[1].pk]
        on_node = {each.pk for each in people.using({(first[0], first[1].nodes[0].node)})}
        assert running[0].pk in on_node
        assert people.using({"another"}) == []


def test_workspaces_placed_after_the_snapshot_are_ignored(running):
    """The snapshot describes an earlier start."""
    names = [str(row.pk) for row in running]
    later = min(row.placed_at for row in running) - dt.timedelta(seconds=1)
    with reading.read_snapshot(later) as (_snapshot, people):
        assert people.get(names) == []
