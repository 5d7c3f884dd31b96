"""Notifies users, once per start, if their workspace works on some GPUs and leaves others unused.

Nothing is released, because no driver can take a device from a running app: the app would restart, and the
work on the other GPUs would end.
"""

from __future__ import annotations

from datetime import UTC, datetime

from django.conf import settings
from django.db import transaction
from django.db.models import F
from django.utils.translation import gettext as _

from portal.common.events import services as events
from portal.common.formatting import format_duration
from portal.reclaim.engine.devices import unused_count
from portal.reclaim.models import WorkspaceActivity
from portal.reclaim.observing import ObservedActivity, clock_of_activity
from portal.workspaces.lifecycle import State

KIND = "workspace.gpus_unused"
MAX_NOTIFIED = 500
"""Maximum number of notices per pass."""


def unused_gpus_of(row: ObservedActivity | WorkspaceActivity | None) -> tuple[int, int, datetime | None]:
    """Return the number of unused GPUs, the number of all GPUs, and since when those GPUs are unused."""
    clock = clock_of_activity(row) if row is not None else None
    if clock is None:
        return 0, 0, None
    since, at_s = clock.last.gpus_unused_since, clock.last.at_s
    count = unused_count(since, at_s)
    if not count:
        return 0, len(since), None
    oldest = sorted(begin for begin in since if begin is not None)[count - 1]
    return count, len(since), datetime.fromtimestamp(oldest, UTC)


def notify() -> int:
    """Notify owners of workspaces with GPUs unused for the site's idle limit. Returns their number."""
    limit_s = int(settings.BERTH_IDLE_GPU_MINUTES) * 60
    if not limit_s:
        return 0
    rows = (
        WorkspaceActivity.objects.filter(
            unused_gpus__gt=0, workspace__state=State.RUNNING, generation=F("workspace__generation")
        )
        .exclude(unused_notified=F("generation"))
        .select_related("workspace__owner")
        .order_by("pk")[:MAX_NOTIFIED]
    )
    return sum(_notify(row, limit_s) for row in rows)


def _notify(row: WorkspaceActivity, limit_s: int) -> bool:
    """Notify the owner and record this in one transaction. Returns False if too early or already done."""
    clock = clock_of_activity(row)
    if clock is None:
        return False
    count = unused_count(clock.last.gpus_unused_since, clock.last.at_s, limit_s)
    if not count:
        return False
    with transaction.atomic():
        current = WorkspaceActivity.objects.filter(pk=row.pk, generation=row.generation)
        if not current.exclude(unused_notified=row.generation).update(unused_notified=row.generation):
            return False
        name, gpus = row.workspace.name, len(clock.last.gpus_unused_since)
        events.notify(
            [row.workspace.owner],
            kind=KIND,
            title=_("%(count)d of %(gpus)d GPUs of %(name)s are unused")
            % {"count": count, "gpus": gpus, "name": name},
            body=_(
                "No work on them for %(time)s. Nothing is released, because that restarts the app. "
                "Resize the workspace if it needs fewer GPUs."
            )
            % {"time": format_duration(limit_s)},
            url=f"/workspaces/{row.pk}/",
        )
    return True
