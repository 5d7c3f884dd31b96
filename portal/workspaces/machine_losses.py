"""Workspaces on machines that are revoked, have left or are removed."""

from __future__ import annotations

from typing import Any

from django.db import transaction
from django.db.models import Q
from django.utils import timezone
from django.utils.translation import gettext as _

from portal.common.actors import SYSTEM, SystemActor
from portal.common.domain_events import emit
from portal.common.events import services as events
from portal.common.events.kinds import AuditKind
from portal.common.events.services import notify
from portal.common.reasons.reason import Reason
from portal.common.reasons.wording import sentence_of
from portal.fleet.inventory import cordons
from portal.fleet.inventory.models import AllocatedDevice, Allocation, CordonCause, Node
from portal.fleet.machines.domain_events import MachineEnded
from portal.people.accounts.models import User
from portal.workspaces import reconcile
from portal.workspaces.codes import WorkspaceCode
from portal.workspaces.domain_events import WorkspaceFailed
from portal.workspaces.lifecycle import HOLDING, DesiredState, State, TerminationReason, Trigger
from portal.workspaces.models import Workspace, WorkspaceQuerySet
from portal.workspaces.transitions import advance, set_rows


def workspaces_on_node(pool_id: Any, node: str) -> WorkspaceQuerySet:
    """Return the workspaces with an allocation on the node with this name."""
    allocations = Allocation.objects.filter(node__pool=pool_id, node__name=node, released_at=None)
    return Workspace.objects.filter(pk__in=allocations.values("workspace"))


@transaction.atomic
def machine_ended(event: MachineEnded) -> None:
    """Record that workspaces on an ended machine can no longer be observed or entered."""
    workspaces = workspaces_on_node(event.pool_id, event.name).filter(state__in=HOLDING)
    rows = list(
        Workspace.objects.select_for_update(of=("self",))
        .filter(pk__in=workspaces.values("pk"))
        .order_by("pk")
    )
    if rows:
        reason = Reason(WorkspaceCode.MACHINE_GONE, {"node": event.name})
        set_rows(rows, status={"reason": reason.as_json()})
        events.record_all(
            actor=SYSTEM,
            kind=AuditKind.WORKSPACE_CUT_OFF,
            entries=[(row, f"can no longer reach the workspace on {event.name}") for row in rows],
            cause=reason.as_json(),
            data={"node": event.name},
        )


def end_all(*, actor: User | SystemActor, node: Node, reason: str) -> list[Workspace]:
    """End the workspaces on the node of a removed machine without confirmation from the node.

    Runs in a transaction under the placement lock. Parts on other machines are ended by command. Allocated
    devices are cordoned until they are scrubbed, in case the machine comes back.
    """
    workspaces = workspaces_on_node(node.pool_id, node.name)
    rows = list(
        Workspace.objects.select_for_update(of=("self",))
        .filter(pk__in=workspaces.values("pk"))
        .select_related("owner", "team", "template", "pool", "queue_entry", "status", "preemption")
        .order_by("pk")
    )
    devices = list(
        AllocatedDevice.objects.filter(
            allocation__node=node, active=True, device__node__pool__simulated=False
        )
        .values_list("device", flat=True)
        .distinct()
    )
    for workspace in rows:
        _end(workspace, node, actor=actor, reason=reason)
    for device in devices:
        cordons.cordon_device(
            actor=SYSTEM,
            device_id=device,
            reason="The machine was removed while the device was in use. Scrub the device first.",
            cause=CordonCause.SCRUB,
        )
    return rows


def _end(workspace: Workspace, node: Node, *, actor: User | SystemActor, reason: str) -> None:
    cause = Reason(WorkspaceCode.MACHINE_REMOVED, {"node": node.name})
    reconcile.release(workspace, only=Q(node=node))
    if workspace.allocations.filter(released_at=None).exists():
        # The rest of the workspace is on other machines.
        if workspace.state in {State.PROVISIONING, State.RUNNING}:
            reconcile.fail(workspace, TerminationReason.LOST, cause)
        return
    if workspace.state in {State.PROVISIONING, State.RUNNING}:
        trigger = Trigger.LOST if workspace.state == State.RUNNING else Trigger.FAIL
        _advance(workspace, trigger, cause, actor, reason, termination_reason=TerminationReason.LOST)
        emit(WorkspaceFailed(workspace, TerminationReason.LOST, cause))
        _notify(workspace, cause)
    if workspace.state == State.TERMINATING:
        _advance(workspace, Trigger.GONE, cause, actor, reason, next_reconcile_at=None)
    elif workspace.state == State.STOPPING:
        continues = workspace.desired_state != DesiredState.STOPPED
        due = timezone.now() if continues else None
        _advance(workspace, Trigger.STOPPED, cause, actor, reason, next_reconcile_at=due)


def _advance(
    workspace: Workspace,
    trigger: Trigger,
    cause: Reason,
    actor: User | SystemActor,
    reason: str,
    **fields: Any,
) -> None:
    advance(
        workspace,
        trigger,
        actor=actor,
        message="ended the workspace, because its machine was lost",
        reason=reason,
        cause=cause.as_json(),
        status={"reason": cause.as_json(), "heartbeat_at": None},
        end_preemption=True,
        endpoint="",
        lease="",
        lease_expires_at=None,
        attempts=0,
        start_refused=False,
        **fields,
    )


def _notify(workspace: Workspace, cause: Reason) -> None:
    notify(
        [workspace.owner],
        kind="workspace.lost",
        title=_("%(name)s has ended with its machine") % {"name": workspace.name},
        body=sentence_of(cause),
        url=f"/workspaces/{workspace.pk}/",
    )
