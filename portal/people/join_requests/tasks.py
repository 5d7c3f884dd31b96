"""Celery entry points for join requests."""

from __future__ import annotations

from portal.celery import app
from portal.people.join_requests import services


@app.task(name="control.expire_join_requests")
def expire_join_requests() -> None:
    services.expire_due()
