"""Refreshes open pages of operators when capacity problems appear or disappear.

Requests refresh pages separately. Inventory events report every change; most of them are not problems.
"""

from __future__ import annotations

import hashlib
import logging

import redis
from django.db.models import Q

from portal.common.domain_events import DomainEvent
from portal.common.events import live, services
from portal.fleet.inventory import lost_capacity
from portal.people.accounts.models import User

log = logging.getLogger(__name__)
LAST_KEY = "berth:inbox:troubles"


def capacity_changed(_event: DomainEvent) -> None:
    """Refresh operators' pages if the problems differ from those at the last check."""
    operators = list(User.objects.filter(Q(is_operator=True) | Q(is_superuser=True), is_active=True))
    if not operators:
        return
    # All operators see the same problems.
    operator = operators[0]
    rows = [
        lost_capacity.lost_devices(operator),
        lost_capacity.lost_nodes(operator),
        lost_capacity.lost_pools(operator),
    ]
    present = ",".join(sorted(str(key) for queryset in rows for key in queryset.values_list("pk", flat=True)))
    digest = hashlib.sha256(present.encode()).hexdigest()[:32]
    try:
        before = live.connection().set(LAST_KEY, digest, get=True)
    except redis.RedisError as error:
        log.debug("could not announce capacity problems: %s", error)
        return
    if before != digest.encode():
        services.refresh_pages(operators)
