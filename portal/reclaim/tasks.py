"""Celery tasks of the control plane for reclaiming."""

from __future__ import annotations

from portal.celery import app
from portal.reclaim import free_gpus, homes, observing, passes, unused_gpus
from portal.reclaim.rebalancing import proposing


@app.task(name="control.reclaim")
def reclaim() -> None:
    passes.run()


@app.task(name="control.observe_activity")
def observe_activity() -> None:
    observing.run()
    unused_gpus.notify()


@app.task(name="control.tell_of_free_gpus")
def notify_of_free_gpus() -> None:
    free_gpus.run()


@app.task(name="control.prune_activity")
def prune_activity() -> None:
    observing.prune()


@app.task(name="control.look_at_homes")
def check_homes() -> None:
    homes.run()


@app.task(name="control.rebalance")
def rebalance() -> None:
    proposing.run()
