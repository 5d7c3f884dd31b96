"""User actions on workspaces. The system's own steps are in `reconcile.py` and `results.py`."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from django.conf import settings
from django.core.exceptions import ValidationError
from django.db import IntegrityError, transaction
from django.utils import timezone

from portal.catalog.environments.selectors import digest_for
from portal.catalog.environments.services import build_for_request
from portal.catalog.lifetimes import restart_lifetime
from portal.catalog.models import Template
from portal.catalog.policies import require_use
from portal.common import rate_limits
from portal.common.actors import SystemActor
from portal.common.constraints import violates
from portal.common.domain_events import emit
from portal.common.errors import InvalidInput, StateConflict, TooMany
from portal.common.events import services as events
from portal.common.events.kinds import AuditKind
from portal.common.idempotency import KeyUse
from portal.common.problem_codes import ProblemCode
from portal.common.reasons.reason import Reason
from portal.people.accounts.codes import AccountCode
from portal.people.accounts.domain_events import (
    MembershipRevoked,
    TeamArchived,
    TeamDeletionStarted,
    UserDeactivated,
    UserDeleted,
)
from portal.people.accounts.models import Team, User
from portal.workspaces import checkouts, dispatch, gpu_requests, policies, reconcile, software, stops
from portal.workspaces.admission_policy import admission_policy
from portal.workspaces.codes import WorkspaceCode
from portal.workspaces.domain_events import (
    RequestChanged,
    StopRequested,
    WorkspaceQueued,
    WorkspaceRequested,
)
from portal.workspaces.homes import start_moves
from portal.workspaces.lifecycle import (
    DELETABLE,
    JUST_REQUESTED,
    NO_TROUBLE,
    NOT_QUEUED,
    NOTHING_SEEN,
    STARTABLE,
    STOPPABLE,
    DesiredState,
    State,
    TerminationReason,
    Trigger,
)
from portal.workspaces.models import QueueEntry, Workspace, WorkspaceQuerySet, WorkspaceStatus
from portal.workspaces.order import WorkspaceOrder
from portal.workspaces.preconditions import require_stoppable, state_error
from portal.workspaces.secrets.effective import require_known
from portal.workspaces.selectors import CREATION
from portal.workspaces.stops import StopRule
from portal.workspaces.transitions import advance, lock_workspace

NAME_MAX = 60
NAME_UNIQUE = "workspace_name_unique"
FREE_NAME_TRIES = 10


@dataclass(frozen=True, slots=True)
class Creation:
    """A workspace, and whether an earlier request with the same idempotency key created it."""

    workspace: Workspace
    replayed: bool


def create(
    *, actor: User, order: WorkspaceOrder, idempotency_key: str = "", unapproved: bool = False
) -> Creation:
    """Create a workspace, and start it if there is capacity; otherwise queue it.

    With `unapproved`, a workspace that needs an approval is created and waits for it; the caller requests the
    approval at the same time. Only the team's owners and operators may set a priority above 0.

    Raises `InvalidInput` (name, times, priority, secrets, git), `NotAllowed` (team, priority),
    `NeedsApproval`, `NotPossible` (no pool could ever run it) and `StateConflict` (the name is in use, or the
    idempotency key was used with another order).
    """
    policies.require_create(actor, order.team)
    policies.require_priority(actor, order.team, order.priority)
    for flavor in order.flavors:
        require_use(order.team, order.template, flavor)
    order.require_in_range()
    # Use the requested name, because a generated one would differ when the request is repeated.
    use = KeyUse(actor, CREATION, idempotency_key, order.digest()) if idempotency_key else None
    chosen = software.choose_software(order.template, order.team, order.environment)
    lifetime_s = order.granted_lifetime_s()
    for tries_left in reversed(range(FREE_NAME_TRIES)):
        name = order.requested_name or free_name(actor=actor, team=order.team, template=order.template)
        try:
            with transaction.atomic():
                policies.require_active_owner(actor)
                if use is not None:
                    if (repeated := workspace_of_key(use)) is not None:
                        return Creation(repeated, replayed=True)
                    use.claim()
                policies.require_open_team(order.team)
                workspace = _insert(
                    actor,
                    order,
                    name=name,
                    chosen=chosen,
                    lifetime_s=lifetime_s,
                    unapproved=unapproved,
                )
                if use is not None:
                    use.record(workspace=str(workspace.pk))
                emit(WorkspaceRequested(workspace))
                emit(WorkspaceQueued(workspace))
        except IntegrityError as error:
            if use is not None and use.was_claimed(error) and (repeated := workspace_of_key(use)) is not None:
                return Creation(repeated, replayed=True)
            if not violates(error, Workspace, NAME_UNIQUE):
                raise
            if not order.requested_name and tries_left:
                # The generated name was taken meanwhile. Try another.
                continue
            raise StateConflict(
                Reason(WorkspaceCode.NAME_TAKEN, {"name": name, "team": order.team.name}),
                code=ProblemCode.NAME_TAKEN,
            ) from error
        break
    workspace.refresh_from_db()
    return Creation(workspace, replayed=False)


def _insert(
    actor: User,
    order: WorkspaceOrder,
    *,
    name: str,
    chosen: software.Software,
    lifetime_s: int | None,
    unapproved: bool,
) -> Workspace:
    """Insert the workspace of an order with its queue entry and status. Raises the errors of `create`."""
    team, template, flavor = order.team, order.template, order.flavor
    secrets = require_known(actor, team, template, order.secrets) if order.secrets else []
    git = checkouts.requested_repository(owner=actor, team=team, template=template, git=order.git)
    count_start(actor)
    version = chosen.version
    if chosen.waits and chosen.environment is not None:
        version = build_for_request(actor=actor, environment=chosen.environment)
    now = timezone.now()
    digest = digest_for(version) if version is not None else ""
    workspace = Workspace(
        name=name,
        owner=actor,
        team=team,
        template=template,
        flavor=flavor,
        resources=software.add_software_need(flavor.as_request(), digest),
        flavor_choices=_flavor_choices(order, digest) if order.fallbacks else [],
        start_within_s=order.start_within_s,
        environment_version=version,
        priority=order.priority,
        preemptible=flavor.preemptible,
        checkpointed=order.checkpointed,
        loses_work=order.loses_work,
        move_home=order.move_home,
        expected_s=order.duration_s,
        lifetime_s=lifetime_s,
        secrets=secrets,
        git=git,
        bound_to=order.bound_to,
        state_since=now,
        requested_at=now,
    )
    try:
        workspace.clean_fields(exclude=_unvalidated_fields())
    except ValidationError as error:
        raise InvalidInput(Reason(WorkspaceCode.NOT_VALID), errors=error.message_dict) from error
    admission = admission_policy().admit(
        workspace, unapproved=unapproved, gpus_optional=order.start_without_gpu
    )
    if admission.without_gpus:
        # The workspace starts at once on its first flavor, so the other flavors are not needed.
        workspace.flavor_choices = []
        gpu_requests.release_before_start(workspace)
    workspace.save(force_insert=True)
    QueueEntry.objects.create(workspace=workspace)
    WorkspaceStatus.objects.create(workspace=workspace)
    emit(RequestChanged(workspace))
    events.record(
        actor=actor,
        kind=AuditKind.WORKSPACE_REQUESTED,
        workspace=workspace,
        message=f"requested {template.name} on {', else '.join(choice.name for choice in order.flavors)}"
        + (", without GPUs until they are attached" if workspace.gpu_released else ""),
        data={"template": template.slug, "flavor": flavor.slug, **_software_data(workspace)},
    )
    return workspace


def _flavor_choices(order: WorkspaceOrder, digest: str) -> list[dict[str, Any]]:
    """Return the workspace's columns for each listed flavor. Raises `InvalidInput` for the lifetime."""
    return [
        {
            "flavor": flavor.slug,
            "resources": software.add_software_need(flavor.as_request(), digest),
            "preemptible": flavor.preemptible,
            "loses_work": order.loses_work_on(flavor),
            "lifetime_s": order.granted_lifetime_s(flavor),
        }
        for flavor in order.flavors
    ]


def _unvalidated_fields() -> set[str]:
    """Return the fields of a new workspace that need no validation: the flavor's resources and relations.

    Validation costs a query per foreign key, and the database checks the constraints anyway.
    """
    return {"resources", *(field.name for field in Workspace._meta.fields if field.is_relation)}


def count_start(actor: User | SystemActor) -> None:
    """Raise `TooMany` if the user has reached the limit of starts. Without Redis, nothing is limited."""
    if isinstance(actor, SystemActor):
        return
    minute, hour = settings.BERTH_STARTS_PER_MINUTE, settings.BERTH_STARTS_PER_HOUR
    wait_s = rate_limits.count(
        f"starts:{actor.pk}",
        rate_limits.Limit(minute, rate_limits.MINUTE_S),
        rate_limits.Limit(hour, rate_limits.HOUR_S),
    )
    if wait_s:
        raise TooMany(Reason(WorkspaceCode.TOO_MANY_STARTS, {"seconds": wait_s}), retry_after_s=wait_s)


def _software_data(workspace: Workspace) -> dict[str, Any]:
    version = workspace.environment_version
    return {} if version is None else {"environment": version.environment.slug, "version": version.number}


def workspace_of_key(use: KeyUse) -> Workspace | None:
    """Return the workspace that an earlier request with the key created or changed, or `None`.

    Raises `StateConflict` if the key was used with another request.
    """
    answer = use.answer()
    return None if answer is None else Workspace.objects.get(pk=answer["workspace"])


def free_name(*, actor: User, team: Team, template: Template) -> str:
    """Return a name that the user does not use yet in the team: `jupyterlab`, `jupyterlab-2`, …."""
    taken = set(Workspace.objects.live().filter(owner=actor, team=team).values_list("name", flat=True))
    base = re.sub(r"[^a-z0-9-]+", "-", template.slug.lower()).strip("-")[: NAME_MAX - 8] or "workspace"
    if base not in taken:
        return base
    return next(f"{base}-{n}" for n in range(2, len(taken) + 3) if f"{base}-{n}" not in taken)


@transaction.atomic
def stop(
    *,
    actor: User | SystemActor,
    workspace_id: UUID,
    reason: str = "",
    cause: Reason | None = None,
    rule: StopRule | None = None,
) -> Workspace:
    """Stop a workspace; its home is kept. Idempotent.

    `reason` is a text for the audit log. `cause` and `rule` say why the portal stops the workspace.
    """
    workspace = lock_workspace(workspace_id)
    require_stoppable(actor, workspace)
    if not isinstance(actor, SystemActor):
        emit(StopRequested(workspace))
    if workspace.state in {State.STOPPED, State.STOPPING}:
        if workspace.desired_state == DesiredState.RUNNING:
            # The workspace was preempted and would have been queued again.
            Workspace.objects.filter(pk=workspace.pk).update(desired_state=DesiredState.STOPPED)
            emit(RequestChanged(workspace))
            workspace.desired_state = DesiredState.STOPPED
            events.record(
                actor=actor,
                kind=AuditKind.WORKSPACE_STOP_REQUESTED,
                workspace=workspace,
                message="stopped the workspace",
            )
        return workspace
    if workspace.waits_for_home:
        start_moves.abandon(workspace)
    now = timezone.now()
    advance(
        workspace,
        Trigger.STOP,
        actor=actor,
        message="stopped the workspace",
        reason=reason,
        cause=cause.as_json() if cause is not None else None,
        desired_state=DesiredState.STOPPED,
        next_reconcile_at=None if workspace.state == State.PENDING else now,
        attempts=0,
        termination_reason=TerminationReason.NONE if cause is None else TerminationReason.RECLAIMED,
        queue=NOT_QUEUED,
        status={**NO_TROUBLE, "stopped": stops.stored_cause(cause, rule, now)},
        end_preemption=True,
    )
    reconcile.take_next_step(workspace)
    return workspace


@transaction.atomic
def start(*, actor: User | SystemActor, workspace_id: UUID) -> Workspace:
    """Start a stopped workspace, or retry a failed one. Idempotent."""
    workspace = lock_workspace(workspace_id)
    policies.require_operate(actor, workspace)
    if workspace.state in {State.PENDING, State.PROVISIONING, State.RUNNING}:
        return workspace
    if workspace.state not in STARTABLE:
        raise state_error(workspace, WorkspaceCode.NOT_STARTABLE)
    policies.require_active_owner(workspace.owner)
    policies.require_place(workspace)
    require_use(workspace.team, workspace.template, workspace.flavor)
    count_start(actor)
    admission_policy().admit(workspace)
    retrying = workspace.state == State.FAILED
    now = timezone.now()
    advance(
        workspace,
        Trigger.RETRY if retrying else Trigger.START,
        actor=actor,
        message="tried to start the workspace again" if retrying else "started the workspace",
        desired_state=DesiredState.RUNNING,
        termination_reason=TerminationReason.NONE,
        lifetime_s=restart_lifetime(workspace.template, workspace.flavor, workspace.lifetime_s),
        requested_at=now,
        next_reconcile_at=None,
        attempts=0,
        queue=NOT_QUEUED,
        status=NOTHING_SEEN,
        end_preemption=True,
        **JUST_REQUESTED,
    )
    emit(WorkspaceRequested(workspace))
    emit(WorkspaceQueued(workspace))
    workspace.refresh_from_db()
    return workspace


@transaction.atomic
def delete(
    *,
    actor: User | SystemActor,
    workspace_id: UUID,
    reason: str = "",
    ends_as: TerminationReason = TerminationReason.DELETED,
) -> Workspace:
    """Delete a workspace permanently; the owner's home in the team is kept. Idempotent.

    `reason` is a text for the audit log.
    """
    workspace = lock_workspace(workspace_id)
    policies.require_operate(actor, workspace)
    if workspace.state == State.TERMINATED:
        return workspace
    if workspace.state not in DELETABLE:
        # The workspace is already ending for another reason. Only record that it must not come back.
        if workspace.desired_state != DesiredState.DELETED:
            Workspace.objects.filter(pk=workspace.pk).update(
                desired_state=DesiredState.DELETED, termination_reason=ends_as
            )
            _record_delete(actor, workspace, reason)
        return workspace
    changes: dict[str, Any] = {
        "desired_state": DesiredState.DELETED,
        "termination_reason": ends_as,
        "attempts": 0,
    }
    if workspace.state == State.STOPPING:
        # The stop continues; the reconciler deletes the workspace when it has stopped.
        Workspace.objects.filter(pk=workspace.pk).update(
            desired_state=DesiredState.DELETED, termination_reason=ends_as
        )
        workspace.desired_state = DesiredState.DELETED
        _record_delete(actor, workspace, reason)
        return workspace
    if workspace.waits_for_home:
        start_moves.abandon(workspace)
    placed = workspace.pool_id is not None
    advance(
        workspace,
        Trigger.TERMINATE if placed else Trigger.CANCEL,
        actor=actor,
        message="deleted the workspace",
        reason=reason,
        next_reconcile_at=timezone.now() if placed else None,
        status=NO_TROUBLE,
        **changes,
    )
    reconcile.take_next_step(workspace)
    return workspace


def _record_delete(actor: User | SystemActor, workspace: Workspace, reason: str) -> None:
    events.record(
        actor=actor,
        kind=AuditKind.WORKSPACE_DELETE_REQUESTED,
        workspace=workspace,
        message="deleted the workspace",
        reason=reason,
    )


def stop_all(*, actor: User | SystemActor, reason: str) -> int:
    """Stop all running and queued workspaces, and return how many were asked to stop."""
    stopped = 0
    for workspace_id in Workspace.objects.filter(state__in=STOPPABLE).values_list("pk", flat=True):
        try:
            stop(actor=actor, workspace_id=workspace_id, reason=reason)
        except StateConflict:
            continue
        stopped += 1
    return stopped


def stop_all_of(event: UserDeactivated) -> None:
    """Stop all running and queued workspaces of a deactivated user; files are kept."""
    workspaces = Workspace.objects.filter(owner=event.user)
    cause = Reason(WorkspaceCode.OWNER_DEACTIVATED, {"username": event.user.username})
    _stop_all(workspaces, actor=event.actor, cause=cause)


def stop_all_in_team(event: MembershipRevoked) -> None:
    """Stop all running and queued workspaces of a user in a team that they leave; files are kept."""
    workspaces = Workspace.objects.filter(owner=event.user, team=event.team)
    params = {"username": event.user.username, "team": event.team.name}
    _stop_all(workspaces, actor=event.actor, cause=Reason(WorkspaceCode.OWNER_LEFT_TEAM, params))


def stop_all_of_team(event: TeamArchived) -> None:
    """Stop all running and queued workspaces of an archived team; files are kept."""
    workspaces = Workspace.objects.filter(team=event.team)
    cause = Reason(AccountCode.TEAM_ARCHIVED, {"team": event.team.name})
    _stop_all(workspaces, actor=event.actor, cause=cause)


def _stop_all(workspaces: WorkspaceQuerySet, *, actor: User | SystemActor, cause: Reason) -> None:
    stoppable = workspaces.filter(state__in=STOPPABLE)
    for workspace_id in stoppable.order_by("pk").values_list("pk", flat=True):
        stop(actor=actor, workspace_id=workspace_id, cause=cause)
    # Preempted workspaces would otherwise start again automatically.
    returning = workspaces.filter(
        state__in=[State.STOPPING, State.STOPPED], desired_state=DesiredState.RUNNING
    )
    for workspace_id in returning.order_by("pk").values_list("pk", flat=True):
        stop(actor=actor, workspace_id=workspace_id, cause=cause)


def delete_all_of_team(event: TeamDeletionStarted) -> None:
    """Delete the workspaces of a team that is being deleted."""
    rows = Workspace.objects.live().filter(team=event.team).order_by("name", "pk")
    for workspace_id in rows.values_list("pk", flat=True):
        delete(actor=event.actor, workspace_id=workspace_id)


def delete_all_of(event: UserDeleted) -> None:
    """Delete the workspaces of a deleted account, if requested."""
    if event.delete_workspaces:
        rows = Workspace.objects.live().filter(owner=event.user).order_by("name")
        for workspace_id in rows.values_list("pk", flat=True):
            delete(actor=event.actor, workspace_id=workspace_id)


MAX_LOG_LINES = 5000


def read_logs(*, workspace: Workspace, tail_lines: int = 200) -> str:
    """Return the last lines of the app's log, from the node or as stored at failure. Raises `Unavailable`."""
    if workspace.pool is None or workspace.generation == 0:
        return workspace.status.log_tail
    if workspace.state in {State.TERMINATED, State.FAILED}:
        return workspace.status.log_tail
    return dispatch.read_logs(workspace, tail_lines=tail_lines)
