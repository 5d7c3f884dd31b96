"""Sends messages to node workers. A lost message costs time, never work."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import Any

from django.conf import settings

from portal.celery import app
from portal.fleet.inventory.models import Node, Pool
from provisioning.celery_config import ENGINE_QUEUE, node_queue
from provisioning.types import HOME_LIMIT, PoolConfig

log = logging.getLogger(__name__)


def config_of(pool: Pool) -> PoolConfig:
    """Return the configuration for the pool's driver, with the home limit if the driver enforces it."""
    config = pool.config
    if pool.traits.limits_homes:
        config = {**config, HOME_LIMIT: settings.BERTH_HOME_LIMIT_MIB}
    return PoolConfig(slug=pool.slug, driver=pool.driver, config=config)


def queue_of(pool: Pool, node_name: str) -> str:
    """Return the queue for the pool's commands: the node's own, or the one that all engine workers share."""
    return node_queue(node_name) if pool.runs_on_node else ENGINE_QUEUE


def nodes_to_ask(pool: Pool) -> list[str]:
    """Return the nodes to which a pool-wide command is sent: each node, or `""` for pools of an engine.

    Excludes nodes that belong to another pool.
    """
    if not pool.runs_on_node:
        return [""]
    names = set(pool.nodes.filter(retired=False).values_list("name", flat=True))
    configured = str(pool.config.get("node", settings.BERTH_NODE_NAME))
    if configured not in names and not pools_of_nodes(pool, [configured]):
        names.add(configured)
    return sorted(names)


def pools_of_nodes(pool: Pool, names: Iterable[str]) -> dict[str, Pool]:
    """Return the pools of these nodes, by node name, for nodes that belong to another pool than `pool`.

    Workers answer for any pool, so one machine in two pools would be allocated twice. Excludes simulated
    pools.
    """
    if not pool.runs_on_node:
        return {}
    rows = Node.objects.filter(
        name__in=set(names), retired=False, pool__deleted_at=None, pool__simulated=False
    )
    nodes = rows.exclude(pool=pool).select_related("pool").order_by("pool__slug", "name")
    return {node.name: node.pool for node in nodes if node.pool.runs_on_node}


def send(task: str, queue: str, *, countdown: float = 0, **kwargs: Any) -> bool:
    """Send a task to a queue. Returns False if Redis is unavailable; the task's row then stays due."""
    try:
        app.send_task(
            task, kwargs=kwargs, queue=queue, countdown=countdown or None, expires=settings.NODE_LEASE_S
        )
    except Exception as error:
        # Redis is unavailable. The work is still in the database, and the sweep sends it again.
        log.warning("could not send %s to %s: %s", task, queue, error)
        return False
    return True
