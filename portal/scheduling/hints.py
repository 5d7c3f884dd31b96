"""Requests scheduling cycles. If a request is lost, the sweep runs a cycle later if anything is pending."""

from __future__ import annotations

from django.db import transaction

from portal.common.domain_events import DomainEvent
from portal.fleet.inventory import node_commands
from provisioning.celery_config import CONTROL_QUEUE


def request_cycle(_event: DomainEvent | None = None) -> None:
    """Send `control.schedule` after the commit, because capacity, limits or the queue have changed."""
    transaction.on_commit(_send)


def _send() -> None:
    node_commands.send("control.schedule", CONTROL_QUEUE)
