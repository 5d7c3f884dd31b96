"""Entry points of the control plane's worker; the work is in `mail`."""

from __future__ import annotations

from portal.celery import app
from portal.events import mail


@app.task(name="control.send_mails")
def send_mails() -> None:
    mail.send_due()
