"""What may be sent to a channel: subjects of notices to a user's, types of events to a team's."""

from __future__ import annotations

from django.utils.functional import Promise
from django.utils.translation import gettext_lazy as _

from portal.common.events.event_types import Audience, types_for

SUBJECTS: dict[str, tuple[str | Promise, tuple[str, ...]]] = {
    "workspaces": (_("My workspaces: ready, failed, lost, has to make room"), ("workspace.",)),
    "requests": (_("Requests and grants, and what waits for my decision"), ("quota.",)),
    "reservations": (_("Reservations"), ("reservation.",)),
    "budgets": (_("GPU-hours of my teams"), ("ledger.",)),
    "gpus": (_("Trouble with GPUs, nodes and pools, where I run them"), ("device.", "node.", "pool.")),
    "account": (
        _("My account, teams, webhooks and channels"),
        ("session.", "user.", "team.", "webhook.", "channel."),
    ),
}
"""By name: what it is called, and how the kinds of its notices begin."""
TEAM_TYPES = tuple(each.name for each in types_for(Audience.TEAM))


def subject_of(kind: str) -> str:
    """The subject that a notice of this kind belongs to; empty for none."""
    for name, (_label, beginnings) in SUBJECTS.items():
        if kind.startswith(beginnings):
            return name
    return ""
