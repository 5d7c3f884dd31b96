"""Applies reports of the node plane and of agents, which may be repeated, late or lost.

Results without the row's current lease and generation are ignored.
"""

from __future__ import annotations

import logging
from datetime import timedelta
from typing import Any
from uuid import UUID

from django.db import transaction
from django.db.models import Case, F, Value, When
from django.utils import timezone

from portal.common.actors import SYSTEM
from portal.common.domain_events import emit
from portal.common.errors import NotFound
from portal.common.events.kinds import AuditKind
from portal.common.reasons.reason import Reason
from portal.common.texts import strip_nul
from portal.fleet.inventory.models import Pool
from portal.fleet.inventory.node_commands import config_of
from portal.workspaces import dispatch, engine_queue, reconcile
from portal.workspaces.codes import WorkspaceCode
from portal.workspaces.domain_events import EndpointChanged, UnknownWorkspacesReported, WorkspaceReady
from portal.workspaces.lifecycle import HOLDING, NO_TROUBLE, DesiredState, State, TerminationReason, Trigger
from portal.workspaces.models import StartSecrets, Workspace, WorkspaceStatus
from portal.workspaces.transitions import advance, lock_workspace, set_rows
from provisioning.registry import driver_for
from provisioning.traits import STARTING_OBSERVE_S
from provisioning.types import Failure, Observation, ObservedState, Op, Result

log = logging.getLogger(__name__)
GONE = frozenset({ObservedState.ABSENT})
MAX_TEXT = 2000
ENDED = frozenset({ObservedState.ABSENT, ObservedState.STOPPED, ObservedState.FAILED})


@transaction.atomic
def apply_result(result: Result) -> bool:
    """Apply the answer to a command. Returns `False` if it is stale and was dropped."""
    if not result.lease:
        return False
    try:
        workspace = lock_workspace(UUID(result.ref.workspace_id))
    except NotFound:
        return False
    if workspace.lease != result.lease or workspace.generation != result.ref.generation:
        return False
    workspace.lease = ""
    workspace.lease_expires_at = None
    workspace.next_reconcile_at = timezone.now()
    workspace.save(update_fields=["lease", "lease_expires_at", "next_reconcile_at"])
    if result.failure is not None:
        _apply_failure(workspace, result.op, result.failure)
    elif result.observation is not None:
        apply_observation(workspace, result.op, result.observation)
    return True


def driver_reason(code: str, text: str) -> Reason:
    """Return a driver's own message as a reason."""
    return Reason(WorkspaceCode.REPORTED, {"code": code, "text": strip_nul(text)[:MAX_TEXT]})


def unknown_reason(seen: Observation) -> Reason:
    """Return why the state of a workspace is unknown."""
    return driver_reason(seen.code or "unknown", seen.message)


def _apply_failure(workspace: Workspace, op: Op, failure: Failure) -> None:
    if workspace.state == State.PROVISIONING and op is Op.START:
        if failure.code == "no_capacity":
            # The snapshot was wrong. The deletion confirms that nothing is left, and closes this generation,
            # so that a late copy of the command cannot start a released workspace.
            workspace.start_refused = True
            workspace.save(update_fields=["start_refused"])
            set_rows([workspace], status={"reason": driver_reason(failure.code, failure.message).as_json()})
            dispatch.send(workspace, Op.DELETE)
            return
        if not failure.retryable and failure.code != "stale":
            reconcile.fail(
                workspace, TerminationReason.START_FAILED, driver_reason(failure.code, failure.message)
            )
            return
    workspace.attempts += 1
    workspace.next_reconcile_at = timezone.now() + reconcile.backoff(workspace.attempts)
    workspace.save(update_fields=["attempts", "next_reconcile_at"])
    if not workspace.start_refused:
        set_rows([workspace], status={"reason": driver_reason(failure.code, failure.message).as_json()})


def apply_observation(workspace: Workspace, op: Op, seen: Observation) -> None:
    """Apply an observation to a locked workspace."""
    match workspace.state:
        case State.PROVISIONING:
            _observed_provisioning(workspace, op, seen)
        case State.RUNNING:
            _observed_running(workspace, seen)
        case State.STOPPING:
            # A START or OBSERVE was answered after the stop was requested: the stop comes next.
            if op is Op.STOP and seen.state in ENDED:
                _apply_stop(workspace)
            else:
                _continue(workspace, op, Op.STOP)
        case State.TERMINATING:
            if op is Op.DELETE and seen.state in GONE:
                reconcile.mark_deleted(workspace)
            else:
                _continue(workspace, op, Op.DELETE)
        case _:
            pass


def _continue(workspace: Workspace, answered: Op, requested: Op) -> None:
    """Continue the stop or deletion: at once if the command was not sent yet, else after a short delay."""
    if answered is not requested:
        dispatch.send(workspace, requested)
        return
    _reconcile_in(workspace, reconcile.STOPPING_OBSERVE_S)
    transaction.on_commit(lambda: dispatch.hint_later(workspace.pk, reconcile.STOPPING_OBSERVE_S))


def _observed_provisioning(workspace: Workspace, op: Op, seen: Observation) -> None:
    if workspace.start_refused:
        if op is Op.DELETE and seen.state in GONE:
            _requeue(workspace)
        else:
            _continue(workspace, op, Op.DELETE)
        return
    if seen.state is ObservedState.UNKNOWN:
        # Nothing was learnt, not even whether the workspace was launched.
        _reconcile_in(workspace, STARTING_OBSERVE_S)
        return
    current = seen.ref.generation == workspace.generation
    if seen.state is ObservedState.ABSENT or not current:
        if workspace.launched_at is not None:
            _ended_by_itself(workspace, seen, TerminationReason.START_FAILED)
        else:
            dispatch.send(workspace, Op.START)
        return
    if engine_queue.places(workspace):
        if seen.state is ObservedState.QUEUED:
            engine_queue.record_wait(workspace, seen)
            _reconcile_in(workspace, STARTING_OBSERVE_S)
            return
        engine_queue.record_begin(workspace, seen)
    _learn(workspace, seen)
    if seen.state is ObservedState.RUNNING and seen.ready:
        mark_ready(workspace, endpoint=seen.endpoint)
    elif seen.state in {ObservedState.FAILED, ObservedState.STOPPED}:
        _ended_by_itself(workspace, seen, TerminationReason.START_FAILED)
    else:
        pool = workspace.pool
        _reconcile_in(workspace, pool.traits.starting_observe_s if pool else STARTING_OBSERVE_S)


def _learn(workspace: Workspace, seen: Observation) -> None:
    """Record the launch and the app's endpoint from the observation."""
    changed = ["attempts"]
    workspace.attempts = 0
    if workspace.launched_at is None:
        workspace.launched_at = timezone.now()
        changed.append("launched_at")
        reconcile.note(workspace, AuditKind.WORKSPACE_LAUNCHED, "started its program")
    if seen.endpoint and seen.endpoint != workspace.endpoint:
        workspace.endpoint = seen.endpoint
        changed.append("endpoint")
    workspace.save(update_fields=changed)
    set_rows([workspace], status=NO_TROUBLE)
    # Publish the route before the app answers, so that opening does not wait for it later.
    emit(EndpointChanged(workspace))


def _observed_running(workspace: Workspace, seen: Observation) -> None:
    if seen.ref.generation != workspace.generation or seen.state is ObservedState.ABSENT:
        reconcile.fail(
            workspace,
            TerminationReason.LOST,
            Reason(WorkspaceCode.LOST),
        )
    elif seen.state is ObservedState.QUEUED:
        engine_queue.requeue(workspace, seen)
        _reconcile_in(workspace, STARTING_OBSERVE_S)
    elif seen.state in {ObservedState.FAILED, ObservedState.STOPPED}:
        _ended_by_itself(workspace, seen, TerminationReason.APP_EXITED)
    else:
        if engine_queue.places(workspace) and seen.state is not ObservedState.UNKNOWN:
            engine_queue.record_begin(workspace, seen)
        changes: dict[str, Any] = {"attempts": 0}
        problem = unknown_reason(seen).as_json() if seen.state is ObservedState.UNKNOWN else {}
        if problem != workspace.status.reason:
            set_rows([workspace], status={"reason": problem})
        if seen.endpoint and seen.endpoint != workspace.endpoint:
            # Only the driver's endpoint is trusted, because a user can imitate an agent.
            changes["endpoint"] = workspace.endpoint = seen.endpoint
            emit(EndpointChanged(workspace))
        Workspace.objects.filter(pk=workspace.pk).update(**changes)
        patience = reconcile.heartbeat_patience().total_seconds()
        # The agent has reported the end of the app, but this observation is older: check again soon.
        _reconcile_in(workspace, patience if workspace.status.heartbeat_at else STARTING_OBSERVE_S)


def _ended_by_itself(workspace: Workspace, seen: Observation, termination: TerminationReason) -> None:
    code = seen.code or termination.value
    ended = {"template": workspace.template.name, "exit_code": seen.exit_code, "code": code}
    own = _secrets_reason(workspace, code) or (driver_reason(code, seen.message) if seen.message else None)
    reason = own or Reason(WorkspaceCode.APP_EXITED, ended)
    reconcile.fail(workspace, termination, reason, log_tail=seen.log_tail)


def _secrets_reason(workspace: Workspace, code: str) -> Reason | None:
    """Return why a start got no secrets. The portal knows the exact reason, the node does not."""
    if code not in ("secrets_refused", "secrets_unavailable"):
        return None
    start_secrets = StartSecrets.objects.filter(workspace=workspace, generation=workspace.generation).first()
    return (
        Reason.from_json(start_secrets.problem)
        if start_secrets is not None and start_secrets.problem
        else None
    )


def mark_ready(workspace: Workspace, *, endpoint: str) -> None:
    """Mark the workspace as ready. The caller holds the row lock."""
    now = timezone.now()
    took = (now - workspace.requested_at).total_seconds()
    advance(
        workspace,
        Trigger.READY,
        actor=SYSTEM,
        message=f"started the workspace in {took:.1f} s",
        endpoint=endpoint or workspace.endpoint,
        launched_at=workspace.launched_at or now,
        ready_at=now,
        # From now on the workspace has only the flavor on which it runs.
        flavor_choices=[],
        # Clear a finished reset. One that was requested meanwhile is for the next start.
        packages_reset_after=None if dispatch.resets_packages(workspace) else workspace.packages_reset_after,
        ends_at=engine_queue.earlier_end(workspace, now),
        status={"heartbeat_at": now, **NO_TROUBLE},
        attempts=0,
        next_reconcile_at=now + reconcile.heartbeat_patience(),
    )
    emit(WorkspaceReady(workspace))


def _requeue(workspace: Workspace) -> None:
    advance(
        workspace,
        Trigger.NO_CAPACITY,
        actor=SYSTEM,
        message="queued the workspace again",
        cause=workspace.status.reason,
        # The queue skips the workspace until then, because the backend would refuse it again.
        next_reconcile_at=timezone.now() + timedelta(seconds=reconcile.REFUSED_WAIT_S),
        pool=None,
        placed_at=None,
        began_at=None,
        admitted_at=None,
        start_refused=False,
        end_preemption=True,
    )
    reconcile.release(workspace)


def _apply_stop(workspace: Workspace) -> None:
    # The workspace may have been deleted or preempted meanwhile.
    continues = workspace.desired_state != DesiredState.STOPPED
    advance(
        workspace,
        Trigger.STOPPED,
        actor=SYSTEM,
        message="stopped the workspace and kept its files",
        endpoint="",
        attempts=0,
        status=NO_TROUBLE,
        next_reconcile_at=timezone.now() if continues else None,
    )
    reconcile.release(workspace)
    if continues:
        reconcile.take_next_step(workspace)


def _reconcile_in(workspace: Workspace, seconds: float) -> None:
    due = timezone.now() + timedelta(seconds=seconds)
    Workspace.objects.filter(pk=workspace.pk).update(next_reconcile_at=due)
    workspace.next_reconcile_at = due


# --- reports of agents ----------------------------------------------------------------------------


class Revoked(Exception):
    """The agent's start has ended; the agent has to end the app and exit."""


@transaction.atomic
def agent_launched(*, workspace_id: UUID, generation: int, endpoint: str) -> None:
    """Record the endpoint of the launched app, so that its route is published. Raises `Revoked`."""
    workspace = _current(workspace_id, generation)
    if workspace.state != State.PROVISIONING or workspace.pool is None:
        return
    if driver_for(config_of(workspace.pool)).accepts_endpoint(endpoint, dispatch.ref_of(workspace)):
        _learn(workspace, Observation(dispatch.ref_of(workspace), ObservedState.STARTING, endpoint=endpoint))


@transaction.atomic
def agent_ready(*, workspace_id: UUID, generation: int, endpoint: str) -> None:
    """Mark the workspace as ready, as its agent reports. Raises `Revoked`. Idempotent."""
    workspace = _current(workspace_id, generation)
    if workspace.state != State.PROVISIONING or workspace.pool is None:
        return
    if driver_for(config_of(workspace.pool)).accepts_endpoint(endpoint, dispatch.ref_of(workspace)):
        mark_ready(workspace, endpoint=endpoint)
    else:
        _observe_now(workspace)


@transaction.atomic
def agent_exited(*, workspace_id: UUID, generation: int, exit_code: int, log_tail: str) -> None:
    """Record that the app ended, and ask the driver for the reason. Raises `Revoked`."""
    workspace = _current(workspace_id, generation)
    if workspace.state not in {State.PROVISIONING, State.RUNNING}:
        return
    log.info("app of %s exited with code %s", workspace.pk, exit_code)
    set_rows([workspace], status={"log_tail": log_tail, "heartbeat_at": None})
    # Only the driver can know the reason, such as a memory limit.
    _observe_now(workspace)


def _observe_now(workspace: Workspace) -> None:
    """Send an OBSERVE at once, or as soon as the command in flight is answered."""
    if workspace.lease == "":
        workspace.launched_at = workspace.launched_at or timezone.now()
        workspace.save(update_fields=["launched_at"])
        dispatch.send(workspace, Op.OBSERVE)
    else:
        _reconcile_in(workspace, 0)


def agent_heartbeat(*, workspace_id: UUID, generation: int, activity: dict[str, Any]) -> None:
    """Store a heartbeat with activity signals. Raises `Revoked` if the start is over."""
    now = timezone.now()
    # If the clock was set back, the stored time is in the future and has to be reset.
    since = Case(When(gpu_idle_since__lte=now, then=F("gpu_idle_since")), default=Value(now))
    idle_since = since if gpus_idle(activity) else None
    current = Workspace.objects.filter(pk=workspace_id, generation=generation, state__in=HOLDING)
    updated = WorkspaceStatus.objects.filter(workspace__in=current).update(
        heartbeat_at=now, activity=activity, gpu_idle_since=idle_since
    )
    if not updated:
        raise Revoked


def gpus_idle(activity: dict[str, Any]) -> bool:
    """Return whether all GPUs were idle. A GPU without a measurement counts as busy."""
    gpus = activity.get("gpus")
    if not isinstance(gpus, list) or not gpus:
        return False
    return all(isinstance(gpu, dict) and gpu.get("utilization_percent") == 0 for gpu in gpus)


def _current(workspace_id: UUID, generation: int) -> Workspace:
    try:
        workspace = lock_workspace(workspace_id)
    except NotFound:
        raise Revoked from None
    if workspace.generation != generation or workspace.state not in HOLDING:
        raise Revoked
    return workspace


# --- orphan sweep ---------------------------------------------------------------------------------


def apply_owned(*, pool: Pool, node_name: str, owned: list[Observation]) -> int:
    """End workspaces that run on a node but should not, and return their number."""
    count = 0
    unknown: list[str] = []
    owned = [seen for seen in owned if _is_uuid(seen.ref.workspace_id)]
    workspaces_by_pk = {
        str(workspace.pk): workspace
        for workspace in Workspace.objects.filter(
            pk__in=[seen.ref.workspace_id for seen in owned]
        ).select_related("pool")
    }
    for seen in owned:
        op = _orphan_op(workspaces_by_pk.get(seen.ref.workspace_id), pool, seen)
        if op is None:
            continue
        count += 1
        if op is Op.DELETE:
            unknown.append(seen.ref.external_name)
        log.warning("orphan %s generation %s: %s", seen.ref.external_name, seen.ref.generation, op)
        dispatch.send_orphan_command(pool, node_name, seen.ref, op)
    if unknown:
        emit(UnknownWorkspacesReported(pool, node_name, tuple(unknown)))
    return count


def _orphan_op(workspace: Workspace | None, pool: Pool, seen: Observation) -> Op | None:
    if workspace is None or workspace.state in {State.TERMINATED, State.FAILED}:
        return Op.DELETE
    if seen.ref.generation > workspace.generation:
        # Either placed after the row was read, or the database is an older copy. Leave it alone.
        return None
    if seen.ref.generation < workspace.generation and workspace.state in HOLDING:
        # The new start replaces this one, or runs elsewhere.
        return Op.DELETE if workspace.pool_id != pool.pk else Op.STOP if _runs(seen) else None
    if workspace.state in {State.STOPPED, State.PENDING} and _runs(seen):
        return Op.STOP
    return None


def _is_uuid(text: str) -> bool:
    try:
        return str(UUID(text)) == text
    except ValueError:
        log.warning("driver reported %r, which is not a workspace id", text)
        return False


def _runs(seen: Observation) -> bool:
    return seen.state in {ObservedState.QUEUED, ObservedState.STARTING, ObservedState.RUNNING}
