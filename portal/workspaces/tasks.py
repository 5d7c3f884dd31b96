"""Celery entry points; the work is in `reconcile`, `results` and `gateway`."""

from __future__ import annotations

from typing import Any
from uuid import UUID

from portal.celery import app
from portal.fleet.inventory.node_messages import is_from_node, received
from portal.workspaces import (
    answers,
    housekeeping,
    memory_kills,
    pool_observations,
    reconcile,
    results,
    team_deletions,
    usage_samples,
)
from portal.workspaces.homes import archives as home_archives
from portal.workspaces.homes import balancing as home_balancing
from portal.workspaces.homes import deletions, evacuations
from portal.workspaces.homes import limits as home_limits
from portal.workspaces.homes import load as home_load
from portal.workspaces.homes import moves as home_moves
from provisioning.home_messages import HomeArchived, HomeMoved
from provisioning.memory_messages import MemoryKills
from provisioning.types import HomeDeleted, HomeUsage, Result


@app.task(name="control.sweep")
def sweep() -> None:
    reconcile.sweep()


@app.task(name="control.reconcile")
def reconcile_one(workspace_id: str) -> None:
    reconcile.reconcile(UUID(workspace_id))


@app.task(name="control.apply_result", from_nodes=True)
def apply_result(result: dict[str, Any]) -> None:
    message = received(result, Result, of="a node worker")
    if message is not None and answers.is_from_command_node(message):
        results.apply_result(message)


@app.task(name="control.delete_homes")
def delete_homes() -> None:
    deletions.sweep()
    team_deletions.sweep()


@app.task(name="control.apply_home_deleted", from_nodes=True)
def apply_home_deleted(answer: dict[str, Any]) -> None:
    message = received(answer, HomeDeleted, of="a node worker")
    if message is not None and answers.is_from_deletion_node(message):
        deletions.apply(message)


@app.task(name="control.move_homes")
def move_homes() -> None:
    evacuations.sweep()
    home_moves.sweep()


@app.task(name="control.measure_home_load")
def measure_home_load() -> None:
    home_load.measure()


@app.task(name="control.balance_homes")
def balance_homes() -> None:
    home_balancing.sweep()


@app.task(name="control.apply_home_move", from_nodes=True)
def apply_home_move(answer: dict[str, Any]) -> None:
    message = received(answer, HomeMoved, of="a node worker")
    if message is not None and answers.is_from_move_node(message):
        home_moves.apply(message)


@app.task(name="control.archive_homes")
def archive_homes() -> None:
    home_archives.sweep()


@app.task(name="control.apply_home_archive", from_nodes=True)
def apply_home_archive(answer: dict[str, Any]) -> None:
    message = received(answer, HomeArchived, of="a node worker")
    if message is not None and answers.is_from_archive_node(message):
        home_archives.apply(message)


@app.task(name="control.apply_home_usage", from_nodes=True)
def apply_home_usage(pool_slug: str, node_name: str, usages: list[Any]) -> None:
    message = received(usages, tuple[HomeUsage, ...], of="a node worker")
    if message is not None and is_from_node(node_name):
        home_limits.apply(pool_slug=pool_slug, node_name=node_name, measured=message)


@app.task(name="control.apply_memory_kills", from_nodes=True)
def apply_memory_kills(report: dict[str, Any]) -> None:
    kills = received(report, MemoryKills, of="a node worker")
    if kills is not None and is_from_node(kills.node):
        memory_kills.apply(kills)


@app.task(name="control.sweep_orphans")
def sweep_orphans() -> None:
    housekeeping.ask_for_owned()


@app.task(name="control.apply_owned", from_nodes=True)
def apply_owned(pool: str, node: str, owned: list[dict[str, Any]]) -> None:
    if answers.is_from_listed_node(pool, node):
        housekeeping.apply_owned(pool, node, owned)


@app.task(name="control.apply_observed", from_nodes=True)
def apply_observed(
    pool: str, lease: str, observed: dict[str, Any] | None, failure: dict[str, Any] | None
) -> None:
    pool_observations.apply_answer(pool, lease, observed, failure)


@app.task(name="control.delete_bound")
def delete_bound() -> None:
    housekeeping.delete_bound()


@app.task(name="control.clean_up")
def clean_up() -> None:
    housekeeping.clean_up()


@app.task(name="control.roll_up_usage", time_limit=300, soft_time_limit=280)
def roll_up_usage() -> None:
    usage_samples.roll_up()
