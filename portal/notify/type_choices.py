"""Event types as choices in forms, grouped by subject."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any

from django.utils.translation import gettext_lazy as _

from portal.common.events.event_types import EventType

SUBJECTS = {
    "workspace": _("Workspaces"),
    "quota_request": _("Quota requests"),
    "grant": _("Grants"),
    "quota": _("Quotas"),
    "budget": _("GPU-hours"),
    "reservation": _("Reservations"),
    "team": _("Teams"),
    "gpu_check": _("GPU checks"),
    "device": _("GPUs"),
    "node": _("Nodes"),
    "pool": _("Pools"),
    "user": _("Accounts"),
    "session": _("Sign-in"),
}
"""Labels of event subjects."""


def groups(offered: Iterable[EventType], chosen: Collection[str]) -> list[dict[str, Any]]:
    """Return the types by subject, marking those in `chosen`."""
    by_subject: dict[str, dict[str, Any]] = {}
    for number, event_type in enumerate(offered):
        group = by_subject.setdefault(
            event_type.subject, {"label": SUBJECTS[event_type.subject], "types": [], "count": 0}
        )
        on = event_type.name in chosen
        group["types"].append(
            {"name": event_type.name, "summary": event_type.summary, "id": f"type-{number}", "on": on}
        )
        group["count"] += on
    rows = list(by_subject.values())
    for row in rows:
        # If nothing is chosen yet, open the first group as an example.
        row["open"] = bool(row["count"]) or (not chosen and row is rows[0])
    return rows
