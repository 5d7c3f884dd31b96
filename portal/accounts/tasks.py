"""Entry points of the control plane's worker; the work is in `token_uses` and `mails`."""

from __future__ import annotations

from uuid import UUID

from portal.accounts import mails, token_uses
from portal.accounts.links import LinkKind
from portal.celery import app

# A mail server that is away is tried again for an hour.
RETRYING = {
    "autoretry_for": (OSError,),
    "retry_backoff": 10,
    "retry_backoff_max": 900,
    "max_retries": 8,
}


@app.task(name="control.store_token_uses")
def store_token_uses() -> None:
    token_uses.store()


@app.task(name="control.mail_link", **RETRYING)
def mail_link(user_id: str, kind: str) -> None:
    mails.send_link(UUID(user_id), LinkKind(kind))


@app.task(name="control.mail_forgotten", **RETRYING)
def mail_forgotten(name: str) -> None:
    mails.send_forgotten(name)
