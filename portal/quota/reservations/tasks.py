"""Entry points of the control plane's worker."""

from __future__ import annotations

from portal.celery import app
from portal.quota.reservations import services


@app.task(name="control.reservations_due")
def reservations_due() -> None:
    services.process_due()
