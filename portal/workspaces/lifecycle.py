"""The lifecycle of a workspace as data: states, triggers, and one transition table.

FAILED means that nothing is left running. `TARGET` has the target of every transitional state.
"""

from __future__ import annotations

from typing import Any

from django.db import models
from django.utils.translation import gettext_lazy as _

from portal.common.errors import StateConflict
from portal.common.reasons.reason import Reason
from portal.workspaces.codes import WorkspaceCode


class State(models.TextChoices):
    """State of a workspace."""

    PENDING = "pending", _("Queued")
    PROVISIONING = "provisioning", _("Starting")
    RUNNING = "running", _("Running")
    STOPPING = "stopping", _("Stopping")
    STOPPED = "stopped", _("Stopped")
    TERMINATING = "terminating", _("Ending")
    TERMINATED = "terminated", _("Deleted")
    FAILED = "failed", _("Failed")


class DesiredState(models.TextChoices):
    """State that the owner wants."""

    RUNNING = "running", "Running"
    STOPPED = "stopped", "Stopped"
    DELETED = "deleted", "Deleted"


class QueueOutcome(models.TextChoices):
    """Decision of the queue about a workspace."""

    QUEUED = "queued", "Queued"
    NEEDS_APPROVAL = "needs_approval", "Needs approval"
    IMPOSSIBLE = "impossible", "Impossible"


class PreemptionCause(models.TextChoices):
    """Cause of a preemption."""

    IN_TEAM = "in_team", "A request of its team has a higher priority"
    RECLAIM = "reclaim", "A team reclaims its quota"
    FAIR_SHARE = "fair_share", "Another team has borrowed less"
    BOOKING = "booking", "A reservation begins"
    DRAIN = "drain", "Its node or GPU is being drained"
    MOVE = "move", "It is being moved"


class Trigger(models.TextChoices):
    """Trigger of a state transition."""

    PLACE = "place", "Placed"
    CANCEL = "cancel", "Cancelled"
    READY = "ready", "Ready"
    NO_CAPACITY = "no_capacity", "No capacity"
    FAIL = "fail", "Failed"
    STOP = "stop", "Stop"
    STOPPED = "stopped", "Stopped"
    START = "start", "Start"
    LOST = "lost", "Lost"
    ENGINE_REQUEUE = "engine_requeue", "Queued again by its engine"
    TERMINATE = "terminate", "Terminate"
    GONE = "gone", "Gone"
    RETRY = "retry", "Retry"


class TerminationReason(models.TextChoices):
    """Why a workspace ended or was stopped. Those in `FAILURES` lead to FAILED."""

    NONE = "", _("None")
    DELETED = "deleted", _("Deleted by a user")
    JOB_ENDED = "job_ended", _("Deleted after its CI job ended")
    START_FAILED = "start_failed", _("Failed to start")
    START_TIMEOUT = "start_timeout", _("Not ready in time")
    APP_EXITED = "app_exited", _("Program exited")
    LOST = "lost", _("Disappeared")
    RECLAIMED = "reclaimed", _("Stopped by a rule")


FAILURES = frozenset(
    {
        TerminationReason.START_FAILED,
        TerminationReason.START_TIMEOUT,
        TerminationReason.APP_EXITED,
        TerminationReason.LOST,
    }
)

# Users can stop a workspace while it waits or starts (docs/adr/0004).
TRANSITIONS: dict[tuple[State, Trigger], State] = {
    (State.PENDING, Trigger.PLACE): State.PROVISIONING,
    (State.PENDING, Trigger.CANCEL): State.TERMINATED,
    (State.PENDING, Trigger.STOP): State.STOPPED,
    (State.PROVISIONING, Trigger.READY): State.RUNNING,
    (State.PROVISIONING, Trigger.NO_CAPACITY): State.PENDING,
    (State.PROVISIONING, Trigger.STOP): State.STOPPING,
    (State.PROVISIONING, Trigger.FAIL): State.TERMINATING,
    (State.PROVISIONING, Trigger.TERMINATE): State.TERMINATING,
    (State.RUNNING, Trigger.STOP): State.STOPPING,
    (State.RUNNING, Trigger.LOST): State.TERMINATING,
    # An engine that places by itself has preempted it, and it waits there again.
    (State.RUNNING, Trigger.ENGINE_REQUEUE): State.PROVISIONING,
    (State.RUNNING, Trigger.TERMINATE): State.TERMINATING,
    (State.STOPPING, Trigger.STOPPED): State.STOPPED,
    (State.STOPPED, Trigger.START): State.PENDING,
    (State.STOPPED, Trigger.TERMINATE): State.TERMINATING,
    # Never placed, so there is nothing to remove.
    (State.STOPPED, Trigger.CANCEL): State.TERMINATED,
    (State.TERMINATING, Trigger.GONE): State.TERMINATED,
    (State.FAILED, Trigger.RETRY): State.PENDING,
    (State.FAILED, Trigger.TERMINATE): State.TERMINATING,
}

TARGET: dict[State, State] = {
    State.PENDING: State.RUNNING,
    State.PROVISIONING: State.RUNNING,
    State.STOPPING: State.STOPPED,
    State.TERMINATING: State.TERMINATED,
}
TRANSITIONAL = frozenset(TARGET)
# States in which something may exist on a backend and capacity is held.
HOLDING = frozenset({State.PROVISIONING, State.RUNNING, State.STOPPING, State.TERMINATING})
LIVE = frozenset(set(State) - {State.TERMINATED})
STARTABLE = frozenset({State.STOPPED, State.FAILED})
STOPPABLE = frozenset({State.PENDING, State.PROVISIONING, State.RUNNING})
DELETABLE = frozenset(
    {State.PENDING, State.PROVISIONING, State.RUNNING, State.STOPPING, State.STOPPED, State.FAILED}
)

NOT_PREPARED: dict[str, Any] = {
    "checks_began_at": None,
    "checks_ended_at": None,
    "home_move_began_at": None,
    "home_move_ended_at": None,
}
"""Reset values for the columns about GPU checks and the home move before a start."""
JUST_REQUESTED: dict[str, Any] = {
    "pool": None,
    "approved_at": None,
    "approved_by": "",
    "admitted_at": None,
    "placed_at": None,
    "launched_at": None,
    "began_at": None,
    "ready_at": None,
    "ends_at": None,
    **NOT_PREPARED,
}
"""Values for the columns of a workspace after a new request."""
NOT_QUEUED: dict[str, Any] = {
    "nominated": False,
    "reservation_seq": 0,
    "outcome": "",
    "position": None,
    "eta_at": None,
    "eta_basis": {},
    "reason": {},
    "blocker": {},
    "member_order": {},
    "next_flavor": {},
    "digest": "",
}
"""Values for the columns of a queue entry that is no longer queued."""
NO_TROUBLE: dict[str, Any] = {"reason": {}}
"""Values for the columns of a status without a problem."""
NOTHING_SEEN: dict[str, Any] = {
    "reason": {},
    "stopped": {},
    "log_tail": "",
    "activity": {},
    "heartbeat_at": None,
    "gpu_idle_since": None,
    "checkouts": {},
    "gpu_shares": {},
    "memory_kill": {},
    "engine": {},
}
"""Values for the columns of a status after a new request."""


def target_of(state: str, trigger: Trigger, reason: str = "") -> State:
    """Return the state after `trigger`. Raises `StateConflict`. For GONE, it depends on `reason`."""
    try:
        target = TRANSITIONS[State(state), trigger]
    except KeyError:
        raise StateConflict(
            Reason(WorkspaceCode.NOT_POSSIBLE_NOW, {"state": str(state)}), state=state
        ) from None
    if trigger == Trigger.GONE and reason in FAILURES:
        return State.FAILED
    return target
