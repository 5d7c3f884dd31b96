"""Periodic work for all workspaces."""

from __future__ import annotations

from typing import Any

from django.utils import timezone

from portal.common import idempotency
from portal.common.actors import SYSTEM
from portal.common.errors import StateConflict
from portal.fleet.inventory.models import Pool
from portal.fleet.inventory.node_commands import nodes_to_ask
from portal.fleet.inventory.node_messages import received
from portal.people.accounts.models import ApiToken
from portal.workspaces import dispatch, results, services
from portal.workspaces.lifecycle import DesiredState, TerminationReason
from portal.workspaces.models import Workspace
from provisioning.types import Observation

DELETION_BATCH = 200


def ask_for_owned() -> None:
    """Ask every pool for its running workspaces, for the orphan sweep."""
    for pool in Pool.objects.filter(enabled=True):
        for node in nodes_to_ask(pool):
            dispatch.request_owned(pool, node)


def apply_owned(pool_slug: str, node_name: str, owned: list[dict[str, Any]]) -> None:
    """End a node's orphans. Ignores answers about deleted pools."""
    pool = Pool.objects.filter(slug=pool_slug, deleted_at=None).first()
    if pool is None:
        return
    observations = received(owned, list[Observation], of=f"the node {node_name} of {pool_slug}")
    if observations is not None:
        results.apply_owned(pool=pool, node_name=node_name, owned=observations)


def delete_bound() -> int:
    """Delete workspaces of CI jobs whose token no longer works, and return their number."""
    valid_tokens = ApiToken.objects.valid_at(timezone.now())
    bound_workspaces = (
        Workspace.objects.live().filter(bound_to__isnull=False).exclude(desired_state=DesiredState.DELETED)
    )
    rows = bound_workspaces.exclude(bound_to__in=valid_tokens.values("pk")).order_by("pk")
    deleted = 0
    for workspace_id in rows.values_list("pk", flat=True)[:DELETION_BATCH]:
        try:
            services.delete(
                actor=SYSTEM,
                workspace_id=workspace_id,
                reason="its CI job has ended",
                ends_as=TerminationReason.JOB_ENDED,
            )
        except StateConflict:
            # Another process is changing the workspace. The next run tries again.
            continue
        deleted += 1
    return deleted


def clean_up() -> None:
    """Delete expired idempotency records."""
    idempotency.delete_expired()
