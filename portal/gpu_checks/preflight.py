"""Preflight checks of devices whose last pass is too old, and scrubs of released devices.

The workspace stays PROVISIONING without a command in flight, and is started once all its checks have passed.
If a device fails, it is cordoned, and the workspace is queued again at its old position.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta
from uuid import UUID

from django.db.models import Q, QuerySet
from django.utils import timezone

from portal.common.actors import SYSTEM
from portal.common.domain_events import emit
from portal.common.events import services as events
from portal.common.events.kinds import AuditKind
from portal.common.reasons.reason import Reason
from portal.fleet.inventory.cordons import display_name
from portal.fleet.inventory.domain_events import NodesChanged
from portal.fleet.inventory.models import AllocatedDevice, Device
from portal.gpu_checks import repartitions, results, runs
from portal.gpu_checks.codes import CheckCode
from portal.gpu_checks.domain_events import PreflightCheckEnded
from portal.gpu_checks.models import OPEN, CheckCause, CheckKind, CheckVerdict, GpuCheckRun, RunState
from portal.workspaces import dispatch, reconcile
from portal.workspaces.domain_events import AllocationsReleased, PreflightDue
from portal.workspaces.lifecycle import DesiredState, State
from portal.workspaces.models import Workspace
from portal.workspaces.requeueing import requeue
from provisioning.types import WHOLE_DEVICE_MILLI, Op

DEADLINE_S = 150
"""Seconds for all checks of one start together. A quick check takes a few seconds."""
CHANGE_DEADLINE_S = 900
"""Seconds that a workspace waits for changes of MIG layouts, before its checks begin."""
UNAVAILABLE_FOR = timedelta(hours=1)
"""Time after a check that could not run before a start tries it again."""
FIRST_RESERVATION = 1
GOOD = frozenset({CheckVerdict.PASS, CheckVerdict.DEGRADED})
BAD = frozenset({CheckVerdict.FAIL, CheckVerdict.HUNG})


def begin(workspaces: Iterable[Workspace], now: datetime) -> set[UUID]:
    """Queue the preflight checks of newly placed workspaces, and return the keys of those that wait.

    The caller holds their locks and has written their allocations. Never raises, because it runs within a
    scheduling cycle.
    """
    by_key = {workspace.pk: workspace for workspace in workspaces if may_have_checks(workspace)}
    if not by_key:
        return set()
    holders: dict[UUID, list[UUID]] = {}
    grants = AllocatedDevice.objects.filter(active=True, allocation__workspace__in=by_key)
    for device_id, workspace_id in grants.values_list("device_id", "allocation__workspace_id"):
        holders.setdefault(device_id, []).append(workspace_id)
    rows = (
        Device.objects.select_for_update(of=("self",))
        .select_related("node", "node__pool")
        .filter(pk__in=holders)
        .order_by("pk")
    )
    waits: set[UUID] = set()
    for device in rows:
        if _is_shared(device, holders[device.pk]) or not _is_stale(device, now):
            continue
        workspace = by_key[holders[device.pk][0]]
        runs.make_run(
            actor=SYSTEM,
            device=device,
            kind=CheckKind.CHECK,
            cause=CheckCause.HAND_OUT,
            workspace=workspace,
        )
        waits.add(workspace.pk)
    Workspace.objects.filter(pk__in=waits).update(checks_began_at=now)
    for key in waits:
        by_key[key].checks_began_at = now
    return waits


def hold_shares(workspaces: Sequence[Workspace], now: datetime) -> set[UUID]:
    """Return workspaces with a share of a GPU that must be scrubbed first. They are queued again.

    The last workspace may leave a GPU while a cycle allocates a share of it. Both this function and
    `scrub_after` lock the device, so the later call detects the conflict. The caller holds the workspaces'
    locks, has written their allocations, and sends no command; `handle_deadline` releases the allocations.
    """
    keys = [workspace.pk for workspace in workspaces]
    if not keys:
        return set()
    devices = _shares_of(keys).values("device")
    rows = Device.objects.select_for_update(of=("self",)).filter(pk__in=devices).order_by("pk")
    out = [row.pk for row in rows if row.checking or row.unscrubbed]
    if not out:
        return set()
    shares = _shares_of(keys).filter(device__in=out)
    held_back = set(shares.values_list("allocation__workspace_id", flat=True))
    Workspace.objects.filter(pk__in=held_back).update(checks_began_at=now)
    for workspace in workspaces:
        if workspace.pk in held_back:
            workspace.checks_began_at = now
    return held_back


def _shares_of(workspaces: Iterable[UUID]) -> QuerySet[AllocatedDevice]:
    shares = AllocatedDevice.objects.filter(active=True, milli__lt=WHOLE_DEVICE_MILLI)
    return shares.filter(allocation__workspace__in=list(workspaces))


def _is_shared(device: Device, workspace_ids: Sequence[UUID]) -> bool:
    """Return whether another workspace uses the device, so that it cannot be checked."""
    others = device.allocated.filter(active=True).exclude(allocation__workspace=workspace_ids[0])
    return len(workspace_ids) > 1 or others.exists()


def _is_stale(device: Device, now: datetime) -> bool:
    """Return whether the device's last pass is too old and another check may help."""
    pool = device.node.pool
    since = now - timedelta(hours=pool.hand_out_max_age_hours)
    if device.passed_at is not None and device.passed_at > since:
        return False
    last = device.checks.filter(kind=CheckKind.CHECK, state=RunState.DONE).order_by("-created_at").first()
    if last is None or last.finished_at is None:
        return True
    if last.verdict == CheckVerdict.DEGRADED and last.finished_at > since:
        return False
    unavailable = (
        isinstance(last.report.get("unavailable"), dict) and last.finished_at > now - UNAVAILABLE_FOR
    )
    return not unavailable or pool.check_required


def runs_of(workspace: Workspace) -> QuerySet[GpuCheckRun]:
    """Return the preflight checks of the workspace's current placement."""
    if workspace.placed_at is None:
        return GpuCheckRun.objects.none()
    grants = AllocatedDevice.objects.filter(active=True, allocation__workspace=workspace)
    return GpuCheckRun.objects.filter(
        workspace=workspace,
        kind=CheckKind.CHECK,
        cause=CheckCause.HAND_OUT,
        created_at__gte=workspace.placed_at,
        device__in=grants.values("device"),
    )


def may_have_checks(workspace: Workspace) -> bool:
    """Return whether the workspace can have checks. Saves queries for workspaces without accelerators."""
    accelerators = workspace.resources.get("accelerators") or {}
    pool = workspace.pool
    return bool(accelerators.get("count")) and pool is not None and pool.hand_out_max_age_hours > 0


def handle_deadline(event: PreflightDue) -> None:
    """Handle the deadline of a locked workspace's checks: give up on open ones, and conclude."""
    workspace = event.workspace
    now = timezone.now()
    own = GpuCheckRun.objects.filter(workspace=workspace, state__in=OPEN).values("device")
    to_scrub = Q(device__unscrubbed=True) | (Q(device__checking=True) & ~Q(device__in=own))
    if _shares_of([workspace.pk]).filter(to_scrub).exists():
        requeue_first(workspace, Reason(CheckCode.SHARE_WITHDRAWN))
        return
    changes = list(repartitions.current_repartitions(workspace).filter(state__in=OPEN).order_by("device_id"))
    if any(change.report and results.conclude_change(change.pk) for change in changes):
        # `_conclude` has already continued the workspace, and its row has changed.
        return
    under_way = changes or list(runs_of(workspace).filter(state__in=OPEN).order_by("device_id"))
    deadline_s = CHANGE_DEADLINE_S if changes else DEADLINE_S
    until = (workspace.checks_began_at or now) + timedelta(seconds=deadline_s)
    if under_way and now < until:
        _schedule_recheck(workspace, until)
        return
    for row in under_way:
        run = runs.locked_run(row.pk)
        if run.open:
            results.give_up(run, Reason(CheckCode.NO_VERDICT, {"within_s": deadline_s}))
    _start_if_good(workspace)


def check_ended(event: PreflightCheckEnded) -> None:
    """Handle the end of a locked workspace's check: start it, queue it again, or keep waiting."""
    workspace = event.workspace
    waiting = workspace.state == State.PROVISIONING and workspace.launched_at is None
    if not waiting or workspace.desired_state != DesiredState.RUNNING or workspace.lease:
        # The workspace is being stopped or deleted, or was already started.
        return
    _start_if_good(workspace)


def _start_if_good(workspace: Workspace) -> None:
    if _layouts_match(workspace) and _conclude(workspace):
        workspace.checks_ended_at = workspace.next_reconcile_at = timezone.now()
        workspace.save(update_fields=["checks_ended_at", "next_reconcile_at"])
        if workspace.waits_for_home:
            reconcile.take_next_step(workspace)
        else:
            dispatch.send(workspace, Op.START)


def wait_for_changes(workspaces: Iterable[Workspace], now: datetime) -> None:
    """Record that these workspaces wait for changes of MIG layouts. Their checks come afterwards."""
    rows = list(workspaces)
    Workspace.objects.filter(pk__in=[row.pk for row in rows]).update(checks_began_at=now)
    for row in rows:
        row.checks_began_at = now


def _layouts_match(workspace: Workspace) -> bool:
    """Return whether the workspace's MIG layouts are in place and no further checks are needed."""
    changes = list(repartitions.current_repartitions(workspace).select_related("device", "device__node"))
    if not changes:
        return True
    if any(run.open for run in changes):
        return False
    bad = next((run for run in changes if run.verdict != CheckVerdict.PASS), None)
    if bad is not None:
        params = {"device": display_name(bad.device), "problem": bad.summary}
        requeue_first(workspace, Reason(CheckCode.REPARTITION_FAILED, params))
        return False
    # The new instances have never been checked; check them once now.
    return runs_of(workspace).exists() or not begin([workspace], timezone.now())


def _conclude(workspace: Workspace) -> bool:
    """Queue the workspace again if a check failed. Returns whether it may start now."""
    check_runs = list(runs_of(workspace).select_related("device", "device__node"))
    bad = [run for run in check_runs if run.verdict in BAD]
    unknown = [run for run in check_runs if not run.open and run.verdict not in GOOD | BAD]
    if bad:
        requeue_first(workspace, _check_failed(bad))
        return False
    if unknown and workspace.pool is not None and workspace.pool.check_required:
        requeue_first(workspace, _check_failed(unknown, unknown=True))
        return False
    if any(run.open for run in check_runs):
        return False
    for run in unknown:
        events.record(
            actor=SYSTEM,
            kind=AuditKind.WORKSPACE_UNCHECKED,
            workspace=workspace,
            message=f"allocated {display_name(run.device)} unchecked: {run.summary}",
            data={"device": run.device.uuid, "run": str(run.pk)},
        )
    return True


def _check_failed(check_runs: Iterable[GpuCheckRun], *, unknown: bool = False) -> Reason:
    devices = [display_name(run.device) for run in check_runs]
    return Reason(CheckCode.CHECK_FAILED, {"devices": devices, "unknown": unknown})


def requeue_first(workspace: Workspace, reason: Reason) -> None:
    """Queue the workspace again at the front, because it already had its turn."""
    requeue(workspace, reason, queue={"reservation_seq": FIRST_RESERVATION})


def _schedule_recheck(workspace: Workspace, until: datetime) -> None:
    notice = workspace.preempting
    due = min(until, notice.preempt_at) if notice is not None else until
    if workspace.next_reconcile_at != due:
        workspace.next_reconcile_at = due
        workspace.save(update_fields=["next_reconcile_at"])


# --- after release ---------------------------------------------------------------------------------


def scrub_after(event: AllocationsReleased) -> int:
    """Scrub devices that were just released, and return how many scrubs were queued.

    Runs in the transaction of the release. Real devices are always scrubbed; simulated ones only if their
    pool requires it. A shared or missing device cannot be scrubbed now. If its pool requires scrubs, nothing
    is placed on it before a scrub; the policy handles such devices later.
    """
    if not event.devices:
        return 0
    devices = (
        Device.objects.select_for_update(of=("self",))
        .select_related("node", "node__pool")
        .filter(pk__in=event.devices)
        .filter(Q(node__pool__simulated=False) | Q(node__pool__scrub_required=True))
        .order_by("pk")
    )
    queued = 0
    for device in devices:
        if not event.used and not device.unscrubbed:
            continue
        if not device.present or device.allocated.filter(active=True).exists():
            if event.used:
                _hold_back(device)
            continue
        if device.checks.filter(state__in=OPEN).exists():
            # The workspace never used the device, because the preflight check is still running.
            continue
        runs.make_run(actor=SYSTEM, device=device, kind=CheckKind.SCRUB, cause=CheckCause.RECLAIM)
        queued += 1
    return queued


def _hold_back(device: Device) -> None:
    if device.node.pool.scrub_required and not device.unscrubbed:
        device.unscrubbed = True
        device.save(update_fields=["unscrubbed"])
        emit(NodesChanged((device.node_id,)))
