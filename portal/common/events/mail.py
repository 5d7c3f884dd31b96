"""Notices by e-mail. `Notification.mail_due_at` is the outbox; a failed e-mail becomes due again later.

A row is claimed by postponing its due time before sending. Two workers never send the same row, and a row of
a crashed worker becomes due again: delivery is at least once.
"""

from __future__ import annotations

import logging
from datetime import datetime, timedelta
from smtplib import SMTPException, SMTPRecipientsRefused
from typing import Any

from django.conf import settings
from django.core.mail import EmailMessage, get_connection
from django.utils import timezone
from django.utils.translation import gettext as _

from portal.common.events.models import Notification
from portal.common.htmx import public_url

log = logging.getLogger(__name__)
MAX_ATTEMPTS = 8
BACKOFF = timedelta(seconds=30)
BATCH = 50


def send_due() -> int:
    """Send due e-mails, oldest first. Returns the number sent. A server failure ends the round."""
    if not settings.BERTH_MAIL:
        return 0
    now = timezone.now()
    due = Notification.objects.filter(mail_due_at__lte=now).select_related("user")
    rows = list(due.order_by("mail_due_at", "pk")[:BATCH])
    if not rows:
        return 0
    server = get_connection()
    sent = 0
    try:
        for row in rows:
            if not _claim(row, now):
                continue
            if not _is_wanted(row):
                _finish(row)
                continue
            try:
                # Open the connection here: `send` closes only a connection that it has opened itself.
                server.open()
                _message(row, server).send()
            except SMTPRecipientsRefused as error:
                _failed(row, error)
            except (SMTPException, OSError) as error:
                _failed(row, error)
                # The server is unavailable. The other e-mails stay due for the next round.
                break
            except Exception as error:
                # A message with an error must not block the others.
                _failed(row, error)
            else:
                _finish(row)
                sent += 1
    finally:
        try:
            server.close()
        except (SMTPException, OSError) as error:
            log.warning("mail server did not close the connection properly: %s", error)
    return sent


def _claim(row: Notification, now: datetime) -> bool:
    row.mail_attempts += 1
    # No due time after the last attempt: if the worker dies now, it is not retried.
    later = now + BACKOFF * 2 ** (row.mail_attempts - 1) if row.mail_attempts < MAX_ATTEMPTS else None
    return bool(
        Notification.objects.filter(pk=row.pk, mail_due_at=row.mail_due_at).update(
            mail_due_at=later, mail_attempts=row.mail_attempts
        )
    )


def _is_wanted(row: Notification) -> bool:
    """Return whether the account is active, has an address and still wants notices by e-mail."""
    return row.user.is_active and bool(row.user.email) and row.user.mail_notices


def _finish(row: Notification) -> None:
    Notification.objects.filter(pk=row.pk).update(mail_due_at=None)


def _failed(row: Notification, error: Exception) -> None:
    log.warning(
        "could not send e-mail %s (attempt %s of %s): %s", row.pk, row.mail_attempts, MAX_ATTEMPTS, error
    )


def _message(row: Notification, server: Any) -> EmailMessage:
    parts = [row.body or row.title]
    if row.url:
        parts.append(f"{public_url()}{row.url}")
    parts.append(
        _(
            "You receive this e-mail because of your account at %(url)s. To stop these e-mails, "
            "open Account there."
        )
        % {"url": public_url()}
    )
    return EmailMessage(
        subject=f"[Berth] {row.title}",
        body="\n\n".join(parts) + "\n",
        to=[row.user.email],
        connection=server,
        headers={"Auto-Submitted": "auto-generated"},
    )
