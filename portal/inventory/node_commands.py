"""Sends messages to the workers of the node plane. A lost one costs time, never work."""

from __future__ import annotations

import logging
from typing import Any

from django.conf import settings

from portal.celery import app
from portal.inventory.models import Pool
from provisioning.celery_config import ENGINE_QUEUE, node_queue
from provisioning.types import PoolConfig

log = logging.getLogger(__name__)


def config_of(pool: Pool) -> PoolConfig:
    """The pool as its driver sees it."""
    return PoolConfig(slug=pool.slug, driver=pool.driver, config=pool.config)


def queue_of(pool: Pool, node_name: str) -> str:
    """Where the pool's commands go: to the node's own worker, or to any that has the engine's API."""
    return node_queue(node_name) if pool.runs_on_node else ENGINE_QUEUE


def nodes_to_ask(pool: Pool) -> list[str]:
    """The node names to send a pool-wide question to: each node of its own plane, else one for all."""
    if not pool.runs_on_node:
        return [""]
    known = list(pool.nodes.filter(retired=False).values_list("name", flat=True))
    configured = str(pool.config.get("node", settings.BERTH_NODE_NAME))
    return sorted({*known, configured})


def send(task: str, queue: str, *, countdown: float = 0, **kwargs: Any) -> bool:
    """Send a task to a queue; False where Redis is away: the row that it is about stays due."""
    try:
        app.send_task(
            task, kwargs=kwargs, queue=queue, countdown=countdown or None, expires=settings.NODE_LEASE_S
        )
    except Exception as error:
        # Redis is away, or refuses: the database still has the work, the sweep sends it again.
        log.warning("%s was not sent to %s: %s", task, queue, error)
        return False
    return True
