"""Which events an actor is told of, and how far they are complete."""

from __future__ import annotations

import threading

from django.db.models import Q, QuerySet

from portal.common.events import feed
from portal.common.events.event_types import TYPES, Audience
from portal.common.events.models import Event
from portal.people.accounts.models import User
from portal.workspaces.models import Workspace
from portal.workspaces.policies import teams_seen, visible_to

_frontier = feed.Position()
_frontier_lock = threading.Lock()


def audience_of(actor: User) -> Audience:
    """Up to which audience the actor is told of types."""
    if actor.sees_people:
        return Audience.ADMINISTRATORS
    return Audience.OPERATORS if actor.sees_all else Audience.TEAM


def events_for(actor: User) -> QuerySet[Event]:
    """The entries of the audit log that have a type the actor may have, oldest first.

    Of workspaces those that the actor may see, of the rest what belongs to teams that he owns or views. Who
    sees all is also told of nodes and devices, who sees people of accounts.
    """
    audience = audience_of(actor)
    kinds = [kind for each in TYPES.values() if each.audience <= audience for kind in each.kinds]
    found = Event.objects.filter(kind__in=kinds)
    if not actor.sees_all:
        workspaces = visible_to(actor, Workspace.objects.all()).values("pk")
        found = found.filter(Q(workspace__in=workspaces) | Q(workspace=None, team__in=teams_seen(actor)))
    return found.select_related("team", "pool", "workspace").prefetch_related("targets").order_by("pk")


def complete_to() -> int:
    """The id up to which no entry can appear any more: who has read so far has missed none.

    It is kept for the process, as whether a gap is one for good shows only from one look to the next.
    """
    with _frontier_lock:
        return feed.advance(_frontier)
