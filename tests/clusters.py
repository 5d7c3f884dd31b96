"""A simulated cluster that places workspaces itself, and workspaces that wait or run there."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

from django.utils import timezone

from portal.common.actors import SYSTEM
from portal.fleet.inventory import services as inventory
from portal.fleet.inventory.models import Pool
from portal.fleet.inventory.node_commands import config_of
from portal.workspaces import engine_queue
from portal.workspaces.lifecycle import State
from portal.workspaces.models import Workspace, WorkspaceStatus
from provisioning.registry import driver_for
from provisioning.types import EngineQueue
from tests.factories import FlavorFactory, WorkspaceFactory, inventory_of, node_info

MODEL = "Simulated H100"


def cluster_pool(slug: str = "cluster", **fields: Any) -> Pool:
    """A pool with 8 GPUs on 2 nodes that have reported."""
    values = {"name": "Training cluster", "driver": "simulated_cluster", "simulated": True}
    pool: Pool = Pool.objects.create(slug=slug, **values)
    nodes = (node_info(f"{slug}-{number}", gpus=4, model=MODEL) for number in (1, 2))
    inventory.apply_inventory(pool=pool, inventory=inventory_of(*nodes))
    Pool.objects.filter(pk=pool.pk).update(**fields)
    pool.refresh_from_db()
    return pool


def simulated_cluster(state: str, *, slug: str = "cluster", **config: Any) -> Pool:
    """A simulated cluster, which places workspaces itself, with inventory and 2 nodes with 4 GPUs."""
    pool = inventory.create_pool(
        actor=SYSTEM,
        slug=slug,
        name="Cluster",
        driver="simulated_cluster",
        config={"nodes": 2, "gpus": 4, "model": "H100", "state": state, **config},
    )
    inventory.apply_inventory(pool=pool, inventory=driver_for(config_of(pool)).inventory())
    pool.refresh_from_db()
    return pool


def handed_over(pool: Pool, **fields: Any) -> Workspace:
    """A workspace with one GPU that has been handed over 60 s ago; nothing is allocated."""
    at = timezone.now() - timedelta(seconds=60)
    flavor = fields.pop("flavor", None) or FlavorFactory(pool=pool, accelerator_count=1)
    times = dict.fromkeys(("requested_at", "admitted_at", "placed_at", "launched_at", "state_since"), at)
    row: Any = WorkspaceFactory(
        **{"pool": pool, "flavor": flavor, "state": State.PROVISIONING, "generation": 1, **times, **fields}
    )
    return row


def waiting_at(
    pool: Pool,
    *,
    position: int = 3,
    code: str = "priority",
    message: str = "Earlier jobs wait too.",
    starts_at: datetime | None = None,
    **fields: Any,
) -> Workspace:
    """A workspace that waits at the pool's engine, as seen 10 s ago."""
    row = handed_over(pool, **fields)
    queue = EngineQueue(
        position=position,
        code=code,
        message=message,
        starts_at=starts_at.timestamp() if starts_at else None,
        seen_at=timezone.now().timestamp() - 10,
    )
    return _with_engine(row, {"queue": engine_queue.as_json(queue)})


def begun_at(pool: Pool, *, node: str = "cluster-2", **fields: Any) -> Workspace:
    """A workspace that the engine has begun 20 s ago, on the second GPU of a node."""
    row = handed_over(pool, **{"began_at": timezone.now() - timedelta(seconds=20), **fields})
    placed = [{"node": node, "devices": ["h100/1"]}]
    return _with_engine(row, {"placed": placed, "ends_at": None})


def _with_engine(row: Workspace, engine: dict[str, Any]) -> Workspace:
    WorkspaceStatus.objects.filter(workspace=row).update(engine=engine)
    row.refresh_from_db()
    return row
