"""Entry points of the control plane's worker; the work is in the services."""

from __future__ import annotations

from typing import Any
from uuid import UUID

from portal.celery import app
from portal.inventory import inventories, samples
from portal.inventory.checks import policy
from portal.inventory.checks import results as check_results
from provisioning import messages
from provisioning.check_messages import CheckAnswer


@app.task(name="control.refresh_inventories")
def refresh_inventories() -> None:
    inventories.refresh_due()


@app.task(name="control.worker_ready")
def worker_ready(queues: list[str]) -> None:
    inventories.worker_ready(queues)


@app.task(name="control.apply_inventory")
def apply_inventory(pool: str, inventory: dict[str, Any] | None, failure: dict[str, Any] | None) -> None:
    inventories.apply(pool, inventory, failure)


@app.task(name="control.check_gpus")
def check_gpus() -> None:
    policy.run()


@app.task(name="control.gpu_check_progress")
def gpu_check_progress(run: str, lease: str, progress: dict[str, Any]) -> None:
    check_results.apply_progress(run_id=UUID(run), lease=lease, progress=progress)


@app.task(name="control.apply_gpu_check")
def apply_gpu_check(answer: dict[str, Any]) -> None:
    check_results.apply_answer(messages.load(answer, CheckAnswer))


@app.task(name="control.apply_samples")
def apply_samples(pool_slug: str, node_name: str, rollups: list[Any]) -> None:
    samples.apply_samples(pool_slug=pool_slug, node_name=node_name, rollups=rollups)


@app.task(name="control.roll_up_samples", time_limit=300, soft_time_limit=280)
def roll_up_samples() -> None:
    samples.roll_up_hours()


@app.task(name="control.forget_samples", time_limit=300, soft_time_limit=280)
def forget_samples() -> None:
    samples.forget_old()
