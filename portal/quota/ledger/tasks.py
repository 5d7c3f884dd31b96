"""Entry points of the control plane's worker."""

from __future__ import annotations

from portal.celery import app
from portal.quota.ledger import services


@app.task(name="control.ledger_tick")
def ledger_tick() -> None:
    services.tick()
