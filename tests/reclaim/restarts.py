"""Workspaces that stop for other devices and run again, in tests of releases and of other sizes."""

from __future__ import annotations

from portal.fleet.inventory.models import AllocatedDevice, Device
from portal.scheduling import snapshot_cache
from portal.workspaces import services
from portal.workspaces.lifecycle import State
from portal.workspaces.models import Workspace
from tests.broker import Broker
from tests.rows import again
from tests.sweeps import sweep
from tests.workspaces.helpers import answer, run_until_ready


def held() -> int:
    """How many devices are allocated."""
    return AllocatedDevice.objects.filter(active=True).count()


def free_it(holder: Workspace, sent: Broker) -> None:
    """Stop the workspace; its devices are free."""
    services.stop(actor=holder.owner, workspace_id=holder.pk)
    assert answer(sent, "stop", "absent")
    # Scrubs after it have tests of their own.
    Device.objects.update(checking=False)
    snapshot_cache.forget()


def restarted(workspace: Workspace, sent: Broker) -> Workspace:
    """It has stopped, and runs again as it was decided."""
    assert answer(sent, "stop", "absent")
    # Checks before hand-out and scrubs after it have tests of their own.
    Device.objects.update(checking=False)
    snapshot_cache.forget()
    sweep()
    assert again(workspace).state == State.PROVISIONING
    run_until_ready(sent, again(workspace))
    return again(workspace)
