"""Celery entry points for `token_uses`, `mails` and `limits`."""

from __future__ import annotations

from datetime import timedelta
from uuid import UUID

from portal.celery import app
from portal.people.accounts import limits, mails, token_uses
from portal.people.accounts.links import LinkKind
from portal.people.accounts.session_store import SessionStore

# Retry for about an hour while the mail server is unavailable.
RETRYING = {
    "autoretry_for": (OSError,),
    "retry_backoff": 10,
    "retry_backoff_max": 900,
    "max_retries": 8,
}


@app.task(name="control.store_token_uses")
def store_token_uses() -> None:
    token_uses.store()


@app.task(name="control.forget_sign_ins")
def forget_sign_ins() -> None:
    limits.remove_old(window=timedelta(days=1))
    SessionStore.clear_expired()


@app.task(name="control.mail_link", **RETRYING)
def mail_link(user_id: str, kind: str) -> None:
    mails.send_link(UUID(user_id), LinkKind(kind))


@app.task(name="control.mail_forgotten", **RETRYING)
def mail_forgotten(name: str) -> None:
    mails.send_forgotten(name)
