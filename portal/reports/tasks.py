"""Celery entry points."""

from __future__ import annotations

from portal.celery import app
from portal.reports import budgets, days, month_sums, months, state_samples


@app.task(name="control.add_up_days")
def add_up_days() -> None:
    budgets.run(days.run())
    month_sums.run()


@app.task(name="control.tell_of_months")
def send_month_reports() -> None:
    months.run()


@app.task(name="control.sample_states")
def sample_states() -> None:
    state_samples.run()
