"""Celery entry points for machines."""

from __future__ import annotations

from typing import Any

from portal.celery import app
from portal.fleet.inventory import node_messages, notices
from portal.fleet.machines import redis_guard, signs, upkeep
from provisioning.signed_celery import sender
from provisioning.signing import sender_of
from provisioning.types import NodeHello

app.steps["worker"].add(redis_guard.GuardStep)


@app.task(name="control.node_hello", from_nodes=True)
def node_hello(hello: dict[str, Any]) -> None:
    message = node_messages.received(hello, NodeHello, of=sender() or "nobody")
    if message is not None:
        signs.record_heartbeat(name=sender().removeprefix(sender_of("")), hello=message)


@app.task(name="control.sync_machines")
def sync_machines() -> None:
    upkeep.run()


@app.task(name=redis_guard.PRESSURE_TASK)
def redis_pressure(used_mib: int, limit_mib: int, node: str) -> None:
    if node:
        notices.redis_flooded(node, used_mib, limit_mib)
    else:
        notices.redis_nearly_full(used_mib, limit_mib)
