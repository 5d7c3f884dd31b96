"""Locks workspaces and changes their state; `lifecycle` defines the transitions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any
from uuid import UUID

from django.db import connection, transaction
from django.db.models import Model
from django.utils import timezone

from portal.common.actors import SystemActor
from portal.common.domain_events import emit
from portal.common.errors import NotFound, StateConflict
from portal.common.events import services as events
from portal.common.events.kinds import AuditKind
from portal.common.reasons.reason import Reason
from portal.people.accounts.models import User
from portal.workspaces.codes import WorkspaceCode
from portal.workspaces.domain_events import StateChanged
from portal.workspaces.lifecycle import State, Trigger, target_of
from portal.workspaces.models import Preemption, QueueEntry, Workspace, WorkspaceStatus


def lock_workspace(workspace_id: UUID) -> Workspace:
    """Return the workspace under a row lock, in a transaction. Raises `NotFound`."""
    row = Workspace.objects.filter(pk=workspace_id)
    # Lock only this row, because placement locks pools in a fixed order. Read the relations afterwards,
    # because PostgreSQL would join them as they were before the lock was free.
    if connection.features.has_select_for_update:
        row.select_for_update().values_list("pk").first()
    workspace = row.select_related(
        "owner", "team", "template", "flavor__pool", "pool", "queue_entry", "status", "preemption"
    ).first()
    if workspace is None:
        raise NotFound(Reason(WorkspaceCode.NO_SUCH_WORKSPACE))
    return workspace


@transaction.atomic
def advance(
    workspace: Workspace,
    trigger: Trigger,
    *,
    actor: User | SystemActor,
    message: str,
    reason: str = "",
    cause: Mapping[str, Any] | None = None,
    data: dict[str, Any] | None = None,
    queue: Mapping[str, Any] | None = None,
    status: Mapping[str, Any] | None = None,
    end_preemption: bool = False,
    **fields: Any,
) -> None:
    """Move `workspace` to another state, set `fields`, and write the audit entry, in one transaction.

    `reason` and `cause` are as in `events.services.record`. `queue` and `status` are columns of its queue
    entry and its status; `end_preemption` deletes its pending preemption.

    The update requires the state and generation that the caller saw. Otherwise it raises `StateConflict` and
    changes nothing.
    """
    now = timezone.now()
    before = State(workspace.state)
    ends_as = fields.get("termination_reason", workspace.termination_reason)
    target = target_of(before, trigger, ends_as)
    changes: dict[str, Any] = {"state": target, "state_since": now, **fields}
    won = Workspace.objects.filter(pk=workspace.pk, state=before, generation=workspace.generation).update(
        **changes
    )
    if not won:
        raise StateConflict(Reason(WorkspaceCode.CHANGED_MEANWHILE))
    _take_over([workspace], changes)
    set_rows([workspace], queue=queue, status=status, end_preemption=end_preemption)
    emit(StateChanged((workspace,)))
    events.record(
        actor=actor,
        kind=AuditKind(f"workspace.{trigger.value}"),
        message=message,
        reason=reason,
        cause=cause,
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
    queue: Mapping[str, Any] | None = None,
    status: Mapping[str, Any] | None = None,
    **fields: Any,
) -> None:
    """Like `advance`, for several workspaces in the same state and generation: moves all or none.

    All get the same `fields`; each has its own message. The number of statements is constant.
    """
    if not workspaces:
        return
    seen = {(workspace.state, workspace.generation) for workspace in workspaces}
    if len(seen) > 1:
        raise ValueError("they are not in one state and generation")
    before, generation = seen.pop()
    target = target_of(before, trigger)
    changes: dict[str, Any] = {"state": target, "state_since": timezone.now(), **fields}
    won = Workspace.objects.filter(
        pk__in=[workspace.pk for workspace in workspaces], state=before, generation=generation
    ).update(**changes)
    if won != len(workspaces):
        raise StateConflict(Reason(WorkspaceCode.SOME_CHANGED_MEANWHILE))
    _take_over(workspaces, changes)
    set_rows(workspaces, queue=queue, status=status)
    emit(StateChanged(tuple(workspaces)))
    events.record_all(
        actor=actor,
        kind=AuditKind(f"workspace.{trigger.value}"),
        entries=list(zip(workspaces, messages, strict=True)),
        data={"from": State(before).value, "to": target.value, **(data or {})},
    )


def set_rows(
    workspaces: Sequence[Workspace],
    *,
    queue: Mapping[str, Any] | None = None,
    status: Mapping[str, Any] | None = None,
    end_preemption: bool = False,
) -> None:
    """Set columns of queue entries and statuses of locked workspaces, with one statement per table."""
    keys = [workspace.pk for workspace in workspaces]
    if queue:
        QueueEntry.objects.filter(workspace__in=keys).update(**queue)
        _take_over(_loaded_relations(workspaces, "queue_entry"), queue)
    if status:
        WorkspaceStatus.objects.filter(workspace__in=keys).update(**status)
        _take_over(_loaded_relations(workspaces, "status"), status)
    if end_preemption:
        Preemption.objects.filter(workspace__in=keys).delete()
        for workspace in workspaces:
            workspace._state.fields_cache["preemption"] = None


def _loaded_relations(workspaces: Sequence[Workspace], name: str) -> list[Model]:
    """Return the related rows that are already loaded. Others are read when needed."""
    descriptor = getattr(Workspace, name)
    return [getattr(workspace, name) for workspace in workspaces if descriptor.is_cached(workspace)]


def _take_over(rows: Sequence[Model], changes: Mapping[str, Any]) -> None:
    for row in rows:
        for name, value in changes.items():
            setattr(row, name, value)
