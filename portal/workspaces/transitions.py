"""Moves workspaces from one state to another; `lifecycle` says which moves there are."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from django.db import transaction
from django.utils import timezone

from portal.accounts.models import User
from portal.common.actors import SystemActor
from portal.common.errors import StateConflict
from portal.common.reasons.codes import WorkspaceCode
from portal.common.reasons.reason import Reason
from portal.events import services as events
from portal.workspaces.gateway import publishing
from portal.workspaces.lifecycle import State, Trigger, target_of
from portal.workspaces.models import Workspace


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
    now = timezone.now()
    before = State(workspace.state)
    reason = fields.get("termination_reason", workspace.termination_reason)
    target = target_of(before, trigger, reason)
    changes: dict[str, Any] = {"state": target, "state_since": now, **fields}
    won = Workspace.objects.filter(pk=workspace.pk, state=before, generation=workspace.generation).update(
        **changes
    )
    if not won:
        raise StateConflict(Reason(WorkspaceCode.CHANGED_MEANWHILE))
    for name, value in changes.items():
        setattr(workspace, name, value)
    # Every change of state, so that nobody is sent to an app that is ending.
    publishing.publish_on_commit(workspace)
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
        raise StateConflict(Reason(WorkspaceCode.SOME_CHANGED_MEANWHILE))
    for workspace in workspaces:
        for name, value in changes.items():
            setattr(workspace, name, value)
        publishing.publish_on_commit(workspace)
    events.record_all(
        actor=actor,
        kind=f"workspace.{trigger.value}",
        entries=list(zip(workspaces, messages, strict=True)),
        data={"from": State(before).value, "to": target.value, **(data or {})},
    )
