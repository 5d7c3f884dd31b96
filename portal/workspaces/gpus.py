"""Releases the accelerators of a workspace, and attaches them again.

No driver can add devices to a running app or remove them. A running workspace is therefore stopped and
started again with the same files; kernels lose their variables. Its allocation is released once nothing of it
is left on the node; then it is queued like a new start.
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
from portal.workspaces.gpu_requests import CHANGED, resources_without_gpus
from portal.workspaces.lifecycle import NO_TROUBLE, NOT_QUEUED, State, Trigger
from portal.workspaces.models import Workspace
from portal.workspaces.services import count_start
from portal.workspaces.transitions import advance, lock_workspace, set_rows

CHANGEABLE = frozenset({State.PENDING, State.RUNNING, State.STOPPED, State.FAILED})
"""Workspaces in other states are on their way to one of these states."""


@transaction.atomic
def release(*, actor: User | SystemActor, workspace_id: UUID, cause: Reason | None = None) -> Workspace:
    """Release the accelerators of a workspace; `cause` is the reason for the audit log. Idempotent.

    A running workspace restarts without them, a queued one asks for less, and a stopped one starts without
    them.

    Raises `NotAllowed`, `NotFound`, `StateConflict` (no accelerators, or in transition) and the exceptions of
    `start`; nothing is changed then.
    """
    workspace = lock_workspace(workspace_id)
    policies.require_operate(actor, workspace)
    if workspace.gpu_released:
        return workspace
    if not workspace.accelerated:
        raise StateConflict(Reason(WorkspaceCode.NO_GPU_TO_RELEASE, {"name": workspace.name}))
    change(
        workspace,
        changes=resources_without_gpus(workspace.resources),
        released={name: workspace.resources[name] for name in CHANGED},
        actor=actor,
        kind=AuditKind.WORKSPACE_GPU_RELEASED,
        message="released the GPUs of the workspace",
        stops="stopped the app to restart it without GPUs",
        cause=cause,
    )
    return workspace


@transaction.atomic
def attach(*, actor: User, workspace_id: UUID) -> Workspace:
    """Attach the released accelerators again. Idempotent.

    A running workspace stops now and starts again once its accelerators are free. Raises the exceptions of
    `release`.
    """
    workspace = lock_workspace(workspace_id)
    policies.require_operate(actor, workspace)
    if not workspace.gpu_released:
        if workspace.accelerated:
            return workspace
        raise StateConflict(Reason(WorkspaceCode.NO_GPU_TO_ATTACH, {"name": workspace.name}))
    change(
        workspace,
        changes=workspace.released_resources or {},
        released=None,
        actor=actor,
        kind=AuditKind.WORKSPACE_GPU_ATTACHED,
        message="attached the GPUs of the workspace again",
        stops="stopped the app to restart it with its GPUs",
    )
    return workspace


def change(
    workspace: Workspace,
    *,
    changes: Mapping[str, Any],
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
    """Change the request of a locked workspace to `changes`, and set `fields` with it.

    A running workspace with other resources restarts. `refusal` is the code of the error for a workspace in
    transition.
    """
    if workspace.state not in CHANGEABLE:
        raise StateConflict(Reason(refusal, {"name": workspace.name}), state=workspace.state)
    cause_json = cause.as_json() if cause is not None else None
    before = workspace.request
    fields |= {"resources": {**workspace.resources, **changes}, "released_resources": released}
    fields.setdefault("gpu_awaited", False)
    for name, value in fields.items():
        setattr(workspace, name, value)
    now = timezone.now()
    events.record(actor=actor, kind=kind, workspace=workspace, message=message, cause=cause_json, data=data)
    if workspace.state == State.RUNNING and workspace.request == before:
        # The resources are the same as before, because the GPUs are released.
        Workspace.objects.filter(pk=workspace.pk).update(**fields)
        emit(RequestChanged(workspace))
        return
    if workspace.state in (State.RUNNING, State.PENDING):
        # Check before anything stops, so that a refused workspace keeps running.
        policies.require_active_owner(workspace.owner)
        policies.require_place(workspace)
        require_use(workspace.team, workspace.template, workspace.flavor)
        count_start(actor)
        admission_policy().admit(workspace)
        # Its waiting time begins again.
        fields["requested_at"] = workspace.requested_at = now
    if workspace.state == State.RUNNING:
        # The desired state is still running, so it is queued again once nothing of it is left.
        advance(
            workspace,
            Trigger.STOP,
            actor=actor,
            message=stops,
            cause=cause_json,
            next_reconcile_at=now,
            attempts=0,
            queue=NOT_QUEUED,
            status=NO_TROUBLE,
            end_preemption=True,
            **fields,
        )
        reconcile.take_next_step(workspace)
        return
    Workspace.objects.filter(pk=workspace.pk).update(**fields)
    if workspace.state == State.PENDING:
        set_rows([workspace], queue=NOT_QUEUED)
        emit(RequestChanged(workspace))
        emit(WorkspaceQueued(workspace))
        workspace.refresh_from_db()
