"""Requests inventories from pools and applies the answers."""

from __future__ import annotations

from typing import Any

from portal.fleet.inventory import node_commands, node_messages, services
from portal.fleet.inventory.models import Pool
from portal.fleet.inventory.node_messages import received
from provisioning import messages
from provisioning.types import Failure, Inventory


def refresh_due() -> None:
    """Request all inventories that are due."""
    for pool in services.pools_due():
        request_inventory(pool)


def worker_ready(queues: list[str]) -> None:
    """Request inventories when a node worker has started, so that its capacity is known within a second."""
    for pool in Pool.objects.filter(enabled=True):
        if any(node_commands.queue_of(pool, node) in queues for node in node_commands.nodes_to_ask(pool)):
            request_inventory(pool)


def apply(pool_slug: str, inventory: dict[str, Any] | None, failure: dict[str, Any] | None) -> None:
    """Apply an inventory or failure. Answers about deleted pools are dropped."""
    pool = Pool.objects.filter(slug=pool_slug, deleted_at=None).first()
    if pool is None:
        return
    label = f"the pool {pool.slug}"
    if inventory is not None:
        seen = received(inventory, Inventory, of=label)
        if seen is not None and node_messages.is_inventory_trusted(pool, seen):
            services.apply_inventory(pool=pool, inventory=seen)
    elif failure is not None:
        refused = received(failure, Failure, of=label)
        if refused is not None and node_messages.is_from_pool_node(pool):
            services.apply_inventory_failure(pool=pool, failure=refused)


def request_inventory(pool: Pool) -> None:
    """Request the inventory of a pool."""
    services.mark_asked(pool)
    for node in node_commands.nodes_to_ask(pool):
        node_commands.send(
            "node.inventory",
            node_commands.queue_of(pool, node),
            pool=messages.dump(node_commands.config_of(pool)),
        )
