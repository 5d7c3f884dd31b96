"""Whole lives of workspaces on the simulated driver, with both planes in this process."""

from __future__ import annotations

from portal.workspaces import services
from portal.workspaces.lifecycle import State


def test_a_workspace_starts_stops_starts_again_and_is_deleted(make, alice, pool, settle):
    workspace = make(alice, "sim-cpu")
    assert workspace.state == State.PROVISIONING

    settle()
    workspace.refresh_from_db()
    assert workspace.state == State.RUNNING
    assert workspace.allocations.filter(released_at=None).count() == 1

    services.stop(actor=alice, workspace_id=workspace.pk)
    settle()
    workspace.refresh_from_db()
    assert workspace.state == State.STOPPED
    assert not workspace.allocations.filter(released_at=None).exists()

    services.start(actor=alice, workspace_id=workspace.pk)
    settle()
    workspace.refresh_from_db()
    assert workspace.state == State.RUNNING
    assert workspace.generation == 2

    services.delete(actor=alice, workspace_id=workspace.pk)
    settle()
    workspace.refresh_from_db()
    assert workspace.state == State.TERMINATED
    assert not workspace.allocations.filter(released_at=None).exists()
