"""Restarts of workspaces with other devices, for tests of releases and resizes."""

from __future__ import annotations

from portal.fleet.inventory.models import AllocatedDevice, Device
from portal.scheduling import snapshot_cache
from portal.workspaces import services
from portal.workspaces.lifecycle import State
from portal.workspaces.models import Workspace
from tests.broker import Broker
from tests.rows import reloaded
from tests.sweeps import sweep
from tests.workspaces.helpers import answer, run_until_ready


def allocated_devices() -> int:
    """Return the number of allocated devices."""
    return AllocatedDevice.objects.filter(active=True).count()


def stop_and_free(holder: Workspace, sent: Broker) -> None:
    """Stop the workspace, which frees its devices."""
    services.stop(actor=holder.owner, workspace_id=holder.pk)
    assert answer(sent, "stop", "absent")
    # Scrubs afterwards have their own tests.
    Device.objects.update(checking=False)
    snapshot_cache.forget()


def restarted(workspace: Workspace, sent: Broker) -> Workspace:
    """Complete the stop and the start that were decided."""
    assert answer(sent, "stop", "absent")
    # Checks before hand-out and scrubs have their own tests.
    Device.objects.update(checking=False)
    snapshot_cache.forget()
    sweep()
    assert reloaded(workspace).state == State.PROVISIONING
    run_until_ready(sent, reloaded(workspace))
    return reloaded(workspace)
