"""The life of a workspace as data: states, triggers, one transition table, and one function that moves.

FAILED means that nothing is left running. Every transitional state names in `TARGET` where it leads.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from django.db import models, transaction
from django.utils import timezone

from portal.common.actors import SystemActor
from portal.common.errors import StateConflict
from portal.events import services as events

if TYPE_CHECKING:
    from portal.accounts.models import User
    from portal.workspaces.models import Workspace


class State(models.TextChoices):
    """What a workspace is doing."""

    PENDING = "pending", "Queued"
    PROVISIONING = "provisioning", "Starting"
    RUNNING = "running", "Running"
    STOPPING = "stopping", "Stopping"
    STOPPED = "stopped", "Stopped"
    TERMINATING = "terminating", "Ending"
    TERMINATED = "terminated", "Deleted"
    FAILED = "failed", "Failed"


class Wanted(models.TextChoices):
    """What its user wants of it."""

    RUNNING = "running", "Running"
    STOPPED = "stopped", "Stopped"
    DELETED = "deleted", "Deleted"


class Trigger(models.TextChoices):
    """What moves a workspace from one state to another."""

    PLACE = "place", "Placed"
    CANCEL = "cancel", "Cancelled"
    READY = "ready", "Ready"
    NO_CAPACITY = "no_capacity", "No capacity"
    FAIL = "fail", "Failed"
    STOP = "stop", "Stop"
    STOPPED = "stopped", "Stopped"
    START = "start", "Start"
    LOST = "lost", "Lost"
    TERMINATE = "terminate", "Terminate"
    GONE = "gone", "Gone"
    RETRY = "retry", "Retry"


class Reason(models.TextChoices):
    """Why a workspace ended. Those in `FAILURES` lead to FAILED, the others to TERMINATED."""

    NONE = "", "None"
    DELETED = "deleted", "Deleted by a person"
    START_FAILED = "start_failed", "It could not be started"
    START_TIMEOUT = "start_timeout", "It did not become ready in time"
    APP_EXITED = "app_exited", "Its program ended by itself"
    LOST = "lost", "It disappeared"


FAILURES = frozenset({Reason.START_FAILED, Reason.START_TIMEOUT, Reason.APP_EXITED, Reason.LOST})

# A person may change their mind while a workspace waits or starts: see docs/adr/0004.
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


def target_of(state: str, trigger: Trigger, reason: str = "") -> State:
    """Where `trigger` leads from `state`, or `StateConflict`. GONE depends on the reason."""
    try:
        target = TRANSITIONS[State(state), trigger]
    except KeyError:
        raise StateConflict(
            f"The workspace is {State(state).label.lower()}, so this is not possible now.",
            next_action="Reload the page and choose what is offered there.",
            state=state,
        ) from None
    if trigger == Trigger.GONE and reason in FAILURES:
        return State.FAILED
    return target


@transaction.atomic
def advance(
    workspace: Workspace,
    trigger: Trigger,
    *,
    actor: User | SystemActor,
    message: str,
    data: dict[str, Any] | None = None,
    **fields: Any,
) -> None:
    """Move `workspace`, set `fields`, and write the event, all in one transaction.

    The update is conditional on the state and generation that the caller saw; who loses the race
    gets `StateConflict` and nothing is changed.
    """
    from portal.workspaces import gateway
    from portal.workspaces.models import Workspace

    now = timezone.now()
    before = State(workspace.state)
    reason = fields.get("termination_reason", workspace.termination_reason)
    target = target_of(before, trigger, reason)
    changes: dict[str, Any] = {"state": target, "state_since": now, **fields}
    won = Workspace.objects.filter(pk=workspace.pk, state=before, generation=workspace.generation).update(
        **changes
    )
    if not won:
        raise StateConflict(
            "The workspace changed at the same moment.",
            next_action="Reload the page and look at its state.",
        )
    for name, value in changes.items():
        setattr(workspace, name, value)
    # Every change of state, so that nobody is sent to an app that is ending.
    gateway.publish_on_commit(workspace)
    events.record(
        actor=actor,
        kind=f"workspace.{trigger.value}",
        message=message,
        workspace=workspace,
        data={"from": before.value, "to": target.value, **(data or {})},
    )


@transaction.atomic
def advance_all(
    workspaces: Sequence[Workspace],
    trigger: Trigger,
    *,
    actor: User | SystemActor,
    messages: Sequence[str],
    data: dict[str, Any] | None = None,
    **fields: Any,
) -> None:
    """Like `advance` for several in one state and generation that get the same `fields`: all or none.

    Each has its message. The number of statements does not depend on how many there are.
    """
    from portal.workspaces import gateway
    from portal.workspaces.models import Workspace

    if not workspaces:
        return
    seen = {(each.state, each.generation) for each in workspaces}
    if len(seen) > 1:
        raise ValueError("they are not in one state and generation")
    before, generation = seen.pop()
    target = target_of(before, trigger)
    changes: dict[str, Any] = {"state": target, "state_since": timezone.now(), **fields}
    won = Workspace.objects.filter(
        pk__in=[each.pk for each in workspaces], state=before, generation=generation
    ).update(**changes)
    if won != len(workspaces):
        raise StateConflict(
            "Some of the workspaces changed at the same moment.",
            next_action="Try again.",
        )
    for workspace in workspaces:
        for name, value in changes.items():
            setattr(workspace, name, value)
        gateway.publish_on_commit(workspace)
    events.record_all(
        actor=actor,
        kind=f"workspace.{trigger.value}",
        entries=list(zip(workspaces, messages, strict=True)),
        data={"from": State(before).value, "to": target.value, **(data or {})},
    )
