"""Accelerators that a workspace gives back while it goes on without them, and takes again.

No driver can take a device from an app that runs or give it one: what runs is stopped and started anew with
the same files, and kernels lose their variables. Its claim ends, as after any stop, once its absence has been
observed; then it waits in the queue like a start.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from uuid import UUID

from django.db import transaction
from django.utils import timezone

from portal.catalog.policies import require_use
from portal.common.actors import SystemActor
from portal.common.domain_events import emit
from portal.common.errors import StateConflict
from portal.common.events import services as events
from portal.common.events.kinds import AuditKind
from portal.common.reasons.reason import Reason
from portal.people.accounts.models import User
from portal.workspaces import policies, reconcile
from portal.workspaces.admission_policy import admission_policy
from portal.workspaces.codes import WorkspaceCode
from portal.workspaces.domain_events import RequestChanged, WorkspaceQueued
from portal.workspaces.gpu_requests import CHANGED, without_gpus
from portal.workspaces.lifecycle import NO_TROUBLE, NOT_QUEUED, State, Trigger
from portal.workspaces.models import Workspace
from portal.workspaces.services import count_start
from portal.workspaces.transitions import advance, locked, set_rows

CHANGEABLE = frozenset({State.PENDING, State.RUNNING, State.STOPPED, State.FAILED})
"""The others are on their way to one of these."""


@transaction.atomic
def release(*, actor: User | SystemActor, workspace_id: UUID, cause: Reason | None = None) -> Workspace:
    """Have a workspace go on without accelerators; `cause` is why, for the audit log.

    What runs is started anew without them, what waits goes on waiting for less, and what is stopped starts
    without them the next time. Releasing twice is success.

    Raises `NotAllowed`, `NotFound`, `StateConflict` (it has none, or is on its way to another state), and
    what a start may raise: nothing is changed then.
    """
    workspace = locked(workspace_id)
    policies.require_operate(actor, workspace)
    if workspace.gpu_released:
        return workspace
    if not workspace.accelerated:
        raise StateConflict(Reason(WorkspaceCode.NO_GPU_TO_RELEASE, {"name": workspace.name}))
    change(
        workspace,
        asked=without_gpus(workspace.resources),
        released={name: workspace.resources[name] for name in CHANGED},
        actor=actor,
        kind=AuditKind.WORKSPACE_GPU_RELEASED,
        message="released its GPUs",
        stops="stopped its app, to start it again without GPUs",
        cause=cause,
    )
    return workspace


@transaction.atomic
def attach(*, actor: User, workspace_id: UUID) -> Workspace:
    """Have a workspace take its accelerators again: what runs stops now, and starts once they are free.

    Attaching twice is success. Raises as `release` does.
    """
    workspace = locked(workspace_id)
    policies.require_operate(actor, workspace)
    if not workspace.gpu_released:
        if workspace.accelerated:
            return workspace
        raise StateConflict(Reason(WorkspaceCode.NO_GPU_TO_ATTACH, {"name": workspace.name}))
    change(
        workspace,
        asked=workspace.released_resources or {},
        released=None,
        actor=actor,
        kind=AuditKind.WORKSPACE_GPU_ATTACHED,
        message="attached its GPUs again",
        stops="stopped its app, to start it again with its GPUs",
    )
    return workspace


def change(
    workspace: Workspace,
    *,
    asked: Mapping[str, Any],
    released: dict[str, Any] | None,
    actor: User | SystemActor,
    kind: AuditKind,
    message: str,
    stops: str,
    cause: Reason | None = None,
    data: dict[str, Any] | None = None,
    refusal: WorkspaceCode = WorkspaceCode.GPU_NOT_CHANGEABLE,
    **fields: Any,
) -> None:
    """Have a locked workspace ask for `asked` from now on, with `fields` that go with it.

    What runs with anything else is started anew. `refusal` says why not, while it is on its way elsewhere.
    """
    if workspace.state not in CHANGEABLE:
        raise StateConflict(Reason(refusal, {"name": workspace.name}), state=workspace.state)
    said = cause.as_json() if cause is not None else None
    before = workspace.request
    fields |= {"resources": {**workspace.resources, **asked}, "released_resources": released}
    fields.setdefault("gpu_awaited", False)
    for name, value in fields.items():
        setattr(workspace, name, value)
    now = timezone.now()
    events.record(actor=actor, kind=kind, workspace=workspace, message=message, cause=said, data=data)
    if workspace.state == State.RUNNING and workspace.request == before:
        # It has all of it already: its GPUs are released, and the rest is the same.
        Workspace.objects.filter(pk=workspace.pk).update(**fields)
        emit(RequestChanged(workspace))
        return
    if workspace.state in (State.RUNNING, State.PENDING):
        # Asked before anything ends: what would be refused keeps what it has.
        policies.require_active_owner(workspace.owner)
        policies.require_place(workspace)
        require_use(workspace.team, workspace.template, workspace.flavor)
        count_start(actor)
        admission_policy().admit(workspace)
        # It takes its turn as one that is asked for now.
        fields["requested_at"] = workspace.requested_at = now
    if workspace.state == State.RUNNING:
        # Its user still wants it to run, so it is queued again as soon as nothing of it is left.
        advance(
            workspace,
            Trigger.STOP,
            actor=actor,
            message=stops,
            cause=said,
            next_reconcile_at=now,
            attempts=0,
            queue=NOT_QUEUED,
            status=NO_TROUBLE,
            end_preemption=True,
            **fields,
        )
        reconcile.step(workspace)
        return
    Workspace.objects.filter(pk=workspace.pk).update(**fields)
    if workspace.state == State.PENDING:
        set_rows([workspace], queue=NOT_QUEUED)
        emit(RequestChanged(workspace))
        emit(WorkspaceQueued(workspace))
        workspace.refresh_from_db()
