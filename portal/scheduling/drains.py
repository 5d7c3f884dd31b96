"""Drains: a node or device takes no new work, and its workspaces are preempted with notice.

A preempted workspace stops, keeps its files, is queued again with its original age, and starts elsewhere. If
the operator uncordons the node or device first, the workspace stays.

The cordon is committed first; only then, under the queue's lock, are workspaces preempted. Any concurrent
cycle has ended by then, and the next one sees the cordon, so no workspace is missed.
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
from django.utils.translation import gettext as _
from django.utils.translation import gettext_noop, ngettext

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
    """The result of a drain.

    - `asked`: number of workspaces preempted by this call.
    - `left`: number of workspaces still there, including the preempted ones.
    - `until`: when the last preempted workspace stops; None if no workspace was preempted.
    """

    name: str
    asked: int
    left: int
    until: datetime | None

    @property
    def done(self) -> bool:
        return self.left == 0

    def __str__(self) -> str:
        """Return the result as a sentence for the operator."""
        if self.done:
            return _("%(name)s is cordoned, and nothing runs there.") % {"name": self.name}
        params: dict[str, str | int] = {"name": self.name, "count": self.left}
        if self.until is None:
            text = ngettext(
                "%(name)s is cordoned; %(count)d workspace is still ending there.",
                "%(name)s is cordoned; %(count)d workspaces are still ending there.",
                self.left,
            )
            return text % params
        text = ngettext(
            "%(name)s is cordoned; %(count)d workspace is still there, until %(time)s at the latest.",
            "%(name)s is cordoned; %(count)d workspaces are still there, until %(time)s at the latest.",
            self.left,
        )
        return text % {**params, "time": format_clock(self.until, timezone.now())}


def drain_node(*, actor: User | SystemActor, node_id: UUID, reason: str) -> Drain:
    """Cordon a node and preempt its workspaces within the site's grace period. Idempotent.

    Must not run inside a transaction that has locked workspaces. Raises `NotFound`, `NotAllowed`.
    """
    require_operator(actor)
    reason = strip_nul(reason).strip()[:MAX_REASON]
    before = Node.objects.filter(pk=node_id, cordoned=True).exists()
    node = services.set_cordon(actor=actor, node_id=node_id, cordoned=True, reason=reason)
    return _preempt_all(
        actor,
        name=node.name,
        pool=node.pool,
        kind=AuditKind.NODE_DRAINED,
        reason=reason,
        target=Target(TargetKind.NODE, node.name),
        data={"node": node.name},
        where=Q(node=node.pk),
        changed=not before,
    )


def drain_leaving_machine(event: MachineLeaving) -> None:
    """Cordon and drain the node of a machine that is about to leave. Idempotent."""
    node = Node.objects.filter(pool=event.pool_id, name=event.name).first()
    if node is None:
        return
    actor = SystemActor(f"node {event.name}")
    reason = gettext_noop("the machine is leaving its pool")
    if not event.stop:
        drain_node(actor=actor, node_id=node.pk, reason=reason)
        return
    services.set_cordon(actor=actor, node_id=node.pk, cordoned=True, reason=reason)
    allocations = Allocation.objects.filter(node=node, released_at=None).values_list("workspace", flat=True)
    for workspace_id in list(allocations.distinct()):
        with suppress(StateConflict):
            # The workspace is already ending.
            workspaces.stop(actor=actor, workspace_id=workspace_id, reason=f"{event.name} is leaving")


def drain_device(*, actor: User | SystemActor, device_id: UUID, reason: str) -> Drain:
    """Cordon a device and preempt its workspaces; for a partitioned GPU, those of all instances.

    Like `drain_node`. Replaces the cordon of a check or scrub by the operator's, which only operators can
    lift.
    """
    require_operator(actor)
    reason = strip_nul(reason).strip()[:MAX_REASON]
    before = Device.objects.filter(pk=device_id).first()
    if before is None:
        raise NotFound(Reason(InventoryCode.NO_SUCH_DEVICE))
    device = cordons.cordon_device(
        actor=actor, device_id=device_id, reason=reason or before.cordon_reason, cause=CordonCause.OPERATOR
    )
    return _preempt_all(
        actor,
        name=display_name(device),
        pool=device.node.pool,
        kind=AuditKind.DEVICE_DRAINED,
        reason=reason,
        target=Target(TargetKind.DEVICE, device.uuid),
        data={"device": device.uuid},
        where=Q(devices__active=True) & _device_filter(device),
        changed=not (before.cordoned and before.cordon_cause == CordonCause.OPERATOR),
    )


def _device_filter(device: Device) -> Q:
    return Q(devices__device=device.pk) | Q(
        devices__device__parent_uuid=device.uuid, devices__device__node=device.node_id
    )


def _workspaces_at(where: Q) -> QuerySet[Workspace]:
    """Return the workspaces with allocations there, in lock order."""
    holding = Allocation.objects.filter(where, released_at=None).values("workspace")
    return Workspace.objects.filter(pk__in=holding).order_by("pk")


@transaction.atomic
def _preempt_all(
    actor: User | SystemActor,
    *,
    name: str,
    pool: Pool,
    kind: AuditKind,
    reason: str,
    target: Target,
    data: dict[str, str],
    where: Q,
    changed: bool,
) -> Drain:
    PlacementLock.hold()
    now = timezone.now()
    grace_s = settings.BERTH_PREEMPTION_GRACE_S
    preempt_at = now + timedelta(seconds=grace_s)
    locked = _workspaces_at(where).select_for_update(of=("self",))
    rows = list(locked.select_related("owner", "team", "preemption"))
    preempted = [row for row in rows if _preempt(row, preempt_at)]
    if preempted:
        message = f"{name} is being drained" + (f": {reason}" if reason else "")
        events.record_all(
            actor=actor,
            kind=AuditKind.WORKSPACE_PREEMPTING,
            entries=[
                (
                    row,
                    f"announced the preemption of the workspace within {_seconds_until_stop(row, now)} s",
                )
                for row in preempted
            ],
            reason=message,
            data={"reason": PreemptionCause.DRAIN.value, "for": "", **data},
        )
        for row in preempted:
            events.notify(
                [row.owner],
                kind="workspace.preempting",
                title=_("%(name)s will be moved and stops at %(time)s")
                % {"name": row.name, "time": format_clock(_preempt_at(row), now)},
                body=_drain_text(name, reason),
                url=f"/workspaces/{row.pk}/",
            )
    if preempted or changed:
        events.record(
            actor=actor,
            kind=kind,
            pool=pool,
            message=f"started to drain {name}",
            reason=reason,
            targets=[target],
            data={**data, "asked": len(preempted), "left": len(rows)},
        )
    untils = [row.preempting.preempt_at for row in rows if row.preempting and row.state in PREEMPTIBLE]
    return Drain(name=name, asked=len(preempted), left=len(rows), until=max(untils, default=None))


def _drain_text(name: str, reason: str) -> str:
    """Return the text of the notice to owners. `reason` is the operator's text, a marked one, or empty."""
    params = {"name": name, "why": _(reason).removesuffix(".") if reason else ""}
    if reason:
        return (
            _(
                "%(name)s is being drained: %(why)s. Save your work. Files are kept. The workspace is queued "
                "again and restarts elsewhere."
            )
            % params
        )
    return (
        _(
            "%(name)s is being drained. Save your work. Files are kept. The workspace is queued again and "
            "restarts elsewhere."
        )
        % params
    )


def _preempt_at(row: Workspace) -> datetime:
    return row.preempting.preempt_at if row.preempting is not None else timezone.now()


def _seconds_until_stop(row: Workspace, now: datetime) -> int:
    return max(0, int((_preempt_at(row) - now).total_seconds()))


def _preempt(row: Workspace, preempt_at: datetime) -> bool:
    """Preempt a locked workspace. Returns False if it is ending or already being preempted for a drain."""
    notice = row.preempting
    if row.state not in PREEMPTIBLE or (notice is not None and notice.cause == PreemptionCause.DRAIN):
        return False
    # An earlier preemption keeps its time, but is no longer cancelled with its beneficiary.
    if notice is not None:
        preempt_at = min(notice.preempt_at, preempt_at)
    row.preemption, _created = Preemption.objects.update_or_create(
        workspace=row,
        defaults={"preempt_at": preempt_at, "preempted_by": "", "cause": PreemptionCause.DRAIN},
    )
    row.next_reconcile_at = min(row.next_reconcile_at or preempt_at, preempt_at)
    row.save(update_fields=["next_reconcile_at"])
    snapshot_feed.workloads([row.pk])
    return True


# --- cancelling ------------------------------------------------------------------------------------


def node_uncordoned(event: NodeUncordoned) -> None:
    """Cancel the preemptions of workspaces on an uncordoned node.

    If this event is lost, `is_drained` is checked when the workspace would stop.
    """
    _cancel_preemptions(Q(node=event.node_id))


def device_uncordoned(event: DeviceUncordoned) -> None:
    """Cancel the preemptions of workspaces on an uncordoned device."""
    device = Device.objects.filter(pk=event.device_id).first()
    if device is not None:
        _cancel_preemptions(Q(devices__active=True) & _device_filter(device))


@transaction.atomic
def _cancel_preemptions(where: Q) -> None:
    drained = _workspaces_at(where).filter(preemption__cause=PreemptionCause.DRAIN, state__in=PREEMPTIBLE)
    for row in drained.select_for_update(of=("self",)).select_related("owner", "team", "preemption"):
        if not is_drained(row):
            cancel_preemption(row)


def is_drained(workspace: Workspace) -> bool:
    """Return whether an operator has cordoned anything that the workspace uses."""
    by_operator = Q(cordoned=True, cordon_cause=CordonCause.OPERATOR)
    if Allocation.objects.filter(workspace=workspace, released_at=None, node__cordoned=True).exists():
        return True
    devices = Device.objects.filter(allocated__active=True, allocated__allocation__workspace=workspace)
    parents = Device.objects.filter(by_operator, uuid=OuterRef("parent_uuid"), node=OuterRef("node"))
    return devices.filter(by_operator | Exists(parents)).exists()


def cancel_preemption(workspace: Workspace) -> None:
    """Cancel the preemption of a locked workspace, and reconcile it at once."""
    set_rows([workspace], end_preemption=True)
    workspace.next_reconcile_at = timezone.now()
    workspace.save(update_fields=["next_reconcile_at"])
    snapshot_feed.workloads([workspace.pk])
    events.record(
        actor=SYSTEM,
        kind=AuditKind.WORKSPACE_PREEMPTION_CANCELLED,
        workspace=workspace,
        message="cancelled the preemption of the workspace",
        reason="its node or GPU is no longer being drained",
    )
    events.notify(
        [workspace.owner],
        kind="workspace.may_stay",
        title=_("%(name)s stays on its node") % {"name": workspace.name},
        body=_("Its node or GPU is no longer being drained."),
        url=f"/workspaces/{workspace.pk}/",
    )
    # Other requests may have relied on this capacity.
    hints.request_cycle()
