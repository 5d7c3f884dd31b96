"""Requests checks and scrubs of devices, and sends them to nodes."""

from __future__ import annotations

import logging
import uuid
from collections import Counter
from collections.abc import Collection, Mapping
from datetime import datetime, timedelta
from functools import partial
from typing import Any
from uuid import UUID

from django.db import transaction
from django.utils import timezone

from portal.celery import app
from portal.common.actors import SYSTEM, SystemActor
from portal.common.domain_events import emit
from portal.common.errors import InvalidInput, NotFound, NotPossible, StateConflict
from portal.common.events import live
from portal.common.events import services as events
from portal.common.events.kinds import AuditKind
from portal.common.events.models import TargetKind
from portal.common.events.services import Target
from portal.common.problem_codes import ProblemCode
from portal.common.reasons.codes import CommonCode
from portal.common.reasons.reason import Reason
from portal.common.reasons.wording import message_of
from portal.fleet.inventory import node_commands
from portal.fleet.inventory.cordons import display_name, locked_device
from portal.fleet.inventory.domain_events import CapacityFreed, NodesChanged
from portal.fleet.inventory.models import CheckLevel, Device, Node, PlacementLock
from portal.gpu_checks import peers
from portal.gpu_checks.codes import CheckCode
from portal.gpu_checks.kinds.registry import handler_of
from portal.gpu_checks.models import OPEN, CheckCause, CheckKind, GpuCheckRun, RunState
from portal.gpu_checks.selectors import open_run_on
from portal.people.accounts.models import User
from portal.people.accounts.policies import require_operator
from portal.workspaces.models import Workspace
from provisioning import messages
from provisioning.check_messages import CheckCommand
from provisioning.types import DeviceKind

log = logging.getLogger(__name__)

BEGIN_WITHIN_S = 30
"""Seconds after which a message to a node expires."""
SILENT_S = 60
"""Seconds without a message after which a run is lost. Running checks report every few seconds."""
MAX_ATTEMPTS = 3
AT_ONCE_ON_NODE = 4
"""Maximum concurrent runs per node. More would compete for memory and PCIe bandwidth."""


@transaction.atomic
def request_check(
    *,
    actor: User | SystemActor,
    device_id: UUID,
    level: str = CheckLevel.QUICK,
    cause: CheckCause = CheckCause.OPERATOR,
    workspace: Workspace | None = None,
) -> GpuCheckRun:
    """Request a check of a device. The run is queued and sent to its node as soon as possible.

    Nothing is placed on the device until the run has ended. A repeated request returns the open run. With the
    cause HAND_OUT, only `workspace` may have the device, and the caller holds the workspace's lock. Raises
    `NotAllowed`, `InvalidInput` (level), `NotFound`, `NotPossible` (the device can never be checked) and
    `StateConflict` (in use, missing, another run open).
    """
    require_operator(actor)
    if level not in CheckLevel.values:
        choose = Reason(CommonCode.CHOOSE_ONE_OF, {"known": list(CheckLevel.values)})
        raise InvalidInput(Reason(CheckCode.NO_SUCH_LEVEL), errors={"level": [choose]})
    return _request(actor, device_id, CheckKind.CHECK, CheckLevel(level), cause, workspace)


@transaction.atomic
def request_scrub(
    *, actor: User | SystemActor, device_id: UUID, cause: CheckCause = CheckCause.OPERATOR
) -> GpuCheckRun:
    """Request a scrub, which clears and verifies a device's memory. Otherwise like `request_check`."""
    require_operator(actor)
    return _request(actor, device_id, CheckKind.SCRUB, CheckLevel.QUICK, cause, None)


def _request(
    actor: User | SystemActor,
    device_id: UUID,
    kind: CheckKind,
    level: CheckLevel,
    cause: CheckCause,
    workspace: Workspace | None,
) -> GpuCheckRun:
    if workspace is None:
        # Only cycles allocate capacity, under this lock, so the device cannot be allocated meanwhile.
        PlacementLock.hold()
    device = locked_device(device_id)
    under_way = open_run_on(device)
    if under_way is not None:
        if (under_way.device_id, under_way.kind, under_way.level) == (device.pk, kind, level):
            return under_way
        raise StateConflict(
            Reason(CheckCode.CHECK_UNDER_WAY, {"kind": under_way.kind, "device": display_name(device)}),
            code=ProblemCode.CHECK_UNDER_WAY,
            run=str(under_way.pk),
        )
    if device.mig_mode and device.kind == DeviceKind.GPU:
        raise NotPossible(
            Reason(CheckCode.DEVICE_PARTITIONED, {"kind": kind.value, "device": display_name(device)})
        )
    if not device.present:
        raise StateConflict(Reason(CheckCode.DEVICE_GONE, {"device": display_name(device)}))
    parent = Device.objects.filter(uuid=device.parent_uuid, checking=True) if device.parent_uuid else None
    if parent is not None and (at_work := parent.first()) is not None:
        # The GPU's layout is being changed, so the instance may be about to disappear.
        raise StateConflict(
            Reason(
                CheckCode.CHECK_UNDER_WAY,
                {"kind": CheckKind.REPARTITION.value, "device": display_name(at_work)},
            ),
            code=ProblemCode.CHECK_UNDER_WAY,
        )
    holders = device.allocated.filter(active=True)
    if workspace is not None:
        holders = holders.exclude(allocation__workspace=workspace)
    if holders.exists():
        raise StateConflict(
            Reason(CheckCode.DEVICE_IN_USE, {"kind": kind.value, "device": display_name(device)}),
            code=ProblemCode.DEVICE_IN_USE,
        )
    return make_run(
        actor=actor,
        device=device,
        kind=kind,
        level=level,
        cause=cause,
        workspace=workspace,
        its_peers=handler_of(kind).choose_peers(device, level) if workspace is None else [],
    )


def make_run(
    *,
    actor: User | SystemActor,
    device: Device,
    kind: CheckKind,
    cause: CheckCause,
    level: CheckLevel = CheckLevel.QUICK,
    workspace: Workspace | None = None,
    plan: Mapping[str, Any] | None = None,
    its_peers: Collection[Device] = (),
    subject: str = "",
) -> GpuCheckRun:
    """Queue a run for a locked device without an open run, and send it after the transaction commits.

    `its_peers` are locked and idle. `subject` is the text for the audit log; empty for the default.
    """
    run = GpuCheckRun.objects.create(
        device=device,
        kind=kind,
        level=level,
        cause=cause,
        workspace=workspace,
        simulated=device.node.pool.simulated,
        plan=dict(plan or {}),
        requester=None if isinstance(actor, SystemActor) else actor,
    )
    device.checking = True
    device.save(update_fields=["checking"])
    if its_peers:
        peers.reserve_peers(run, its_peers)
    emit(NodesChanged((device.node_id,)))
    subject = subject or f"{handler_of(kind).noun_phrase(level)} of {display_name(device)}"
    record(run, device, "asked", f"requested {subject}", actor=actor)
    send_on_commit(device.node_id)
    return run


@transaction.atomic
def cancel_check(*, actor: User | SystemActor, run_id: UUID) -> GpuCheckRun:
    """Cancel a run that has not begun. Raises `NotAllowed`, `NotFound`, `StateConflict`."""
    require_operator(actor)
    run = locked_run(run_id)
    if run.state != RunState.QUEUED or run.cause in (CheckCause.HAND_OUT, CheckCause.RECLAIM):
        raise StateConflict(Reason(CheckCode.CHECK_BEGUN))
    both = [run] if run.partner is None else [run, run.partner]
    if any(row.state == RunState.RUNNING for row in both):
        raise StateConflict(Reason(CheckCode.CHECK_BEGUN))
    for row in both:
        if not row.open:
            continue
        close(row, RunState.LOST, summary=message_of(Reason(CheckCode.CANCELLED)))
        message = f"cancelled the {handler_of(row.kind).noun} of {display_name(row.device)}"
        record(row, row.device, "cancelled", message, actor=actor)
    return run


# --- sending ---------------------------------------------------------------------------------------


def send_on_commit(node_id: UUID) -> None:
    """Send the node's queued runs after the transaction commits."""
    transaction.on_commit(partial(send_waiting, node_id))


@transaction.atomic
def send_waiting(node_id: UUID) -> int:
    """Send the node's queued runs up to the limit per node, and return how many were sent."""
    node = Node.objects.select_for_update(of=("self",)).select_related("pool").filter(pk=node_id).first()
    if node is None:
        return 0
    now = timezone.now()
    runs = list(
        GpuCheckRun.objects.select_for_update(of=("self",))
        .select_related("device", "device__node", "device__node__pool")
        .filter(device__node=node, state__in=OPEN)
        .order_by("created_at")
    )
    busy = sum(1 for run in runs if _is_under_way(run, now))
    # A preflight check delays a start, and a scrub may soon; scheduled checks can wait.
    urgent = {CheckCause.HAND_OUT: 0, CheckCause.RECLAIM: 1}
    waiting = [run for run in runs if run.state == RunState.QUEUED and not _is_under_way(run, now)]
    waiting.sort(key=lambda run: urgent.get(CheckCause(run.cause), 2))
    sent = 0
    reserved = any(handler_of(run.kind).alone_on_node and _is_under_way(run, now) for run in runs)
    for run in waiting:
        if reserved or run.attempts >= MAX_ATTEMPTS or busy + sent >= AT_ONCE_ON_NODE:
            # `sweep_lost` handles runs without attempts left.
            continue
        if handler_of(run.kind).alone_on_node:
            if busy + sent:
                continue
            reserved = True
        _send_run(run, now)
        sent += 1
    return sent


def _is_under_way(run: GpuCheckRun, now: datetime) -> bool:
    return bool(run.lease) and run.lease_expires_at is not None and run.lease_expires_at > now


def _send_run(run: GpuCheckRun, now: datetime) -> None:
    device, pool = run.device, run.device.node.pool
    run.lease = uuid.uuid4().hex
    run.lease_expires_at = now + timedelta(seconds=BEGIN_WITHIN_S)
    run.attempts += 1
    run.save(update_fields=["lease", "lease_expires_at", "attempts"])
    handler = handler_of(run.kind)
    command = CheckCommand(
        kind=run.kind,
        run=str(run.pk),
        lease=run.lease,
        pool=node_commands.config_of(pool),
        uuid=device.uuid,
        level=run.level,
        expires_at=run.lease_expires_at.timestamp(),
        deadline_s=handler.deadline_s(run),
        bus=str(device.facts.get("pci_bus_id") or ""),
        peers=tuple(run.peers.order_by("index").values_list("uuid", flat=True)),
    )
    to = node_commands.queue_of(pool, device.node.name)
    content = messages.dump(handler.complete(command, run))
    transaction.on_commit(partial(_send, f"node.gpu_{run.kind}", to, content))


def _send(task: str, queue: str, command: dict[str, Any]) -> None:
    try:
        app.send_task(task, kwargs={"command": command}, queue=queue, expires=BEGIN_WITHIN_S)
    except Exception as error:
        # The run keeps its lease until the lease expires, and is then sent again.
        log.warning("could not send %s to %s: %s", task, queue, error)


def hard_limit(run: GpuCheckRun) -> timedelta:
    """Return the maximum time of a run, regardless of what its node reports."""
    return timedelta(seconds=handler_of(run.kind).deadline_s(run) * 1.5 + 120)


# --- shared with the other modules of this package --------------------------------------------------


def locked_run(run_id: UUID) -> GpuCheckRun:
    """Lock a run, its device and those of its partner, and return the run. Raises `NotFound`."""
    rows = GpuCheckRun.objects.filter(pk=run_id)
    ids = rows.values_list("pk", "device_id", "partner_id", "partner__device_id")
    pk, device_id, partner_id, far_id = ids.first() or (None, None, None, None)
    if pk is None or device_id is None:
        raise NotFound(Reason(CheckCode.NO_SUCH_CHECK))
    # Lock in a fixed order, because answers for both ends may arrive at the same time.
    devices = {key: locked_device(key) for key in sorted(filter(None, (device_id, far_id)))}
    both = GpuCheckRun.objects.select_for_update(of=("self",)).filter(pk__in=filter(None, (pk, partner_id)))
    runs_by_pk = {row.pk: row for row in both.order_by("pk")}
    for row in runs_by_pk.values():
        row.device = devices[row.device_id]
    run = runs_by_pk[pk]
    if partner_id is not None:
        run.partner, runs_by_pk[partner_id].partner = runs_by_pk[partner_id], run
    return run


def close(run: GpuCheckRun, state: RunState, **fields: Any) -> None:
    """Close a locked run, free its device, and let the next run go to the node."""
    fields |= {"state": state, "finished_at": timezone.now(), "lease": "", "lease_expires_at": None}
    for name, value in fields.items():
        setattr(run, name, value)
    run.save(update_fields=list(fields))
    run.device.checking = False
    run.device.save(update_fields=["checking"])
    peers.release(run)
    send_on_commit(run.device.node_id)
    transaction.on_commit(partial(live.publish_check, run.pk))
    emit(NodesChanged((run.device.node_id,)))
    emit(CapacityFreed())


def record(
    run: GpuCheckRun, device: Device, step: str, message: str, *, actor: User | SystemActor = SYSTEM
) -> None:
    """Write an audit entry about a run, such as `device.check_…` or `device.scrub_…`."""
    events.record(
        actor=actor,
        kind=AuditKind(f"device.{run.kind}_{step}"),
        pool=device.node.pool,
        message=message,
        targets=[Target(TargetKind.DEVICE, device.uuid)],
        data={
            "device": device.uuid,
            "run": str(run.pk),
            "cause": run.cause,
            "level": run.level,
            "simulated": run.simulated,
        },
    )


def busy_on_nodes(nodes: Collection[UUID]) -> Counter[UUID]:
    """Return the number of open runs per node."""
    rows = GpuCheckRun.objects.filter(device__node__in=nodes, state__in=OPEN)
    return Counter(rows.values_list("device__node_id", flat=True))
