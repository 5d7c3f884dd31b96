"""The summary of a workspace shown in its notebook."""

from __future__ import annotations

from datetime import timedelta

import pytest
from django.utils import timezone

from portal.common.actors import SYSTEM
from portal.fleet.announcements import services as announcements
from portal.fleet.inventory.models import AllocatedDevice, Device
from portal.workspaces.gateway.summary import summary_of
from portal.workspaces.lifecycle import State
from portal.workspaces.models import HomeUsage, Preemption, Workspace
from provisioning.types import external_name
from tests import sites
from tests.factories import WorkspaceFactory
from tests.workspaces.helpers import run_until_ready

pytestmark = pytest.mark.django_db
WORLD = sites.one_machine


@pytest.fixture
def running(make, alice, local_pool, sent) -> Workspace:
    workspace: Workspace = make(alice)
    run_until_ready(sent, workspace)
    return workspace


def tell(workspace: Workspace, **activity: object) -> None:
    workspace.status.activity = activity
    workspace.status.save()


def texts(workspace: Workspace) -> list[str]:
    found = summary_of(workspace.external_name)
    assert found is not None
    return [message["text"] for message in found["messages"]]


def test_summary_has_name_and_usage(running):
    gpu = {"uuid": "GPU-1", "utilization_percent": 45, "memory_used_mib": 2048, "memory_total_mib": 81920}
    tell(running, rss_mib=300, gpus=[gpu])
    found = summary_of(running.external_name)
    assert (found["name"], found["team"], found["state"]) == (running.name, running.team.name, "running")
    assert found["memory"] == {"used_mib": 300, "limit_mib": running.resources["memory_mib"]}
    assert found["gpus"] == [{"utilization_percent": 45, "memory_used_mib": 2048, "memory_total_mib": 81920}]
    assert found["messages"] == []


def test_summary_before_the_first_heartbeat_has_no_usage(running):
    found = summary_of(running.external_name)
    assert found["memory"]["used_mib"] is None and found["gpus"] == []


def test_missing_workspace_is_not_found(db):
    assert summary_of(external_name("11111111-2222-3333-4444-555555555555")) is None


def test_stopped_workspace_has_a_state_without_figures(running):
    tell(running, rss_mib=300, gpus_stale_s=40)
    Workspace.objects.filter(pk=running.pk).update(state=State.STOPPING)
    found = summary_of(running.external_name)
    assert (found["state"], found["memory"]["used_mib"], found["messages"]) == ("stopping", None, [])


def test_operator_warning_is_shown_and_information_is_not(running):
    announcements.create(actor=SYSTEM, text="Save often.", kind="warning")
    announcements.create(actor=SYSTEM, text="New driver on Monday.")
    assert texts(running) == ["Save often."]


def test_preemption_is_the_first_message(running):
    tell(running, gpus_stale_s=40)
    at = timezone.now() + timedelta(minutes=5)
    Preemption.objects.create(workspace=running, cause="reclaim", preempt_at=at)
    first, second = summary_of(running.external_name)["messages"]
    assert (first["tone"], first["at"]) == ("bad", at.isoformat())
    assert "the team that owns the borrowed quota" in first["text"]
    assert "40 s" in second["text"]


def test_full_home_is_reported(running, settings):
    settings.BERTH_HOME_LIMIT_MIB = 100
    node = running.allocations.get().node
    HomeUsage.objects.create(
        owner=running.owner,
        team=running.team,
        node=node,
        used_mib=95,
        percent=90,
        measured_at=timezone.now(),
    )
    assert [text for text in texts(running) if "home folder uses" in text]


def test_cordoned_gpu_is_shown_to_its_user(running):
    allocation = running.allocations.get()
    device = Device.objects.create(node=allocation.node, uuid="GPU-1", index=0, model="H100", kind="gpu")
    AllocatedDevice.objects.create(allocation=allocation, device=device)
    assert texts(running) == []
    Device.objects.update(cordoned=True)
    assert [text for text in texts(running) if "may need repair" in text]
    allocation.released_at = timezone.now()
    allocation.save()
    assert texts(running) == []


def test_messages_of_another_workspace_are_not_shown(running):
    other = WorkspaceFactory(state=State.RUNNING, pool=running.pool)
    tell(running, gpus_stale_s=40)
    assert texts(other) == []


def test_summary_takes_four_queries(running, django_assert_max_num_queries):
    with django_assert_max_num_queries(4):
        summary_of(running.external_name)
