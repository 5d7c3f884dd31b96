"""Celery tasks of the control plane for scheduling."""

from __future__ import annotations

from portal.celery import app
from portal.scheduling import cycle, learning, pauses, share_averages, snapshot_feed


@app.task(name="control.schedule")
def schedule() -> None:
    cycle.run()
    pauses.collect_if_due()


@app.task(name="control.schedule_due")
def schedule_due() -> None:
    cycle.run_if_due()
    pauses.collect_if_due()


@app.task(name="control.average_shares")
def average_shares() -> None:
    share_averages.update_teams()
    share_averages.update_members()


@app.task(name="control.learn_mixes")
def learn_mixes() -> None:
    learning.update_mixes()


@app.task(name="control.trim_snapshot_feed")
def trim_snapshot_feed() -> None:
    snapshot_feed.trim()
