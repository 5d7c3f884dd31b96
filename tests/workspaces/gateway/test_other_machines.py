"""Workspaces on other machines, and revoked machines."""

from __future__ import annotations

import pytest
from django.utils import timezone

from portal.common.events import live
from portal.fleet.inventory.models import Allocation, Node
from portal.fleet.machines import services
from portal.fleet.machines.models import Machine
from portal.workspaces.gateway import publishing
from portal.workspaces.lifecycle import State
from portal.workspaces.models import Workspace
from portal.workspaces.problems import problem_sentence
from provisioning.endpoints import socket_endpoint
from provisioning.types import WorkspaceRef
from tests import sites
from tests.factories import MachineFactory, WorkspaceFactory

pytestmark = pytest.mark.django_db
WORLD = sites.one_machine


@pytest.fixture
def workspace(local_pool, alice, team) -> Workspace:
    """A workspace on gpu-07, another machine."""
    MachineFactory(pool=local_pool, name="gpu-07", gateway_host="10.0.0.7", gateway_port=8646)
    node = Node.objects.create(pool=local_pool, name="gpu-07", online=True)
    return running_on(node, alice, team)


def running_on(node, owner, team) -> Workspace:
    found = WorkspaceFactory(owner=owner, team=team, pool=node.pool, state=State.RUNNING, generation=3)
    found.endpoint = socket_endpoint(WorkspaceRef(str(found.pk), 3))
    found.save(update_fields=["endpoint"])
    Allocation.objects.create(
        workspace=found, node=node, generation=3, cpu_milli=1, memory_mib=1, granted_at=timezone.now()
    )
    return found


def test_workspace_is_reached_at_the_gateway_of_its_machine(workspace):
    view = publishing.view_of(workspace)
    assert view.socket == f"{workspace.external_name}.3"
    assert (view.gateway, view.node, view.endpoint) == ("10.0.0.7:8646", "gpu-07", "")
    Machine.objects.update(gateway_host="fd00::7")
    assert publishing.view_of(workspace).gateway == "[fd00::7]:8646"


def test_local_workspace_has_no_gateway(workspace, local_pool, alice, team):
    own = running_on(Node.objects.get(pool=local_pool, name="node-1"), alice, team)
    view = publishing.view_of(own)
    assert view.socket and (view.gateway, view.node) == ("", "")


def test_no_request_goes_to_a_revoked_machine(workspace, olga, monkeypatch):
    put = []
    monkeypatch.setattr(publishing.workspace_views, "store_view", lambda _redis, view: put.append(view))
    services.revoke(actor=olga, machine_id=Machine.objects.get().pk)
    assert [(view.external_name, view.socket, view.gateway) for view in put] == [
        (workspace.external_name, "", "")
    ]
    assert publishing.view_of(workspace).endpoint == ""


def test_only_workspaces_on_the_lost_machine_are_lost(
    workspace, olga, local_pool, alice, team, monkeypatch, django_capture_on_commit_callbacks
):
    monkeypatch.setattr(publishing.workspace_views, "store_view", lambda *_: None)
    other = running_on(Node.objects.get(pool=local_pool, name="node-1"), alice, team)
    with django_capture_on_commit_callbacks(execute=True):
        services.revoke(actor=olga, machine_id=Machine.objects.get().pk)
    for found in (workspace, other):
        found.status.refresh_from_db()
    assert problem_sentence(workspace).startswith("gpu-07 was revoked, so the portal can no longer reach")
    assert problem_sentence(other) == ""


def test_page_shows_the_problem_and_the_next_step(
    workspace, olga, alice, as_user, monkeypatch, django_capture_on_commit_callbacks
):
    told = []
    monkeypatch.setattr(publishing.workspace_views, "store_view", lambda *_: None)
    monkeypatch.setattr(live, "publish", lambda pk, owner, kind: told.append((pk, owner, kind)))
    page = as_user(alice).get(f"/workspaces/{workspace.pk}/").content.decode()
    assert "act-open" in page and "Machine revoked" not in page
    with django_capture_on_commit_callbacks(execute=True):
        services.revoke(actor=olga, machine_id=Machine.objects.get().pk)
    assert (workspace.pk, alice.pk, "workspace.cut_off") in told
    page = as_user(alice).get(f"/workspaces/{workspace.pk}/").content.decode()
    assert "gpu-07 was revoked" in page and "Ask an operator about its files" in page
    assert "act-open" not in page
    home = as_user(alice).get("/").content.decode()
    assert "Machine revoked" in home and f"open-{workspace.pk}" not in home


@pytest.mark.parametrize("endpoint", ["http://127.0.0.1:8001", "http://10.0.0.9:80", "node:ws-x.1"])
def test_endpoint_reported_by_another_machine_is_not_used(workspace, endpoint):
    """The address could be that of the portal's own services on loopback."""
    workspace.endpoint = endpoint
    view = publishing.view_of(workspace)
    assert (view.socket, view.gateway, view.endpoint) == ("", "", "")


def test_view_takes_one_more_query(workspace, django_assert_num_queries):
    found = publishing._by_external_name(workspace.external_name)
    with django_assert_num_queries(1):
        publishing.view_of(found)
