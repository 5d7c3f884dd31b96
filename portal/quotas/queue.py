"""Asks for a scheduling cycle. A lost hint costs seconds: the sweep runs one where anything waits."""

from __future__ import annotations

import logging

from django.conf import settings
from django.db import transaction

from portal.celery import app

log = logging.getLogger(__name__)


def poke() -> None:
    """Have the queue looked at once the present transaction has held: room or rules have changed."""
    transaction.on_commit(_send)


def _send() -> None:
    try:
        app.send_task("control.schedule", queue="control", expires=settings.NODE_LEASE_S)
    except Exception as error:
        # Redis is away: the sweep comes without being asked.
        log.warning("the queue was not told of a change: %s", error)
