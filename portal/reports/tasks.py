"""Entry points of the control plane's worker."""

from __future__ import annotations

from portal.celery import app
from portal.reports import days


@app.task(name="control.add_up_days")
def add_up_days() -> None:
    days.run()
