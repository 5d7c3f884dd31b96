"""Entry points of the control plane's worker; the work is in the services."""

from __future__ import annotations

from typing import Any

from portal.celery import app
from portal.inventory import inventories


@app.task(name="control.refresh_inventories")
def refresh_inventories() -> None:
    inventories.refresh_due()


@app.task(name="control.worker_ready")
def worker_ready(queues: list[str]) -> None:
    inventories.worker_ready(queues)


@app.task(name="control.apply_inventory")
def apply_inventory(pool: str, inventory: dict[str, Any] | None, failure: dict[str, Any] | None) -> None:
    inventories.apply(pool, inventory, failure)
