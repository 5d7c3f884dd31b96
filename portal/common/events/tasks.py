"""Celery entry points for `mail`, `sealing` and `audit_stream`."""

from __future__ import annotations

from portal.celery import app
from portal.common.events import audit_stream, mail, sealing


@app.task(name="control.send_mails")
def send_mails() -> None:
    mail.send_due()


@app.task(name="control.stream_audit")
def stream_audit() -> None:
    audit_stream.run()


@app.task(name="control.seal_audit")
def seal_audit() -> None:
    sealing.seal_entries()
    sealing.prune()
