"""Notifies users once when GPUs are free for workspaces that had to start without them.

GPUs are never attached automatically, because that would restart an app in use.
"""

from __future__ import annotations

from uuid import UUID

from django.db import transaction
from django.utils.translation import gettext as _

from portal.common.events import services as events
from portal.scheduling import admission
from portal.workspaces.lifecycle import State
from portal.workspaces.models import Workspace

MAX_ASKED = 50
"""Maximum number of workspaces checked per pass, longest waiting first."""
KIND = "workspace.gpu_free"


def run() -> int:
    """Notify users whose GPUs are free, and return their number.

    At most one user per pool, because the same GPUs may be free for several users.
    """
    rows = Workspace.objects.filter(gpu_awaited=True, state=State.RUNNING)
    waiting = list(
        rows.select_related("owner", "team", "template", "flavor__pool").order_by("requested_at", "pk")[
            :MAX_ASKED
        ]
    )
    if not waiting:
        return 0
    notified: set[UUID] = set()
    for workspace, verdict in zip(waiting, admission.assess_attached(waiting), strict=True):
        if not verdict.starts_now or verdict.pool is None or verdict.pool.pk in notified:
            continue
        if _notify(workspace):
            notified.add(verdict.pool.pk)
    return len(notified)


@transaction.atomic
def _notify(workspace: Workspace) -> bool:
    """Notify the user and clear the flag in one transaction. Returns False if the row has changed."""
    awaiting = Workspace.objects.filter(pk=workspace.pk, gpu_awaited=True, state=State.RUNNING)
    if not awaiting.update(gpu_awaited=False):
        return False
    events.notify(
        [workspace.owner],
        kind=KIND,
        title=_("The GPUs of %(name)s are free") % {"name": workspace.name},
        body=_("The workspace started without GPUs. Attach them on its page; the app then restarts."),
        url=f"/workspaces/{workspace.pk}/",
    )
    return True
