"""Entry points of the control plane's worker; the work is in `cycle` and in the services."""

from __future__ import annotations

from portal.celery import app
from portal.quotas import averages, cycle
from portal.quotas.services import grants, ledger, reservations


@app.task(name="control.schedule")
def schedule() -> None:
    cycle.run()


@app.task(name="control.average_shares")
def average_shares() -> None:
    averages.update()


@app.task(name="control.ledger_tick")
def ledger_tick() -> None:
    ledger.tick()


@app.task(name="control.reservations_due")
def reservations_due() -> None:
    reservations.due()


@app.task(name="control.end_grants")
def end_grants() -> None:
    grants.end_due_grants()
