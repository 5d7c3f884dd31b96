"""Subscriptions of channels: notice subjects for users, event types for teams."""

from __future__ import annotations

from django.utils.functional import Promise
from django.utils.translation import gettext_lazy as _

from portal.common.events.event_types import Audience, types_for

SUBJECTS: dict[str, tuple[str | Promise, tuple[str, ...]]] = {
    "workspaces": (_("My workspaces: ready, failed, lost, preempted"), ("workspace.",)),
    "requests": (_("Requests, grants and decisions that wait for me"), ("quota.",)),
    "reservations": (_("Reservations"), ("reservation.",)),
    "budgets": (_("GPU-hours of my teams"), ("ledger.",)),
    "gpus": (_("Problems with GPUs, nodes and pools that I operate"), ("device.", "node.", "pool.")),
    "account": (
        _("My account, teams, webhooks and channels"),
        ("session.", "user.", "team.", "webhook.", "channel."),
    ),
}
"""Label and prefixes of notice kinds, by subject."""
TEAM_TYPES = tuple(event_type.name for event_type in types_for(Audience.TEAM))


def subject_of(kind: str) -> str:
    """Return the subject of a notice kind, or "" if it has none."""
    for name, (_label, prefixes) in SUBJECTS.items():
        if kind.startswith(prefixes):
            return name
    return ""
