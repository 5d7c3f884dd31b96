"""Contact with pools and nodes: whether they report, and since when and why they do not.

A silent pool or node keeps its last known state, and nothing new starts there.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from django.db.models import Q
from django.utils.translation import gettext as _

from portal.common.formatting import format_duration
from portal.fleet.inventory.models import Node, Pool, PoolState

MINUTE_S = 60


@dataclass(frozen=True, slots=True)
class Contact:
    """`heard` is False while there is no contact. `last` is the time of the last report, or `None`.

    `cause` is a sentence, or empty if unknown.
    """

    heard: bool
    last: datetime | None
    cause: str = ""

    def age_text(self, now: datetime) -> str:
        """Return “No contact for 8 min”, or an empty string while there is contact."""
        if self.heard:
            return ""
        if self.last is None:
            return _("No contact yet")
        seconds = (now - self.last).total_seconds()
        rounded_s = seconds - seconds % MINUTE_S if seconds > MINUTE_S else seconds
        return _("No contact for %(time)s") % {"time": format_duration(rounded_s)}


def in_contact(node: str = "", pool: str | None = None) -> Q:
    """Return the condition that the node reports. `node` and `pool` are lookup prefixes (`node__`)."""
    pool = f"{node}pool__" if pool is None else pool
    return Q(**{f"{node}online": True}) & ~Q(**{f"{pool}state": PoolState.UNREACHABLE})


def contact_of_pool(pool: Pool) -> Contact:
    """Return the contact with a pool's driver."""
    return Contact(pool.state != PoolState.UNREACHABLE, pool.inventory_at, pool.state_message)


def contact_of_node(node: Node, pool: Pool | None = None) -> Contact:
    """Return the contact with a node. `pool` is its pool, which is read if not passed in."""
    of_pool = contact_of_pool(pool or node.pool)
    if not of_pool.heard:
        # The pool's cause also applies to nodes that were offline before.
        return Contact(False, node.seen_at, of_pool.cause)
    return Contact(node.online, node.seen_at)
