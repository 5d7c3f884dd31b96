"""Celery entry points for the inventory."""

from __future__ import annotations

from typing import Any

from portal.celery import app
from portal.fleet.inventory import node_messages, polling, samples
from provisioning.signed_celery import RefusedReport


@app.task(name="control.refresh_inventories")
def refresh_inventories() -> None:
    polling.refresh_due()


@app.task(name="control.worker_ready", from_nodes=True)
def worker_ready(queues: list[str]) -> None:
    polling.worker_ready(node_messages.queues_of_sender(queues))


@app.task(name="control.apply_inventory", from_nodes=True)
def apply_inventory(pool: str, inventory: dict[str, Any] | None, failure: dict[str, Any] | None) -> None:
    polling.apply(pool, inventory, failure)


@app.task(name="control.apply_samples", from_nodes=True)
def apply_samples(pool_slug: str, node_name: str, rollups: list[Any]) -> None:
    if node_messages.is_from_node(node_name):
        samples.apply_samples(pool_slug=pool_slug, node_name=node_name, rollups=rollups)


@app.task(name="control.roll_up_samples", time_limit=300, soft_time_limit=280)
def roll_up_samples() -> None:
    samples.roll_up_hours()


@app.task(name="control.forget_samples", time_limit=300, soft_time_limit=280)
def forget_samples() -> None:
    samples.forget_old()


@app.task(name="control.message_refused", from_nodes=True)
def message_refused(report: dict[str, Any]) -> None:
    message = node_messages.received(report, RefusedReport, of="a worker")
    if message is not None:
        node_messages.refused(message)
