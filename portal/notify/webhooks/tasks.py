"""Celery entry points for `fan_out` and `deliveries`."""

from __future__ import annotations

from portal.celery import app
from portal.notify.webhooks import deliveries, fan_out


@app.task(name="control.send_webhooks")
def send_webhooks() -> None:
    fan_out.run()
    deliveries.run()


@app.task(name="control.prune_webhooks")
def prune_webhooks() -> None:
    deliveries.prune()
