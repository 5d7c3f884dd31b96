"""Failure counters per time window, in the database and shared by all processes.

A window begins with its first failure and ends after its length. The key names what is counted, such as
`codes:<user>`. Counting uses its own transaction, so it survives a refused request.
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
    """Increment the counter of `key`. Returns the count in the current window."""
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
            # Another process has begun the window concurrently.
            continue
    return current_count(key, window=window)


def current_count(key: str, *, window: timedelta) -> int:
    """Return the count of `key` in its current window."""
    rows = FailureWindow.objects.filter(key=key, began_at__gt=timezone.now() - window)
    return rows.values_list("count", flat=True).first() or 0


def clear(key: str) -> None:
    """Reset the counter of `key`."""
    FailureWindow.objects.filter(key=key).delete()


def remove_old(*, window: timedelta) -> int:
    """Delete windows that began before `window`. Returns the number deleted."""
    deleted, _by_model = FailureWindow.objects.filter(began_at__lt=timezone.now() - window).delete()
    return deleted


def network_of(address: str) -> str:
    """Return the key of an address: the IPv4 address, or the /64 network of an IPv6 address."""
    if ":" not in address:
        return address or "unknown"
    return str(ipaddress.ip_network(f"{address}/64", strict=False))
