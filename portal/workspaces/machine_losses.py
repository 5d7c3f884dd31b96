"""What is said of workspaces on a machine that is believed no more."""

from __future__ import annotations

from django.db import transaction

from portal.common.reasons.codes import WorkspaceCode
from portal.common.reasons.reason import Reason
from portal.machines.domain_events import MachineEnded
from portal.workspaces.lifecycle import HOLDING
from portal.workspaces.models import Workspace
from portal.workspaces.transitions import set_rows


@transaction.atomic
def machine_ended(event: MachineEnded) -> None:
    """Say of everything that is placed there that it can no longer be seen or entered."""
    there = Workspace.objects.filter(
        allocations__node__name=event.name,
        allocations__released_at=None,
        pool=event.pool_id,
        state__in=HOLDING,
    )
    rows = list(
        Workspace.objects.select_for_update(of=("self",)).filter(pk__in=there.values("pk")).order_by("pk")
    )
    if rows:
        reason = Reason(WorkspaceCode.MACHINE_GONE, {"node": event.name})
        set_rows(rows, status={"reason": reason.as_json()})
