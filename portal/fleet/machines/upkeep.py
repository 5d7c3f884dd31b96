"""What is done by the clock: Redis knows the machines' users, what was replaced ends, old tokens go."""

from __future__ import annotations

from datetime import timedelta

from django.utils import timezone

from portal.fleet.machines import redis_users
from portal.fleet.machines.models import JoinToken, Machine

TOKENS_KEPT = timedelta(days=1)


def run() -> None:
    """Put right what Redis has lost or still has, and end what holds no longer."""
    end_former()
    redis_users.sync()
    JoinToken.objects.filter(expires_at__lt=timezone.now() - TOKENS_KEPT).delete()


def end_former() -> None:
    """Keys and passwords that were replaced hold no longer than their overlap."""
    now = timezone.now()
    for machine in Machine.objects.filter(former_until__lte=now):
        ended = Machine.objects.filter(pk=machine.pk, former_until=machine.former_until).update(
            former_signing_key="", former_password_digest="", former_certificate_serial="", former_until=None
        )
        if ended and redis_users.sync([machine.name]):
            # What had come in by the former password stays otherwise.
            redis_users.end_connections(machine.name)
