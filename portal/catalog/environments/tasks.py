"""Entry points of the control plane's worker."""

from __future__ import annotations

from typing import Any

from portal.catalog.environments import results, upkeep
from portal.celery import app
from portal.fleet.inventory.node_messages import received
from provisioning.environment_messages import EnvironmentBuilt, EnvironmentProgress


@app.task(name="control.sweep_environments")
def sweep_environments() -> None:
    upkeep.sweep()


@app.task(name="control.prune_environments")
def prune_environments() -> None:
    upkeep.prune()


@app.task(name="control.environment_progress", from_nodes=True)
def environment_progress(progress: dict[str, Any]) -> None:
    message = received(progress, EnvironmentProgress, of="an environment's build")
    if message is not None and results.is_from_build_node(message.build, message.lease):
        results.apply_progress(message)


@app.task(name="control.apply_environment_build", from_nodes=True)
def apply_environment_build(answer: dict[str, Any]) -> None:
    message = received(answer, EnvironmentBuilt, of="an environment's build")
    if message is not None and results.is_from_build_node(message.build, message.lease):
        results.apply_built(message)
