"""Programs killed for lack of memory in a running workspace: shown, recorded, notified."""

from __future__ import annotations

import pytest

from portal.catalog.models import Flavor
from portal.common.events.models import Event, Notification
from portal.workspaces import dispatch, memory_kills, tasks
from portal.workspaces.gateway.summary import summary_of
from portal.workspaces.lifecycle import State
from portal.workspaces.models import Workspace
from portal.workspaces.start_forecasts import start_forecasts
from provisioning import messages
from provisioning.memory_messages import MemoryKill, MemoryKills
from provisioning.types import Op
from tests import sites
from tests.factories import FlavorFactory
from tests.senders import sent_by
from tests.workspaces.helpers import answer, run_until_ready

pytestmark = pytest.mark.django_db
WORLD = sites.one_machine
SUGGESTED = "Large CPU (2 cores, 4 GiB) would start now."


@pytest.fixture
def running(clock, make, alice, local_pool, sent) -> Workspace:
    FlavorFactory(slug="huge", name="Huge", cpu_milli=2000, memory_mib=8192)
    FlavorFactory(slug="lean", name="Lean", cpu_milli=100, memory_mib=3000)
    workspace = make(alice)
    run_until_ready(sent, workspace)
    Notification.objects.all().delete()
    return workspace


def kill(workspace: Workspace, count: int = 1, **changes) -> MemoryKill:
    fields = {"generation": workspace.generation, "process": "python3", "machine": False, **changes}
    return MemoryKill(str(workspace.pk), count=count, limit_mib=10, **fields)


def report(workspace: Workspace, *kills: MemoryKill, node: str = "", pool: str = "") -> int:
    held = workspace.allocations.select_related("node__pool").get(released_at=None)
    return memory_kills.apply(MemoryKills(pool or held.node.pool.slug, node or held.node.name, kills))


def test_memory_kill_is_shown_in_every_interface(running, as_user, with_token, alice, monkeypatch):
    limit = f"{running.resources['memory_mib'] / 1024:g} GiB"
    assert report(running, kill(running)) == 1
    expected = f"This workspace used all of its {limit} of memory. The system ended “python3”."
    entry = Event.objects.get(kind="workspace.out_of_memory", workspace=running)
    assert expected in entry.why and entry.data["process"] == "python3"
    notice = Notification.objects.get(kind=memory_kills.NOTICE)
    assert (notice.user, notice.title) == (alice, f"A program in {running.name} ran out of memory")
    assert notice.body.startswith(expected) and notice.body.endswith(SUGGESTED)
    page = as_user(alice).get(f"/workspaces/{running.pk}/").content.decode()
    assert expected in page and SUGGESTED in page and f"/workspaces/{running.pk}/resize/" in page
    seen = (
        with_token(alice, "workspaces:read").get(f"/api/v1/workspaces/{running.pk}").json()["out_of_memory"]
    )
    assert (seen["code"], seen["process"], seen["count"]) == ("memory_limit_reached", "python3", 1)
    monkeypatch.setattr(start_forecasts, "_implementation", None)  # as in the gateway process
    (message,) = summary_of(running.external_name)["messages"]
    assert message["text"] == f"{expected} A larger size was free at that time: Large CPU (2 cores, 4 GiB)."
    assert message["tone"] == "bad" and message["at"]


def test_memory_kill_is_shown_in_the_app_for_an_hour_and_on_the_page_until_restart(running, clock, as_user):
    report(running, kill(running))
    clock.shift(3601)
    assert summary_of(running.external_name)["messages"] == []
    assert 'id="out-of-memory"' in as_user(running.owner).get(f"/workspaces/{running.pk}/").content.decode()
    Workspace.objects.filter(pk=running.pk).update(generation=running.generation + 1)
    running.refresh_from_db()
    assert memory_kills.last_report(running) is None


def test_killed_programs_are_counted_without_unknown_names(running):
    report(running, kill(running, process=""))
    entry = Event.objects.get(kind="workspace.out_of_memory")
    assert "ended a program." in entry.why
    report(running, kill(running, 3, process="R\x00\n"))
    running.refresh_from_db()
    lost = memory_kills.last_report(running)
    assert lost is not None and lost.count == 4
    assert "The system ended 3 programs, the last was “R??”." in lost.message


def test_node_out_of_memory_is_the_reported_cause_and_notifies_operators(running, olga):
    report(running, kill(running, machine=True))
    running.refresh_from_db()
    lost = memory_kills.last_report(running)
    assert lost is not None and lost.code == "node_memory_exhausted"
    assert lost.message.startswith("The node ran out of memory.")
    assert Notification.objects.filter(kind="node.memory_full", user=olga).count() == 1


def test_entries_and_notices_of_an_hour_are_limited(running, clock):
    for _ in range(10):
        clock.shift(60)
        assert report(running, kill(running)) == 1
    assert Event.objects.filter(kind="workspace.out_of_memory").count() == memory_kills.MAX_PER_HOUR
    running.refresh_from_db()
    assert memory_kills.last_report(running).count == 10
    clock.shift(3600)
    report(running, kill(running))
    assert Event.objects.filter(kind="workspace.out_of_memory").count() == memory_kills.MAX_PER_HOUR + 1


def test_reports_for_another_node_or_generation_or_stopped_ones_are_ignored(running):
    assert report(running, kill(running), node="another") == 0
    assert report(running, kill(running), pool="another") == 0
    assert report(running, kill(running, generation=running.generation + 1)) == 0
    assert report(running, MemoryKill("no id", 1, 1, 1)) == 0
    node = running.allocations.get(released_at=None).node.name
    found = messages.dump(MemoryKills("", node, (kill(running),)))
    with sent_by("node.another"):
        tasks.apply_memory_kills.run(found)
    assert not Event.objects.filter(kind="workspace.out_of_memory").exists()
    with sent_by(f"node.{node}"):
        tasks.apply_memory_kills.run(found)
        tasks.apply_memory_kills.run({"node": node, "kills": [{"workspace_id": 1}]})
    assert Event.objects.filter(kind="workspace.out_of_memory").count() == 1
    Workspace.objects.filter(pk=running.pk).update(state=State.STOPPING)
    assert report(running, kill(running)) == 0


def test_no_size_is_suggested_if_none_larger_starts_now(running):
    Flavor.objects.exclude(pk=running.flavor_id).update(memory_mib=10**7)
    report(running, kill(running))
    assert Notification.objects.get(kind=memory_kills.NOTICE).body.endswith("choose a larger size.")


def test_failed_workspace_suggests_a_larger_size(running, sent, as_user):
    dispatch.send(running, Op.OBSERVE)
    assert answer(
        sent, Op.OBSERVE, "failed", exit_code=137, code="out_of_memory", message="It took too much."
    )
    notice = Notification.objects.get(kind="workspace.lost")
    assert notice.body == f"It took too much. Files are kept. {SUGGESTED}"
    assert answer(sent, Op.DELETE, "absent")
    running.refresh_from_db()
    assert running.state == State.FAILED
    page = as_user(running.owner).get(f"/workspaces/{running.pk}/").content.decode()
    assert SUGGESTED in page
