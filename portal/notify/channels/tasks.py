"""Celery entry points for `outbox`."""

from __future__ import annotations

from portal.celery import app
from portal.notify.channels import outbox


@app.task(name="control.send_to_channels")
def send_to_channels() -> None:
    outbox.read_log()
    outbox.run()


@app.task(name="control.prune_channels")
def prune_channels() -> None:
    outbox.prune()
