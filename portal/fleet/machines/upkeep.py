"""Periodic cleanup of Redis users, replaced credentials and old tokens."""

from __future__ import annotations

from datetime import timedelta

from django.utils import timezone

from portal.fleet.machines import redis_users
from portal.fleet.machines.models import JoinToken, Machine

TOKENS_KEPT = timedelta(days=1)


def run() -> None:
    """Restore Redis users, end replaced credentials and delete old tokens."""
    delete_replaced_credentials()
    redis_users.sync()
    JoinToken.objects.filter(expires_at__lt=timezone.now() - TOKENS_KEPT).delete()


def delete_replaced_credentials() -> None:
    """Delete replaced keys and passwords once their overlap period has ended."""
    now = timezone.now()
    for machine in Machine.objects.filter(former_until__lte=now):
        ended = Machine.objects.filter(pk=machine.pk, former_until=machine.former_until).update(
            former_signing_key="", former_password_digest="", former_certificate_serial="", former_until=None
        )
        if ended and redis_users.sync([machine.name]):
            # Otherwise connections opened with the old password would stay open.
            redis_users.end_connections(machine.name)
