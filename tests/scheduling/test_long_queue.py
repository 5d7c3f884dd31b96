"""Long queues: the cost of a request does not grow, and unchanged statuses are not written."""

from __future__ import annotations

import datetime as dt

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from portal.catalog import selectors
from portal.embedded import web_server
from portal.quota.limits.models import Grant, Quota
from portal.scheduling import cycle, pauses, queue_status, snapshot_cache, tasks
from portal.scheduling import snapshot as snapshot_module
from portal.scheduling.admission import assess
from portal.scheduling.models import QueueState
from portal.workspaces.lifecycle import State
from portal.workspaces.models import QueueEntry, Workspace
from tests.factories import WorkspaceFactory
from tests.snapshots import rows_changed

pytestmark = pytest.mark.django_db
BIG = "sim-h100-x4"
STATUS = ("position", "eta_at", "eta_basis", "outcome", "reason", "blocker")


@pytest.fixture
def long_queue(make, alice, pool, clock, monkeypatch):
    """Return a function that queues `count` more requests; one waiting request already counts as long."""
    monkeypatch.setattr(cycle, "MAX_STATUSES_AT_ONCE", 0)
    for _ in range(2):
        make(alice, BIG)
    first = make(alice, BIG)

    def more(count: int) -> None:
        for number in range(count):
            WorkspaceFactory(
                owner=first.owner, team=first.team, template=first.template, flavor=first.flavor,
                name=f"more-{first.team.workspaces.count()}-{number}", state=State.PENDING,
                resources=first.resources, requested_at=timezone.now(), expected_s=3600,
            )  # fmt: skip
        rows_changed()
        cycle.run()
        cycle.write_statuses()

    more(3)
    return more


def statuses():
    return {row["pk"]: row for row in QueueEntry.objects.values("pk", "digest", *STATUS)}


def writes(queries):
    statement = f'UPDATE "{QueueEntry._meta.db_table}"'
    return [each["sql"] for each in queries.captured_queries if statement in each["sql"]]


def test_unchanged_statuses_are_not_written(long_queue, clock):
    before = statuses()
    clock.shift(1)
    with CaptureQueriesContext(connection) as queries:
        cycle.decide()
        cycle.write_statuses()
    assert not writes(queries)
    assert statuses() == before


def test_only_changed_statuses_are_written(long_queue):
    some = QueueEntry.objects.filter(workspace__state=State.PENDING).first()
    right = statuses()
    QueueEntry.objects.filter(pk=some.pk).update(position=999)
    with CaptureQueriesContext(connection) as queries:
        cycle.write_statuses()
    (written,) = writes(queries)
    assert "position" in written
    assert "reason" not in written
    assert statuses() == right


def test_missing_digest_rewrites_the_status(long_queue):
    right = statuses()
    QueueEntry.objects.filter(workspace__state=State.PENDING).update(digest="", reason={}, blocker={})
    cycle.write_statuses()
    assert statuses() == right


def test_creation_writes_its_own_status_and_defers_the_others(long_queue, make, alice, run_node, clock):
    clock.shift(1)
    QueueEntry.objects.filter(workspace__state=State.PENDING).update(position=None)
    said = assess(
        template=selectors.all_templates().get(slug="jupyterlab"),
        flavor=selectors.all_flavors().get(slug=BIG),
        team=Workspace.objects.filter(state=State.PENDING).first().team,
        actor=alice,
    )
    made = make(alice, BIG)
    entry = made.queue_entry
    assert (entry.position, entry.reason) == (said.position, said.reason.as_json())
    assert entry.eta_at == said.eta_at
    others = QueueEntry.objects.filter(workspace__state=State.PENDING).exclude(pk=made.pk)
    assert not others.exclude(position=None).exists(), "the request does not write those of others"
    QueueState.objects.update(shown_at=None)
    run_node()
    assert sorted(others.values_list("position", flat=True)) == list(range(1, entry.position))


@pytest.mark.parametrize("flavor", [BIG, "sim-cpu"])
def test_statements_of_a_creation_do_not_grow_with_the_queue(long_queue, make, alice, flavor):
    def statements() -> int:
        with CaptureQueriesContext(connection) as queries:
            make(alice, flavor)
        return len(queries)

    statements()
    few = statements()
    long_queue(40)
    statements()
    assert statements() <= few


def test_status_updates_take_at_most_a_tenth_of_the_time(long_queue, make, alice, clock, monkeypatch):
    told = []
    monkeypatch.setattr(queue_status, "write", lambda changes: told.append(list(changes)))
    QueueState.objects.update(shown_ms=1000, shown_at=timezone.now())
    make(alice, "sim-cpu")
    told.clear()
    cycle.run()
    assert not told, "they have just been told"
    clock.shift(11)
    cycle.run()
    assert len(told) == 1
    assert QueueState.objects.get().shown_at == timezone.now()


def test_status_of_a_workspace_that_left_the_queue_is_not_written(long_queue):
    waiting = QueueEntry.objects.filter(workspace__state=State.PENDING)
    stopped, stays = waiting.order_by("pk")[:2]
    Workspace.objects.filter(pk=stopped.pk).update(state=State.STOPPED)
    queue_status.write([queue_status.StatusChange(pk, {"position": 77}) for pk in (stopped.pk, stays.pk)])
    stopped.refresh_from_db()
    stays.refresh_from_db()
    assert (stopped.position != 77, stays.position) == (True, 77)


def test_distant_eta_is_rewritten_only_beyond_its_precision():
    now = timezone.now()
    far, near = now + dt.timedelta(hours=10), now + dt.timedelta(minutes=5)
    assert not queue_status._eta_changed(far + dt.timedelta(minutes=17), far, now)
    assert queue_status._eta_changed(far + dt.timedelta(minutes=19), far, now)
    assert not queue_status._eta_changed(near + dt.timedelta(seconds=29), near, now)
    assert queue_status._eta_changed(near + dt.timedelta(seconds=30), near, now)
    assert queue_status._eta_changed(None, near, now)
    assert not queue_status._eta_changed(None, None, now)


@pytest.fixture
def readings(monkeypatch, long_queue):
    """Record when everything is read again, with a reading time of 3 s."""
    found = []

    def load(now):
        found.append(now)
        snapshot = snapshot_module.load(now)
        snapshot.reading_s = 3.0
        return snapshot

    monkeypatch.setattr(snapshot_cache, "_load", load)
    rows_changed()
    return found


def test_slow_snapshots_are_read_less_often(readings, clock):
    for _ in range(10):
        cycle.decide()
        clock.shift(58)
    first, second = readings
    assert (second - first).total_seconds() == 348


def test_cached_snapshot_applies_a_grant_on_time(readings, make, alice, clock):
    team = make(alice, "sim-cpu").team
    Quota.objects.create(team=team, resource="gpu:simulated-h100", quota=8000)
    Grant.objects.create(
        team=team,
        resource="gpu:simulated-h100",
        amount=4000,
        starts_at=timezone.now() + dt.timedelta(seconds=90),
    )
    rows_changed()
    cycle.decide()
    readings.clear()
    with snapshot_cache.cycle_cache.use() as snapshot:
        assert snapshot.scheduler.usage.own_limit(team.slug, "gpu:simulated-h100") == 8000
        waiting = set(snapshot.scheduler.pending.items)
    clock.shift(91)
    with snapshot_cache.cycle_cache.use() as snapshot:
        assert snapshot.scheduler.usage.own_limit(team.slug, "gpu:simulated-h100") == 12_000
        assert set(snapshot.scheduler.pending.items) == waiting
    assert not readings


def test_loaded_snapshot_is_frozen_for_garbage_collection(long_queue, monkeypatch):
    kept = []
    monkeypatch.setattr(pauses, "freeze", lambda: kept.append(True))
    snapshot_cache.forget()
    cycle.run()
    cycle.run()
    assert kept == [True]


@pytest.mark.parametrize("task", [tasks.schedule, tasks.schedule_due])
def test_worker_collects_garbage_after_each_cycle(task, monkeypatch, db):
    order = []
    monkeypatch.setattr(cycle, "run", lambda: order.append("cycle"))
    monkeypatch.setattr(cycle, "run_if_due", lambda: order.append("cycle"))
    monkeypatch.setattr(pauses, "collect_if_due", lambda: order.append("rest"))
    task()
    assert order == ["cycle", "rest"]


def test_web_process_collects_garbage_after_responses(monkeypatch):
    rested = []
    monkeypatch.setattr(pauses, "collect_if_due", lambda: rested.append(True))
    web_server.post_request(None, None, {}, None)
    assert rested == [True]
