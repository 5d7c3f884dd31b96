"""Tells users whose workspaces were started without GPUs, as none was free, when theirs would be: once.

Nothing is attached by itself: that would restart an app in which somebody works.
"""

from __future__ import annotations

from uuid import UUID

from django.db import transaction
from django.utils.translation import gettext as _

from portal.common.events import services as events
from portal.scheduling import admission
from portal.scheduling.engine.model import Outcome
from portal.workspaces.lifecycle import State
from portal.workspaces.models import Workspace

MAX_ASKED = 50
"""For how many it is asked in one pass, those first that have waited longest."""
KIND = "workspace.gpu_free"


def run() -> int:
    """Tell those whose GPUs are free, one in each pool: what is free for one may be for one alone."""
    rows = Workspace.objects.filter(gpu_awaited=True, state=State.RUNNING)
    waiting = list(
        rows.select_related("owner", "team", "template", "flavor__pool").order_by("requested_at", "pk")[
            :MAX_ASKED
        ]
    )
    if not waiting:
        return 0
    told: set[UUID] = set()
    for workspace, verdict in zip(waiting, admission.assess_attached(waiting), strict=True):
        if verdict.outcome is not Outcome.FITS_NOW or verdict.pool is None or verdict.pool.pk in told:
            continue
        if _tell(workspace):
            told.add(verdict.pool.pk)
    return len(told)


@transaction.atomic
def _tell(workspace: Workspace) -> bool:
    """Whether it was told: not where somebody has changed it meanwhile. Both are written, or neither."""
    still = Workspace.objects.filter(pk=workspace.pk, gpu_awaited=True, state=State.RUNNING)
    if not still.update(gpu_awaited=False):
        return False
    events.notify(
        [workspace.owner],
        kind=KIND,
        title=_("The GPUs of %(name)s are free") % {"name": workspace.name},
        body=_("It was started without them. Attach them on its page: its app restarts with them."),
        url=f"/workspaces/{workspace.pk}/",
    )
    return True
