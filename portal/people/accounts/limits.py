"""Failures counted in windows of time, in the database: all processes see the same number.

A window begins with its first failure and is over after its length. What is counted is named by a key, for
instance `codes:<user>`. Counting is an own transaction, so a refused request is counted too.
"""

from __future__ import annotations

import ipaddress
from datetime import timedelta

from django.db import IntegrityError, transaction
from django.db.models import F
from django.utils import timezone

from portal.common.constraints import violates
from portal.people.accounts.models import FailureWindow


def count(key: str, *, window: timedelta) -> int:
    """Count one more under `key`; returns how many there are in its present window, this one included."""
    now = timezone.now()
    for _attempt in range(2):
        if FailureWindow.objects.filter(key=key, began_at__gt=now - window).update(count=F("count") + 1):
            break
        try:
            with transaction.atomic():
                FailureWindow.objects.filter(key=key, began_at__lte=now - window).delete()
                FailureWindow.objects.create(key=key, began_at=now, count=1)
            return 1
        except IntegrityError as error:
            if not violates(error, FailureWindow, "key"):
                raise
            # Another process has begun the window in this very moment.
            continue
    return reached(key, window=window)


def reached(key: str, *, window: timedelta) -> int:
    """How many have been counted under `key` in its present window."""
    rows = FailureWindow.objects.filter(key=key, began_at__gt=timezone.now() - window)
    return rows.values_list("count", flat=True).first() or 0


def clear(key: str) -> None:
    """Forget what was counted under `key`."""
    FailureWindow.objects.filter(key=key).delete()


def remove_old(*, window: timedelta) -> int:
    """Delete windows that have been over for long; returns how many."""
    deleted, _by_model = FailureWindow.objects.filter(began_at__lt=timezone.now() - window).delete()
    return deleted


def network_of(address: str) -> str:
    """By what an address is counted: itself, and of IPv6 the network that one customer has."""
    if ":" not in address:
        return address or "unknown"
    return str(ipaddress.ip_network(f"{address}/64", strict=False))
