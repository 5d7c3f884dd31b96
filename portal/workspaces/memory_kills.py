"""Reports of nodes about programs that the system killed because a running workspace's memory was full.

The last report of a start is stored in `WorkspaceStatus.memory_kill` for the page, REST and JupyterLab's bar.
The timeline shows it, and the owner is notified, with the next larger size that would start now. The number
of timeline entries and notifications per hour is limited.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial
from typing import Any
from uuid import UUID

from django.db import transaction
from django.utils import timezone
from django.utils.translation import gettext as _

from portal.common.actors import SYSTEM
from portal.common.errors import NotFound
from portal.common.events import live
from portal.common.events import services as events
from portal.common.events.kinds import AuditKind
from portal.common.reasons.reason import Reason
from portal.common.reasons.wording import message_of, next_action_of, sentence_of
from portal.fleet.inventory import notices as node_notices
from portal.workspaces import larger_sizes
from portal.workspaces.codes import MemoryCode
from portal.workspaces.lifecycle import State
from portal.workspaces.models import Workspace, WorkspaceStatus
from portal.workspaces.transitions import lock_workspace
from provisioning.memory_messages import MemoryKill, MemoryKills

log = logging.getLogger(__name__)
NOTICE = "workspace.out_of_memory"
OUT_OF_MEMORY = "out_of_memory"
"""A driver's code: the app itself was killed at the workspace's memory limit."""
MAX_PER_HOUR = 6
"""Maximum number of timeline entries and notifications per hour and workspace."""
WITHIN = timedelta(hours=1)
SHOWN_IN_APP_FOR = timedelta(hours=1)
"""Time for which the app shows the message. The workspace's page shows it until the next start."""
MAX_NAME_LENGTH = 64


@dataclass(frozen=True, slots=True)
class LostProgram:
    """The last report of this start. `count` is the number of programs killed since the start.

    `process` is the name of the last program, or empty. `larger` is the next larger size that would have
    started at that time.
    """

    code: MemoryCode
    message: str
    next_action: str
    at: datetime
    process: str
    count: int
    limit_mib: int
    larger: str


def apply(report: MemoryKills) -> int:
    """Apply a node's reports about workspaces that it runs. Returns the number of valid ones.

    Invalid reports are ignored.
    """
    return sum(_apply_one(report, kill) for kill in report.kills)


def _apply_one(report: MemoryKills, kill: MemoryKill) -> bool:
    candidates = Workspace.objects.filter(
        allocations__node__name=report.node,
        allocations__generation=kill.generation,
        allocations__released_at=None,
        state=State.RUNNING,
    )
    if report.pool:
        candidates = candidates.filter(allocations__node__pool__slug=report.pool)
    try:
        workspace_id = candidates.values_list("pk", flat=True).get(pk=UUID(kill.workspace_id))
    except (ValueError, Workspace.DoesNotExist):
        log.warning("ignored report from %s about a workspace that it does not run", report.node)
        return False
    return _of_workspace(workspace_id, kill)


@transaction.atomic
def _of_workspace(workspace_id: UUID, kill: MemoryKill) -> bool:
    try:
        workspace = lock_workspace(workspace_id)
    except NotFound:
        return False
    if workspace.generation != kill.generation or workspace.state != State.RUNNING or not kill.count:
        return False
    status = WorkspaceStatus.objects.select_for_update().get(pk=workspace_id)
    stored: Mapping[str, Any] = status.memory_kill
    before = stored if stored.get("generation") == workspace.generation else {}
    now = timezone.now()
    at = now.timestamp()
    recent = [sent for sent in before.get("notified_at", ()) if at - WITHIN.total_seconds() < sent <= at]
    notifies = len(recent) < MAX_PER_HOUR
    reason = _reason_of(workspace, kill)
    flavor = larger_sizes.next_larger(workspace)
    larger = larger_sizes.title_of(flavor) if flavor is not None else ""
    status.memory_kill = {
        "generation": workspace.generation,
        **reason.as_json(),
        "at": now.isoformat(),
        "larger": larger,
        "count": before.get("count", 0) + kill.count,
        "notified_at": [*recent, at] if notifies else recent,
    }
    status.save(update_fields=["memory_kill"])
    if notifies:
        _record(workspace, reason, larger)
    if kill.machine:
        for allocation in workspace.allocations.filter(released_at=None).select_related("node__pool"):
            node_notices.memory_full(allocation.node.pool, allocation.node)
    transaction.on_commit(partial(live.publish, workspace.pk, workspace.owner_id, NOTICE))
    return True


def _reason_of(workspace: Workspace, kill: MemoryKill) -> Reason:
    code = MemoryCode.MACHINE if kill.machine else MemoryCode.LIMIT
    # Programs choose their own names, so clean up the name.
    process = "".join(
        character if character.isprintable() else "?" for character in kill.process[:MAX_NAME_LENGTH]
    ).strip()
    limit_mib = int(workspace.resources["memory_mib"])
    return Reason(code, {"process": process, "count": kill.count, "limit_mib": limit_mib})


def _record(workspace: Workspace, reason: Reason, larger: str) -> None:
    events.record(
        actor=SYSTEM,
        kind=AuditKind.WORKSPACE_OUT_OF_MEMORY,
        workspace=workspace,
        message="ended a program because the workspace ran out of memory",
        cause=reason.as_json(),
        data={"code": reason.code.value, **reason.params},
    )
    events.notify(
        [workspace.owner],
        kind=NOTICE,
        title=_("A program in %(workspace)s ran out of memory") % {"workspace": workspace.name},
        body=" ".join(filter(None, (sentence_of(reason), _suggestion(larger)))),
        url=f"/workspaces/{workspace.pk}/",
    )


def suggestion_for(workspace: Workspace) -> str:
    """Return a sentence about the next larger size that would start now, or an empty string."""
    flavor = larger_sizes.next_larger(workspace)
    return _suggestion(larger_sizes.title_of(flavor) if flavor is not None else "")


def _suggestion(larger: str) -> str:
    return _("%(flavor)s would start now.") % {"flavor": larger} if larger else ""


def is_out_of_memory(workspace: Workspace) -> bool:
    """Return whether the workspace failed because it reached its own memory limit."""
    stored: Mapping[str, Any] = workspace.status.reason
    return bool(stored.get("params", {}).get("code") == OUT_OF_MEMORY)


def last_report(workspace: Workspace) -> LostProgram | None:
    """Return the last report of the current start, or `None`."""
    stored: Mapping[str, Any] = workspace.status.memory_kill
    if stored.get("generation") != workspace.generation or workspace.state != State.RUNNING:
        return None
    reason = Reason(MemoryCode(stored["code"]), stored["params"])
    return LostProgram(
        code=MemoryCode(stored["code"]),
        message=message_of(reason),
        next_action=next_action_of(reason),
        at=datetime.fromisoformat(stored["at"]),
        process=stored["params"]["process"],
        count=stored["count"],
        limit_mib=stored["params"]["limit_mib"],
        larger=stored["larger"],
    )
