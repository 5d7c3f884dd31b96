"""Entry points of the control plane's worker; the work is in `mail` and `sealing`."""

from __future__ import annotations

from portal.celery import app
from portal.events import mail, sealing


@app.task(name="control.send_mails")
def send_mails() -> None:
    mail.send_due()


@app.task(name="control.seal_audit")
def seal_audit() -> None:
    sealing.seal()
    sealing.prune()
