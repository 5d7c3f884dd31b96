"""Another flavor for a workspace that is there: what runs is started anew with it, as when GPUs are released.

One whose GPUs are released stays so: it takes the GPUs of its new flavor when they are attached.
"""

from __future__ import annotations

from typing import Any
from uuid import UUID

from django.db import transaction

from portal.catalog.lifetimes import expected_of, lifetime_again, terms_of
from portal.catalog.models import Flavor
from portal.catalog.policies import require_use
from portal.common.errors import StateConflict
from portal.common.events.kinds import AuditKind
from portal.common.reasons.reason import Reason
from portal.people.accounts.models import User
from portal.workspaces import gpu_requests, gpus, policies
from portal.workspaces.codes import WorkspaceCode
from portal.workspaces.models import Workspace
from portal.workspaces.transitions import locked


def keeps_files(workspace: Workspace, flavor: Flavor) -> bool:
    """Whether a flavor can be had where the workspace has run: its files are in that pool."""
    pool = workspace.pool
    if pool is None:
        return True
    return flavor.pool_id == pool.pk or (flavor.pool_id is None and not pool.simulated)


def request_with(workspace: Workspace, flavor: Flavor) -> tuple[dict[str, Any], dict[str, Any] | None]:
    """What it would ask for with a flavor, in JSON form, and what of it would be released."""
    # What it needs of its node, as the software that it runs in, stays.
    asked = {**workspace.resources, **flavor.as_request()}
    if not workspace.gpu_released or not flavor.accelerator_count:
        return asked, None
    return {**asked, **gpu_requests.without_gpus(asked)}, {name: asked[name] for name in gpu_requests.CHANGED}


@transaction.atomic
def resize(*, actor: User, workspace_id: UUID, flavor: Flavor) -> Workspace:
    """Give a workspace another flavor, as it is in the catalog now.

    What runs is stopped and waits in the queue as a start; what waits asks for the new one; what is stopped
    takes it the next time. The flavor that it has already is success, and changes nothing.

    Raises `NotAllowed`, `NotFound`, `StateConflict` (it is on its way to another state, or its files are in
    another pool), and what a start may raise: nothing is changed then.
    """
    workspace = locked(workspace_id)
    policies.require_operate(actor, workspace)
    before = workspace.flavor
    if before == flavor:
        return workspace
    require_use(workspace.team, workspace.template, flavor)
    if not keeps_files(workspace, flavor):
        assert workspace.pool is not None  # without one, every flavor will do
        named = {"name": workspace.name, "flavor": flavor.name, "pool": workspace.pool.name}
        raise StateConflict(Reason(WorkspaceCode.FILES_IN_ANOTHER_POOL, named))
    asked, released = request_with(workspace, flavor)
    said = workspace.checkpointed
    gpus.change(
        workspace,
        asked=asked,
        released=released,
        actor=actor,
        kind=AuditKind.WORKSPACE_RESIZED,
        message=f"resized it from {before.name} to {flavor.name}",
        data={"before": before.slug, "flavor": flavor.slug},
        stops=f"stopped its app, to start it again on {flavor.name}",
        refusal=WorkspaceCode.NOT_RESIZABLE_NOW,
        flavor=flavor,
        gpu_awaited=workspace.gpu_awaited and released is not None,
        preemptible=flavor.preemptible,
        loses_work=workspace.template.loses_work_on(flavor) if said is None else not said,
        expected_s=_expected(workspace, before, flavor),
        lifetime_s=_lifetime(workspace, before, flavor),
    )
    return workspace


def _expected(workspace: Workspace, before: Flavor, flavor: Flavor) -> int:
    """What was said of it, else what is usual."""
    usual = workspace.expected_s == expected_of(workspace.template, before)
    return expected_of(workspace.template, flavor, None if usual else workspace.expected_s)


def _lifetime(workspace: Workspace, before: Flavor, flavor: Flavor) -> int | None:
    """What was asked for, as far as the new flavor allows, else its default."""
    usual = workspace.lifetime_s == terms_of(workspace.template, before).default_s
    return lifetime_again(workspace.template, flavor, None if usual else workspace.lifetime_s)
