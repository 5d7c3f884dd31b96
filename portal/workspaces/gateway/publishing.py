"""Publishes workspaces to the gateway: address, permitted users and upstream secret.

If Redis loses this data, the gateway reads it from the database.
"""

from __future__ import annotations

import logging

import redis
from django.conf import settings
from django.db import transaction
from django.db.models import Q, QuerySet

from portal.catalog.models import UpstreamAuth
from portal.catalog.selectors import template_at
from portal.common import passes, request_context
from portal.common.errors import StateConflict, Unavailable
from portal.common.events import live
from portal.common.events import services as events
from portal.common.events.kinds import AuditKind
from portal.common.problem_codes import ProblemCode
from portal.common.reasons.reason import Reason
from portal.common.scopes import Scope
from portal.fleet.machines import selectors as machines
from portal.fleet.machines.domain_events import MachineEnded
from portal.fleet.machines.models import MachineState
from portal.people.accounts.domain_events import SignedOut, UserDeactivated
from portal.people.accounts.models import ApiToken, User
from portal.people.accounts.token_lookup import find_valid_token
from portal.workspaces import policies
from portal.workspaces.codes import WorkspaceCode
from portal.workspaces.domain_events import EndpointChanged, StateChanged
from portal.workspaces.gateway import tickets, workspace_views
from portal.workspaces.gateway.entries import Entry
from portal.workspaces.gateway.hosts import workspace_uuid
from portal.workspaces.gateway.workspace_views import WorkspaceView
from portal.workspaces.lifecycle import State
from portal.workspaces.models import Workspace
from portal.workspaces.tokens import app_token
from provisioning.endpoints import host_and_port, socket_endpoint, socket_name
from provisioning.types import WorkspaceRef

log = logging.getLogger(__name__)
_NOT_YET = frozenset({State.PENDING, State.PROVISIONING})
STARTED = frozenset({State.PROVISIONING, State.RUNNING, State.STOPPING})


def upstream_headers(workspace: Workspace) -> dict[str, str]:
    """Return the headers that the gateway adds for the app, so that its secret never reaches a browser."""
    token = app_token(workspace.pk, workspace.generation)
    match template_at(workspace.template, workspace.placed_at).upstream_auth:
        case UpstreamAuth.BEARER:
            return {"Authorization": f"Bearer {token}"}
        case UpstreamAuth.CODE_SERVER:
            return {"Cookie": f"code-server-session={token}"}
        case _:
            return {}


def view_of(workspace: Workspace) -> WorkspaceView:
    socket = socket_of(workspace)
    # Without an endpoint there is no traffic yet, whichever machine it is on.
    reachable = bool(workspace.endpoint) and workspace.state in STARTED
    machine = machines.machine_of_workspace(workspace.pk, workspace.pool_id) if reachable else None
    if machine is not None and machine.state != MachineState.ACTIVE:
        # A machine that is no longer trusted gets no traffic.
        socket = ""
    remote_machine = machine if socket else None
    # An address chosen by another machine could be one of this machine's own services.
    endpoint = "" if socket or machine is not None else workspace.endpoint
    return WorkspaceView(
        external_name=workspace.external_name,
        name=workspace.name,
        state=workspace.state,
        # A deactivated account has no access, even with valid cookies or tickets.
        user_ids=frozenset({str(workspace.owner_id)} if workspace.owner.is_active else ()),
        upstream_headers=upstream_headers(workspace),
        simulated=workspace.simulated,
        socket=socket,
        gateway=remote_machine.gateway if remote_machine else "",
        node=remote_machine.name if remote_machine else "",
        endpoint="" if host_and_port(endpoint) is None else endpoint,
        service_workers=workspace.template.service_workers,
        revision=int(workspace.state_since.timestamp() * 1000),
    )


def socket_of(workspace: Workspace) -> str:
    """Return the socket name of this start of the workspace, or an empty string."""
    ref = WorkspaceRef(str(workspace.pk), workspace.generation)
    return socket_name(workspace.endpoint) if workspace.endpoint == socket_endpoint(ref) else ""


def state_changed(event: StateChanged) -> None:
    """Publish every change of state, so that no request goes to an app that is stopping."""
    for workspace in event.workspaces:
        publish(workspace)


def machine_ended(event: MachineEnded) -> None:
    """Close access at once to workspaces on a machine that is no longer trusted."""
    on_node = Q(allocations__node__name=event.name, allocations__released_at=None)
    for workspace in _base_queryset().filter(on_node, pool=event.pool_id, state__in=STARTED).distinct():
        publish(workspace)


def endpoint_changed(event: EndpointChanged) -> None:
    publish(event.workspace)


def publish(workspace: Workspace) -> None:
    """Publish the current state. If Redis fails, its copy is outdated for at most `VIEW_TTL_S`."""
    view = view_of(workspace)
    try:
        workspace_views.store_view(live.connection(), view)
        if workspace.state == State.TERMINATED:
            tickets.revoke_workspace(live.connection(), workspace.external_name)
    except redis.RedisError as error:
        log.warning("could not update gateway about %s: %s", workspace.external_name, error)
    if not view.reachable and workspace.state not in _NOT_YET:
        _pause_passes()


def issue_ticket(*, actor: User, workspace: Workspace) -> str:
    """Return a one-time ticket into a running workspace for its owner, and record it in the audit log.

    Raises `NotAllowed`, `StateConflict`, `Unavailable`.
    """
    policies.require_open(actor, workspace)
    if workspace.state != State.RUNNING:
        raise StateConflict(
            Reason(WorkspaceCode.NOT_RUNNING, {"name": workspace.name, "state": workspace.state}),
            state=workspace.state,
        )
    if workspace.simulated:
        raise StateConflict(Reason(WorkspaceCode.SIMULATED), code=ProblemCode.SIMULATED)
    try:
        ticket = tickets.issue(
            live.connection(), external_name=workspace.external_name, user_id=str(actor.pk)
        )
    except redis.RedisError as error:
        raise Unavailable(Reason(WorkspaceCode.TICKET_NOT_ISSUED)) from error
    events.record(
        actor=actor,
        kind=AuditKind.WORKSPACE_OPENED,
        message="opened the workspace in a browser",
        workspace=workspace,
    )
    return ticket


def end_sessions(event: SignedOut) -> None:
    """End all workspace sessions of a user after they signed out of the portal."""
    try:
        tickets.revoke_user(live.connection(), str(event.user_id))
    except redis.RedisError as error:
        log.warning("could not end workspace sessions of %s: %s", event.user_id, error)
    _pause_passes()


def end_access(event: UserDeactivated) -> None:
    """Revoke a deactivated user's access to all workspaces: cookies, tickets and views."""
    try:
        tickets.revoke_user(live.connection(), str(event.user.pk))
    except redis.RedisError as error:
        log.warning("could not end workspace sessions of %s: %s", event.user.pk, error)
    _pause_passes()
    for workspace in _base_queryset().filter(owner=event.user, state__in=STARTED):
        publish(workspace)


def _pause_passes() -> None:
    """Send every request through forward-auth until the gateway process has processed the change."""
    passes.pause(settings.BERTH_PASSES_DIR, settings.BERTH_GATEWAY_SECRET)


def resolve(external_name: str) -> WorkspaceView | None:
    """Return the view of a workspace from the database. Used if Redis has none."""
    workspace = _by_external_name(external_name)
    return view_of(workspace) if workspace is not None else None


def authorize_bearer(secret: str, _external_name: str) -> str | None:
    """Return the user id of an API token with the scope for everything or `workspaces:connect`, else `None`.

    The gateway then checks whether this user may enter the workspace. If not, the answer is 403 instead of
    401, because the token itself is valid.
    """
    connecting = _connecting(secret)
    return str(connecting[0].pk) if connecting is not None else None


@transaction.atomic
def record_entry(entry: Entry) -> bool:
    """Record in the audit log that a token is used to enter a workspace.

    Returns `False` if it is not allowed.
    """
    connecting = _connecting(entry.token)
    workspace = _by_external_name(entry.external_name)
    if connecting is None or workspace is None or not policies.may_open(connecting[0], workspace):
        return False
    user, token = connecting
    request_context.begin(
        address=entry.address,
        user_agent=entry.user_agent,
        request_id=request_context.accepted_request_id(entry.request_id),
    )
    request_context.note_token(token.prefix)
    try:
        events.record(
            actor=user,
            kind=AuditKind.WORKSPACE_OPENED,
            message=f"opened the workspace with the token “{token.name}”",
            workspace=workspace,
            data={"token": str(token.pk)},
        )
    finally:
        request_context.end()
    return True


def _connecting(secret: str) -> tuple[User, ApiToken] | None:
    """Return a token with a scope to connect, and its user. Tokens of auditors are never accepted."""
    credentials = find_valid_token(secret)
    if credentials is None or credentials[0].is_auditor:
        return None
    return credentials if {Scope.ALL, Scope.WORKSPACES_CONNECT} & set(credentials[1].scopes) else None


def _by_external_name(external_name: str) -> Workspace | None:
    return _base_queryset().filter(pk=workspace_uuid(external_name)).first()


def _base_queryset() -> QuerySet[Workspace]:
    return Workspace.objects.select_related("owner", "template", "flavor__pool", "pool")
