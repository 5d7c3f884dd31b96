"""Sends commands to the node plane. A lost command costs only time, because the row stays due."""

from __future__ import annotations

import logging
import uuid
from datetime import datetime, timedelta
from functools import lru_cache, partial
from typing import Any

from django.conf import settings
from django.db import transaction
from django.db.models import Q
from django.utils import timezone

from portal.catalog.environments.models import EnvironmentVersion
from portal.catalog.selectors import template_at
from portal.common.errors import Unavailable
from portal.common.reasons.reason import Reason
from portal.fleet.inventory import held_environments, node_commands
from portal.fleet.inventory.models import Allocation, Node, Pool
from portal.workspaces import checkouts, egress, node_rpc
from portal.workspaces.codes import WorkspaceCode
from portal.workspaces.models import PoolObservation, Workspace
from portal.workspaces.secrets.effective import available_secrets
from portal.workspaces.tokens import agent_token, app_token
from provisioning import messages
from provisioning.types import (
    AgentSpec,
    AppSpec,
    Command,
    DeviceGrant,
    LogPiece,
    NodePlacement,
    Op,
    Placement,
    PoolConfig,
    WorkspaceRef,
    WorkspaceSpec,
)

log = logging.getLogger(__name__)
DEACTIVATED_GRACE_S = 1.5
COMPLETE_EVERY = timedelta(seconds=60)
"""Longest time between two complete lists of an engine's pool, which also show missing workspaces."""


def ref_of(workspace: Workspace) -> WorkspaceRef:
    return WorkspaceRef(workspace_id=str(workspace.pk), generation=workspace.generation)


def spec_of(workspace: Workspace, *, may_have_secrets: bool = True) -> WorkspaceSpec:
    """Return the full specification of the workspace's current generation.

    If the caller knows that the workspace has no secrets, `may_have_secrets=False` saves a query.
    """
    # Use the template as of the placement, so that a repeated command is identical.
    template = template_at(workspace.template, workspace.placed_at)
    cloned = checkouts.specs_of(workspace)
    return WorkspaceSpec(
        ref=ref_of(workspace),
        name=workspace.name,
        owner=workspace.owner.username,
        team=workspace.team.slug,
        template=template.slug,
        app=AppSpec(
            argv=template.command,
            env=template.env,
            ready_path=template.ready_path,
            activity=template.activity,
            start_timeout_s=template.start_timeout_s,
            stop_timeout_s=template.stop_timeout_s,
        ),
        resources=workspace.request,
        agent=AgentSpec(
            url=settings.BERTH_AGENT_URL,
            token=agent_token(workspace.pk, workspace.generation),
            heartbeat_s=settings.HEARTBEAT_S,
        ),
        app_token=app_token(workspace.pk, workspace.generation),
        environment=digest_of(workspace),
        environment_name=environment_name_of(workspace),
        reset_packages=resets_packages(workspace),
        secrets=any(checkout.credential for checkout in cloned)
        or (
            may_have_secrets
            and bool(
                available_secrets(workspace.owner, workspace.team, template).selection(workspace.secrets)
            )
        ),
        egress=egress.limits_at_start(workspace),
        checkouts=cloned,
        mounts=tuple(template.mounts),
    )


def digest_of(workspace: Workspace) -> str:
    """Return the digest of the environment, or an empty string for the software of the node."""
    return next(iter(held_environments.digests_in(workspace.request.needs)), "")


def environment_name_of(workspace: Workspace) -> str:
    """Return the environment name under which user packages are stored. All versions share it."""
    return _slug_of(workspace.environment_version_id) if workspace.environment_version_id else ""


@lru_cache(maxsize=1024)
def _slug_of(version_id: uuid.UUID) -> str:
    """Return the slug of a version's environment. Cached, because slugs never change."""
    return EnvironmentVersion.objects.values_list("environment__slug", flat=True).get(pk=version_id)


def resets_packages(workspace: Workspace) -> bool:
    """Return whether the current start removes the user's packages, as requested before its placement."""
    after = workspace.packages_reset_after
    return after is not None and workspace.generation > after


def allocations_of(workspace: Workspace) -> list[Allocation]:
    return list(
        workspace.allocations.filter(released_at=None)
        .select_related("node")
        .prefetch_related("devices__device")
        .order_by("node__name")
    )


def placement_of(allocations: list[Allocation]) -> Placement:
    """Return the placement described by active allocations."""
    return Placement(
        tuple(
            NodePlacement(
                allocation.node.name,
                tuple(
                    DeviceGrant(item.device.uuid, item.milli, item.memory_mib)
                    for item in sorted(allocation.devices.all(), key=lambda item: item.device.index)
                ),
            )
            for allocation in allocations
        )
    )


def send(workspace: Workspace, op: Op, *, allocations: list[Allocation] | None = None) -> None:
    """Take the lease for one command, and send it after the transaction commits.

    The caller holds the row lock, and may pass the active allocations. If the command or its answer is lost,
    the lease expires and the sweep sends the command again.
    """
    if allocations is None:
        allocations = allocations_of(workspace)
    fields = new_lease(timezone.now())
    for name, value in fields.items():
        setattr(workspace, name, value)
    workspace.save(update_fields=list(fields))
    send_leased(workspace, op, node_commands.config_of(_pool_of(workspace)), allocations)


def new_lease(now: datetime) -> dict[str, Any]:
    """Return the lease columns for a command to one or several workspaces.

    Leases are only compared with the workspace named in the answer, so several workspaces can share one.
    """
    expires = now + timedelta(seconds=settings.NODE_LEASE_S)
    return {"lease": uuid.uuid4().hex, "lease_expires_at": expires, "next_reconcile_at": expires}


def send_leased(
    workspace: Workspace,
    op: Op,
    config: PoolConfig,
    allocations: list[Allocation],
    *,
    may_have_secrets: bool = True,
) -> None:
    """Send a command under the lease of the row, after the transaction commits."""
    assert workspace.lease_expires_at is not None  # every lease expires
    command = Command(
        op=op,
        pool=config,
        ref=ref_of(workspace),
        lease=workspace.lease,
        expires_at=workspace.lease_expires_at.timestamp(),
        spec=spec_of(workspace, may_have_secrets=may_have_secrets) if op is Op.START else None,
        placement=placement_of(allocations) if op is Op.START else None,
        grace_s=_grace_s(workspace) if op in {Op.STOP, Op.DELETE} else None,
    )
    queue = node_commands.queue_of(_pool_of(workspace), first_node(workspace, allocations))
    transaction.on_commit(partial(node_commands.send, "node.execute", queue, command=messages.dump(command)))


def _grace_s(workspace: Workspace) -> float | None:
    """Return the grace period of a stop in seconds; None for the driver's default.

    The period is short for deactivated users, because an app could keep their connections open.
    """
    return None if workspace.owner.is_active else DEACTIVATED_GRACE_S


def _pool_of(workspace: Workspace) -> Pool:
    if workspace.pool is None:
        raise ValueError(f"workspace {workspace.pk} has no pool to send a command to")
    return workspace.pool


def first_node(workspace: Workspace, allocations: list[Allocation]) -> str:
    """Return the node that gets the commands: the current or last one, or else the pool's first node.

    If the last machine is gone, the other node will find nothing. Empty if the pool has no node.
    """
    if allocations:
        return allocations[0].node.name
    last = workspace.allocations.filter(node__retired=False).select_related("node").order_by("-pk").first()
    if last is not None:
        return last.node.name
    nodes = Node.objects.filter(pool=workspace.pool, retired=False)
    return nodes.order_by("name").values_list("name", flat=True).first() or ""


def has_worker(workspace: Workspace) -> bool:
    """Return whether a worker exists for commands about a workspace without allocations."""
    return not _pool_of(workspace).runs_on_node or bool(first_node(workspace, []))


def node_asked(workspace: Workspace) -> str:
    """Return the node that currently gets the workspace's commands."""
    allocations = workspace.allocations.filter(released_at=None).order_by("node__name")
    return allocations.values_list("node__name", flat=True).first() or first_node(workspace, [])


def send_orphan_command(pool: Pool, node_name: str, ref: WorkspaceRef, op: Op) -> None:
    """Stop or delete something that belongs to no workspace. The answer is ignored."""
    command = Command(
        op=op,
        pool=node_commands.config_of(pool),
        ref=ref,
        lease="",
        expires_at=timezone.now().timestamp() + settings.NODE_LEASE_S,
    )
    node_commands.send(
        "node.execute", node_commands.queue_of(pool, node_name), command=messages.dump(command)
    )


def request_observations(pool: Pool, now: datetime) -> None:
    """Request the observation of an engine's pool after the transaction, unless one is under way."""
    lease = uuid.uuid4().hex
    expires_at = now + timedelta(seconds=settings.NODE_LEASE_S)
    fields: dict[str, Any] = {"lease": lease, "asked_at": now, "expires_at": expires_at, "due_at": None}
    last, created = PoolObservation.objects.get_or_create(pool=pool, defaults=fields)
    if not created:
        free = Q(lease="") | Q(expires_at__lte=now)
        if not PoolObservation.objects.filter(free, pool=pool).update(**fields):
            return
    complete = last.failures or last.listed_at is None or now - last.listed_at >= COMPLETE_EVERY
    transaction.on_commit(
        partial(
            node_commands.send,
            "node.observe_all",
            node_commands.queue_of(pool, ""),
            pool=messages.dump(node_commands.config_of(pool)),
            since="" if complete else last.cursor,
            lease=lease,
        )
    )


def request_owned(pool: Pool, node_name: str) -> None:
    node_commands.send(
        "node.list_owned",
        node_commands.queue_of(pool, node_name),
        pool=messages.dump(node_commands.config_of(pool)),
        node=node_name,
    )


def read_logs(workspace: Workspace, *, tail_lines: int) -> str:
    """Return the log from the node. Waits up to a few seconds for the answer. Raises `Unavailable`."""
    pool = workspace.pool
    if pool is None:
        return workspace.status.log_tail
    body = node_rpc.call(
        "node.read_logs",
        {
            "pool": messages.dump(node_commands.config_of(pool)),
            "ref": messages.dump(ref_of(workspace)),
            "tail_lines": tail_lines,
        },
        pool=pool,
        node=first_node(workspace, allocations_of(workspace)),
        about="logs",
    )
    if "error" in body:
        raise Unavailable(Reason(WorkspaceCode.LOG_NOT_READ, {"message": str(body["error"])}))
    return str(body.get("text", ""))


def read_log_after(workspace: Workspace, *, after: int | None, tail_lines: int, complete: bool) -> LogPiece:
    """Return new output in the log of this start; see `Driver.read_log`. Raises `Unavailable`."""
    pool = workspace.pool
    assert pool is not None
    body = node_rpc.call(
        "node.read_log_after",
        {
            "pool": messages.dump(node_commands.config_of(pool)),
            "ref": messages.dump(ref_of(workspace)),
            "after": after,
            "tail_lines": tail_lines,
            "whole": complete,
        },
        pool=pool,
        node=first_node(workspace, allocations_of(workspace)),
        about="logs",
    )
    if "error" in body:
        raise Unavailable(Reason(WorkspaceCode.LOG_NOT_READ, {"message": str(body["error"])}))
    text, reached = body.get("text"), body.get("reached")
    if not isinstance(text, str) or not isinstance(reached, int):
        raise Unavailable(Reason(WorkspaceCode.NODE_SILENT))
    return LogPiece(text, reached, more=body.get("more") is True)


def hint(workspace_id: uuid.UUID) -> None:
    """Ask the control worker to reconcile one row now instead of at the next sweep."""
    node_commands.send("control.reconcile", "control", workspace_id=str(workspace_id))


def hint_later(workspace_id: uuid.UUID, seconds: float) -> None:
    """Like `hint`, after a delay. If the hint is lost, the sweep acts at `next_reconcile_at`."""
    node_commands.send("control.reconcile", "control", countdown=seconds, workspace_id=str(workspace_id))
