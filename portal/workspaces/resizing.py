"""Changes the flavor of an existing workspace. A running one restarts, as after a GPU release.

Released GPUs stay released; the workspace gets the new flavor's GPUs when they are attached.
"""

from __future__ import annotations

from typing import Any
from uuid import UUID

from django.db import transaction

from portal.catalog.lifetimes import expected_run_time, restart_lifetime, terms_of
from portal.catalog.models import Flavor
from portal.catalog.policies import require_use
from portal.common.errors import StateConflict
from portal.common.events.kinds import AuditKind
from portal.common.reasons.reason import Reason
from portal.people.accounts.models import User
from portal.workspaces import gpu_requests, gpus, policies
from portal.workspaces.codes import WorkspaceCode
from portal.workspaces.models import Workspace
from portal.workspaces.transitions import lock_workspace


def keeps_files(workspace: Workspace, flavor: Flavor) -> bool:
    """Return whether the flavor is available in the pool that has the workspace's files."""
    pool = workspace.pool
    if pool is None:
        return True
    return flavor.pool_id == pool.pk or (flavor.pool_id is None and not pool.simulated)


def resized_request(workspace: Workspace, flavor: Flavor) -> tuple[dict[str, Any], dict[str, Any] | None]:
    """Return the request with the new flavor as JSON, and the part that stays released."""
    # Requirements on the node, such as its software, are kept.
    resources = {**workspace.resources, **flavor.as_request()}
    if not workspace.gpu_released or not flavor.accelerator_count:
        return resources, None
    return {**resources, **gpu_requests.resources_without_gpus(resources)}, {
        name: resources[name] for name in gpu_requests.CHANGED
    }


@transaction.atomic
def resize(*, actor: User, workspace_id: UUID, flavor: Flavor) -> Workspace:
    """Change the flavor of a workspace to another one, as it is in the catalog now.

    A running workspace stops and is queued like a new start, a queued one requests the new flavor, and a
    stopped one uses it at the next start. Choosing the current flavor changes nothing.

    Raises `NotAllowed`, `NotFound`, `StateConflict` (in transition, or the files are in another pool) and the
    exceptions of `start`; nothing is changed then.
    """
    workspace = lock_workspace(workspace_id)
    policies.require_operate(actor, workspace)
    before = workspace.flavor
    if before == flavor:
        return workspace
    require_use(workspace.team, workspace.template, flavor)
    if not keeps_files(workspace, flavor):
        assert workspace.pool is not None  # without a pool, every flavor is possible
        params = {"name": workspace.name, "flavor": flavor.name, "pool": workspace.pool.name}
        raise StateConflict(Reason(WorkspaceCode.FILES_IN_ANOTHER_POOL, params))
    resources, released = resized_request(workspace, flavor)
    checkpointed = workspace.checkpointed
    gpus.change(
        workspace,
        changes=resources,
        released=released,
        actor=actor,
        kind=AuditKind.WORKSPACE_RESIZED,
        message=f"resized the workspace from {before.name} to {flavor.name}",
        data={"before": before.slug, "flavor": flavor.slug},
        stops=f"stopped the app to restart it on {flavor.name}",
        refusal=WorkspaceCode.NOT_RESIZABLE_NOW,
        flavor=flavor,
        flavor_choices=[],
        gpu_awaited=workspace.gpu_awaited and released is not None,
        preemptible=flavor.preemptible,
        loses_work=workspace.template.loses_work_on(flavor) if checkpointed is None else not checkpointed,
        expected_s=_expected_seconds(workspace, before, flavor),
        lifetime_s=_lifetime(workspace, before, flavor),
    )
    return workspace


def _expected_seconds(workspace: Workspace, before: Flavor, flavor: Flavor) -> int:
    """Return the requested expected time, or the default of the new flavor."""
    usual = workspace.expected_s == expected_run_time(workspace.template, before)
    return expected_run_time(workspace.template, flavor, None if usual else workspace.expected_s)


def _lifetime(workspace: Workspace, before: Flavor, flavor: Flavor) -> int | None:
    """Return the requested lifetime within the limits of the new flavor, or its default."""
    usual = workspace.lifetime_s == terms_of(workspace.template, before).default_s
    return restart_lifetime(workspace.template, flavor, None if usual else workspace.lifetime_s)
