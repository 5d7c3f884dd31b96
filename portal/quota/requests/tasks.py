"""Entry points of the control plane's worker."""

from __future__ import annotations

from portal.celery import app
from portal.quota.requests.services import grants


@app.task(name="control.end_grants")
def end_grants() -> None:
    grants.end_due_grants()
