"""Celery entry points; the work is in the services."""

from __future__ import annotations

from typing import Any

from portal.celery import app
from portal.fleet.inventory import node_messages
from portal.fleet.inventory.models import Pool
from portal.fleet.inventory.node_messages import received
from portal.workspaces.orphans import services
from provisioning.types import Leftover, LeftoverRemoved


@app.task(name="control.look_for_leftovers")
def look_for_leftovers() -> None:
    services.request_listings()


@app.task(name="control.sweep_leftovers")
def sweep_leftovers() -> None:
    services.sweep()


@app.task(name="control.apply_leftovers", from_nodes=True)
def apply_leftovers(pool: str, node: str, leftovers: list[Any]) -> None:
    pool_row = Pool.objects.filter(slug=pool, deleted_at=None).first()
    if pool_row is None or not node_messages.is_from_pool_node(pool_row, [node]):
        return
    seen = received(leftovers, list[Leftover], of=f"the node {node} of {pool}")
    if seen is not None:
        services.apply_listing(pool=pool_row, node=node, leftovers=seen)


@app.task(name="control.apply_leftover_removed", from_nodes=True)
def apply_leftover_removed(answer: dict[str, Any]) -> None:
    removed = received(answer, LeftoverRemoved, of="a node worker")
    row = services.row_of(removed) if removed is not None else None
    if removed is not None and row is not None and node_messages.is_from_asked_node(row.pool, row.node):
        services.apply_removed(removed)
