"""Events visible to an actor, and the id up to which the feed is complete."""

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
    """Return the highest audience of event types that the actor may see."""
    if actor.sees_people:
        return Audience.ADMINISTRATORS
    return Audience.OPERATORS if actor.sees_all else Audience.TEAM


def events_for(actor: User) -> QuerySet[Event]:
    """Return the audit entries with an event type visible to the actor, oldest first.

    Includes events about workspaces visible to the actor, and about teams that the actor owns or views.
    Operators and auditors also get events about nodes and devices, administrators and auditors about
    accounts.
    """
    audience = audience_of(actor)
    kinds = [
        kind for event_type in TYPES.values() if event_type.audience <= audience for kind in event_type.kinds
    ]
    entries = Event.objects.filter(kind__in=kinds)
    if not actor.sees_all:
        workspaces = visible_to(actor, Workspace.objects.all()).values("pk")
        entries = entries.filter(Q(workspace__in=workspaces) | Q(workspace=None, team__in=teams_seen(actor)))
    return entries.select_related("team", "pool", "workspace").prefetch_related("targets").order_by("pk")


def last_complete_id() -> int:
    """Return the id up to which the feed is complete, so that a reader who has reached it missed nothing.

    The state is kept per process, because only repeated reads show whether a gap in ids is permanent.
    """
    with _frontier_lock:
        return feed.advance(_frontier)
