"""Periodic work for all workspaces."""

from __future__ import annotations

from typing import Any

from portal.common import idempotency
from portal.fleet.inventory.models import Pool
from portal.fleet.inventory.node_commands import nodes_to_ask
from portal.fleet.inventory.node_messages import received
from portal.workspaces import dispatch, results
from provisioning.types import Observation


def ask_for_owned() -> None:
    """Ask every pool for its running workspaces, for the orphan sweep."""
    for pool in Pool.objects.filter(enabled=True):
        for node in nodes_to_ask(pool):
            dispatch.request_owned(pool, node)


def apply_owned(pool_slug: str, node_name: str, owned: list[dict[str, Any]]) -> None:
    """End orphans of a node. An answer about a deleted pool is dropped."""
    pool = Pool.objects.filter(slug=pool_slug, deleted_at=None).first()
    if pool is None:
        return
    observations = received(owned, list[Observation], of=f"the node {node_name} of {pool_slug}")
    if observations is not None:
        results.apply_owned(pool=pool, node_name=node_name, owned=observations)


def clean_up() -> None:
    """Delete expired idempotency records."""
    idempotency.delete_expired()
