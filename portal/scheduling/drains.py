"""Drains: a node or a device takes nothing new, and what runs there is asked to leave, with notice.

Who has to leave stops with its files kept, waits in the queue again at its old place by age, and starts
elsewhere. Putting the node or device back before it has left lets it stay.

First the cordon is committed; only then, under the queue's lock, are those asked who are there. A cycle
that was under way has ended by then, and the next one sees the cordon: nobody is placed there unasked.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from uuid import UUID

from django.conf import settings
from django.db import transaction
from django.db.models import Exists, OuterRef, Q, QuerySet
from django.utils import timezone

from portal.common.actors import SYSTEM, SystemActor
from portal.common.errors import NotFound, StateConflict
from portal.common.events import services as events
from portal.common.events.kinds import AuditKind
from portal.common.events.models import TargetKind
from portal.common.events.services import Target
from portal.common.formatting import format_clock
from portal.common.reasons.reason import Reason
from portal.common.texts import strip_nul
from portal.fleet.inventory import cordons, services
from portal.fleet.inventory.codes import InventoryCode
from portal.fleet.inventory.cordons import display_name
from portal.fleet.inventory.domain_events import DeviceUncordoned, NodeUncordoned
from portal.fleet.inventory.models import Allocation, CordonCause, Device, Node, PlacementLock, Pool
from portal.fleet.machines.domain_events import MachineLeaving
from portal.people.accounts.models import User
from portal.people.accounts.policies import require_operator
from portal.scheduling import hints, snapshot_feed
from portal.workspaces import services as workspaces
from portal.workspaces.lifecycle import PreemptionCause, State
from portal.workspaces.models import Preemption, Workspace
from portal.workspaces.transitions import set_rows

MAX_REASON = 1000
PREEMPTIBLE = (State.PROVISIONING, State.RUNNING)


@dataclass(frozen=True, slots=True)
class Drain:
    """The result of a drain: how many workspaces this call preempted (`asked`) and how many are still there
    (`left`, those included); `until` is when the last of them stops, None where none has to.
    """

    name: str
    asked: int
    left: int
    until: datetime | None

    @property
    def done(self) -> bool:
        return self.left == 0

    def __str__(self) -> str:
        """A sentence for the operator."""
        if self.done:
            return f"{self.name} is cordoned, and nothing runs there."
        some = "1 workspace is" if self.left == 1 else f"{self.left} workspaces are"
        if self.until is None:
            return f"{self.name} is cordoned; {some} just ending there."
        until = format_clock(self.until, timezone.now())
        return f"{self.name} is cordoned; {some} there yet, until {until} at most."


def drain_node(*, actor: User | SystemActor, node_id: UUID, reason: str) -> Drain:
    """Cordon a node and ask what runs there to leave within the site's grace. Repeating it is success.

    Not inside a transaction that has locked workspaces. Raises `NotFound`, `NotAllowed`.
    """
    require_operator(actor)
    reason = strip_nul(reason).strip()[:MAX_REASON]
    before = Node.objects.filter(pk=node_id, cordoned=True).exists()
    node = services.set_cordon(actor=actor, node_id=node_id, cordoned=True, reason=reason)
    return _ask_all(
        actor,
        name=node.name,
        pool=node.pool,
        kind=AuditKind.NODE_DRAINED,
        reason=reason,
        target=Target(TargetKind.NODE, node.name),
        data={"node": node.name},
        there=Q(node=node.pk),
        changed=not before,
    )


def machine_leaving(event: MachineLeaving) -> None:
    """A machine wants to leave: its node takes nothing new, and what is there goes. Repeating is success."""
    node = Node.objects.filter(pool=event.pool_id, name=event.name).first()
    if node is None:
        return
    actor = SystemActor(f"node {event.name}")
    why = "it is leaving"
    if not event.stop:
        drain_node(actor=actor, node_id=node.pk, reason=why)
        return
    services.set_cordon(actor=actor, node_id=node.pk, cordoned=True, reason=why)
    held = Allocation.objects.filter(node=node, released_at=None).values_list("workspace", flat=True)
    for workspace_id in list(held.distinct()):
        with suppress(StateConflict):
            # What is ending is left to end.
            workspaces.stop(actor=actor, workspace_id=workspace_id, reason=f"{event.name} is leaving")


def drain_device(*, actor: User | SystemActor, device_id: UUID, reason: str) -> Drain:
    """Cordon a device and ask who holds any of it to leave; a partitioned GPU, with all its instances.

    As `drain_node`. What a check or a scrub took out becomes the operator's to put back.
    """
    require_operator(actor)
    reason = strip_nul(reason).strip()[:MAX_REASON]
    before = Device.objects.filter(pk=device_id).first()
    if before is None:
        raise NotFound(Reason(InventoryCode.NO_SUCH_DEVICE))
    device = cordons.cordon_device(
        actor=actor, device_id=device_id, reason=reason or before.cordon_reason, cause=CordonCause.OPERATOR
    )
    return _ask_all(
        actor,
        name=display_name(device),
        pool=device.node.pool,
        kind=AuditKind.DEVICE_DRAINED,
        reason=reason,
        target=Target(TargetKind.DEVICE, device.uuid),
        data={"device": device.uuid},
        there=Q(devices__active=True) & _of_device(device),
        changed=not (before.cordoned and before.cordon_cause == CordonCause.OPERATOR),
    )


def _of_device(device: Device) -> Q:
    return Q(devices__device=device.pk) | Q(
        devices__device__parent_uuid=device.uuid, devices__device__node=device.node_id
    )


def _there(where: Q) -> QuerySet[Workspace]:
    """The workspaces with allocations there, locked in this order."""
    holding = Allocation.objects.filter(where, released_at=None).values("workspace")
    return Workspace.objects.filter(pk__in=holding).order_by("pk")


@transaction.atomic
def _ask_all(
    actor: User | SystemActor,
    *,
    name: str,
    pool: Pool,
    kind: AuditKind,
    reason: str,
    target: Target,
    data: dict[str, str],
    there: Q,
    changed: bool,
) -> Drain:
    PlacementLock.hold()
    now = timezone.now()
    grace_s = settings.BERTH_PREEMPTION_GRACE_S
    preempt_at = now + timedelta(seconds=grace_s)
    locked = _there(there).select_for_update(of=("self",))
    rows = list(locked.select_related("owner", "team", "preemption"))
    asked = [row for row in rows if _preempt(row, preempt_at)]
    if asked:
        why = f"{name} is drained" + (f": {reason}" if reason else "")
        events.record_all(
            actor=actor,
            kind=AuditKind.WORKSPACE_PREEMPTING,
            entries=[
                (row, f"asks it to leave within {max(0, int((_by(row) - now).total_seconds()))} s")
                for row in asked
            ],
            reason=why,
            data={"reason": PreemptionCause.DRAIN.value, "for": "", **data},
        )
        for row in asked:
            events.notify(
                [row.owner],
                kind="workspace.preempting",
                title=f"{row.name} has to move and stops at {format_clock(_by(row), now)}",
                body=f"{why}. Save what is open: its files stay, it is queued again by itself, and it "
                "starts elsewhere.",
                url=f"/workspaces/{row.pk}/",
            )
    if asked or changed:
        events.record(
            actor=actor,
            kind=kind,
            pool=pool,
            message=f"drains {name}",
            reason=reason,
            targets=[target],
            data={**data, "asked": len(asked), "left": len(rows)},
        )
    untils = [row.preempting.preempt_at for row in rows if row.preempting and row.state in PREEMPTIBLE]
    return Drain(name=name, asked=len(asked), left=len(rows), until=max(untils, default=None))


def _by(row: Workspace) -> datetime:
    return row.preempting.preempt_at if row.preempting is not None else timezone.now()


def _preempt(row: Workspace, preempt_at: datetime) -> bool:
    """Give a locked workspace notice to make room; False where it has one for a drain, or goes anyway."""
    notice = row.preempting
    if row.state not in PREEMPTIBLE or (notice is not None and notice.cause == PreemptionCause.DRAIN):
        return False
    # Who makes room for another goes at that time; but from now on it does not stay when that other is gone.
    if notice is not None:
        preempt_at = min(notice.preempt_at, preempt_at)
    row.preemption, _ = Preemption.objects.update_or_create(
        workspace=row,
        defaults={"preempt_at": preempt_at, "preempted_by": "", "cause": PreemptionCause.DRAIN},
    )
    row.next_reconcile_at = min(row.next_reconcile_at or preempt_at, preempt_at)
    row.save(update_fields=["next_reconcile_at"])
    snapshot_feed.workloads([row.pk])
    return True


# --- staying ---------------------------------------------------------------------------------------


def node_uncordoned(event: NodeUncordoned) -> None:
    """A node is back: whoever was asked to leave it, and has not, may stay.

    Were this to be lost, `still_drained` is asked when the time to leave has come.
    """
    _cancel_all(Q(node=event.node_id))


def device_uncordoned(event: DeviceUncordoned) -> None:
    """As `node_uncordoned`, for one device."""
    device = Device.objects.filter(pk=event.device_id).first()
    if device is not None:
        _cancel_all(Q(devices__active=True) & _of_device(device))


@transaction.atomic
def _cancel_all(where: Q) -> None:
    drained = _there(where).filter(preemption__cause=PreemptionCause.DRAIN, state__in=PREEMPTIBLE)
    for row in drained.select_for_update(of=("self",)).select_related("owner", "team", "preemption"):
        if not still_drained(row):
            cancel_preemption(row)


def still_drained(workspace: Workspace) -> bool:
    """Whether anything that the workspace holds is kept out of use by an operator now."""
    by_operator = Q(cordoned=True, cordon_cause=CordonCause.OPERATOR)
    if Allocation.objects.filter(workspace=workspace, released_at=None, node__cordoned=True).exists():
        return True
    held = Device.objects.filter(allocated__active=True, allocated__allocation__workspace=workspace)
    parents = Device.objects.filter(by_operator, uuid=OuterRef("parent_uuid"), node=OuterRef("node"))
    return held.filter(by_operator | Exists(parents)).exists()


def cancel_preemption(workspace: Workspace) -> None:
    """Take back the notice of a locked workspace; its next step is due at once."""
    set_rows([workspace], end_preemption=True)
    workspace.next_reconcile_at = timezone.now()
    workspace.save(update_fields=["next_reconcile_at"])
    snapshot_feed.workloads([workspace.pk])
    events.record(
        actor=SYSTEM,
        kind=AuditKind.WORKSPACE_MAY_STAY,
        workspace=workspace,
        message="lets it stay",
        reason="where it runs is not drained any more",
    )
    events.notify(
        [workspace.owner],
        kind="workspace.may_stay",
        title=f"{workspace.name} may stay where it is",
        body="Where it runs is not taken out of use after all.",
        url=f"/workspaces/{workspace.pk}/",
    )
    # Others may count on its leaving.
    hints.request_cycle()
