"""Celery entry points for token exchanges."""

from __future__ import annotations

from portal.celery import app
from portal.people.service_accounts.exchange import services


@app.task(name="control.purge_exchanges")
def purge_exchanges() -> None:
    services.purge()
