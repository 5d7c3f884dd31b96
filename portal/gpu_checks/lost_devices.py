"""Ends workspaces whose accelerator has disappeared, and notifies their owners.

Searches all workspaces after each inventory, so that none is missed if a worker dies. A workspace that has
not been started is queued again at its old position.
"""

from __future__ import annotations

import logging
from uuid import UUID

from django.db import transaction
from django.db.models import F, Q, QuerySet
from django.utils.translation import gettext, ngettext

from portal.common.errors import NotFound, StateConflict
from portal.common.events import services as events
from portal.common.reasons.reason import Reason
from portal.common.reasons.wording import join_names
from portal.fleet.inventory.cordons import display_name
from portal.fleet.inventory.domain_events import InventoryApplied
from portal.fleet.inventory.models import AllocatedDevice
from portal.gpu_checks import preflight
from portal.workspaces import reconcile
from portal.workspaces.codes import WorkspaceCode
from portal.workspaces.lifecycle import State, TerminationReason
from portal.workspaces.models import Workspace
from portal.workspaces.transitions import lock_workspace

log = logging.getLogger(__name__)
ENDS = (State.PROVISIONING, State.RUNNING)


def end_all(event: InventoryApplied) -> int:
    """End workspaces with a missing device in the pool, and return their number.

    Call it outside of transactions that hold locks. Each workspace has its own transaction and lock, so a
    failure does not block the others.
    """
    grants = _lost_allocations().filter(
        allocation__workspace__state__in=ENDS, allocation__node__pool=event.pool, allocation__released_at=None
    )
    ended = 0
    for workspace_id in sorted(set(grants.values_list("allocation__workspace_id", flat=True))):
        try:
            ended += end_workspace(workspace_id)
        except (NotFound, StateConflict):
            # The workspace has ended meanwhile.
            continue
        except Exception:
            log.exception("could not end workspace %s, whose GPU is missing", workspace_id)
    return ended


@transaction.atomic
def end_workspace(workspace_id: UUID) -> bool:
    """End one workspace if it holds a missing device. Returns `False` if that is no longer needed."""
    workspace = lock_workspace(workspace_id)
    if workspace.state not in ENDS:
        return False
    rows = _lost_allocations().filter(allocation__workspace=workspace, allocation__released_at=None)
    grants = list(rows.select_related("device", "allocation__node").order_by("device__index", "pk"))
    if not grants:
        return False
    names = [_name(grant) for grant in grants]
    if _is_not_started(workspace):
        preflight.requeue_first(
            workspace, Reason(WorkspaceCode.DEVICE_LOST, {"devices": names, "replaced": True})
        )
        return True
    reconcile.fail(workspace, TerminationReason.LOST, Reason(WorkspaceCode.DEVICE_LOST, {"devices": names}))
    _notify(workspace, names)
    return True


def _is_not_started(workspace: Workspace) -> bool:
    """Return whether nothing was started. Only then may the allocation be released at once."""
    waits = workspace.waits_for_checks or workspace.waits_for_home
    return workspace.state == State.PROVISIONING and waits


def _name(grant: AllocatedDevice) -> str:
    """Return the name of the device on the node of its allocation, even if it has moved."""
    grant.device.node = grant.allocation.node
    return display_name(grant.device)


def _notify(workspace: Workspace, names: list[str]) -> None:
    title = ngettext(
        "%(workspace)s was ended: %(devices)s disappeared",
        "%(workspace)s was ended: %(devices)s disappeared",
        len(names),
    ) % {"workspace": workspace.name, "devices": join_names(names)}
    events.notify(
        [workspace.owner],
        kind="workspace.device_lost",
        title=gettext("Simulated: %(title)s") % {"title": title} if workspace.simulated else title,
        body=gettext(
            "Running work was lost. Files are kept. Start the workspace again to get another device."
        ),
        url=f"/workspaces/{workspace.pk}/",
    )


def _lost_allocations() -> QuerySet[AllocatedDevice]:
    """Return allocations of devices that are missing or now on another node."""
    moved = ~Q(device__node=F("allocation__node"))
    return AllocatedDevice.objects.filter(Q(device__present=False) | moved, active=True)
