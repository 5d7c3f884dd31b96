"""Celery entry points for machines."""

from __future__ import annotations

from typing import Any

from portal.celery import app
from portal.fleet.inventory import node_messages
from portal.fleet.machines import signs, upkeep
from provisioning.signed_celery import sender
from provisioning.signing import sender_of
from provisioning.types import NodeHello


@app.task(name="control.node_hello", from_nodes=True)
def node_hello(hello: dict[str, Any]) -> None:
    message = node_messages.received(hello, NodeHello, of=sender() or "nobody")
    if message is not None:
        signs.heard(name=sender().removeprefix(sender_of("")), hello=message)


@app.task(name="control.sync_machines")
def sync_machines() -> None:
    upkeep.run()
