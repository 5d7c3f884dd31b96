"""Entry points of the control plane's worker; the work is in the services."""

from __future__ import annotations

from typing import Any

from portal.celery import app
from portal.inventory import polling, samples


@app.task(name="control.refresh_inventories")
def refresh_inventories() -> None:
    polling.refresh_due()


@app.task(name="control.worker_ready")
def worker_ready(queues: list[str]) -> None:
    polling.worker_ready(queues)


@app.task(name="control.apply_inventory")
def apply_inventory(pool: str, inventory: dict[str, Any] | None, failure: dict[str, Any] | None) -> None:
    polling.apply(pool, inventory, failure)


@app.task(name="control.apply_samples")
def apply_samples(pool_slug: str, node_name: str, rollups: list[Any]) -> None:
    samples.apply_samples(pool_slug=pool_slug, node_name=node_name, rollups=rollups)


@app.task(name="control.roll_up_samples", time_limit=300, soft_time_limit=280)
def roll_up_samples() -> None:
    samples.roll_up_hours()


@app.task(name="control.forget_samples", time_limit=300, soft_time_limit=280)
def forget_samples() -> None:
    samples.forget_old()
