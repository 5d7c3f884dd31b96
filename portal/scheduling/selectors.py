"""The queue as everybody may see it: who waits for what, and who will have to leave."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any

from django.db.models import F, Q, QuerySet

from portal.accounts.models import User
from portal.accounts.policies import is_owner
from portal.common.formatting import format_cores, format_memory, format_resource, format_thousandths
from portal.quotas import resources
from portal.scheduling.placement_request import request_of
from portal.workspaces.lifecycle import HOLDING, State, Wanted
from portal.workspaces.models import Workspace
from portal.workspaces.presenters import LEAVES_FOR

NEEDS_APPROVAL = "needs_approval"


@dataclass(frozen=True, slots=True)
class QueueEntry:
    """A workspace that waits. `name` and `owner` are empty where they are not the reader's business."""

    workspace: Workspace
    visible: bool
    own: bool
    size: str

    @property
    def asks(self) -> bool:
        """Whether it waits for somebody's approval and not for room."""
        return self.workspace.error_code == NEEDS_APPROVAL


@dataclass(frozen=True, slots=True)
class Leaving:
    """A workspace that has been asked to leave, until when, and why."""

    workspace: Workspace
    visible: bool
    size: str
    at: datetime
    why: str


def waiting() -> QuerySet[Workspace]:
    """All that wait, in the queue's order; those that need approval have no place in it and come last."""
    return (
        Workspace.objects.filter(state=State.PENDING, wanted=Wanted.RUNNING)
        .select_related("team", "owner", "flavor", "flavor__pool", "template")
        .order_by(F("queue_position").asc(nulls_last=True), "requested_at", "pk")
    )


def filtered(found: QuerySet[Workspace], *, team: str = "", resource: str = "") -> QuerySet[Workspace]:
    """Those of a team, and those whose blocker is about a resource."""
    if team:
        found = found.filter(team__slug=team)
    if resource:
        found = found.filter(blocker__resource=resource)
    return found


def entries(actor: User, rows: list[Workspace]) -> list[QueueEntry]:
    """The rows as the reader sees them: names only of their own and of those they look after."""
    seen = _visible(actor, rows)
    return [QueueEntry(row, row.pk in seen, row.owner_id == actor.pk, size_of(row.resources)) for row in rows]


def leaving(actor: User) -> list[Leaving]:
    """Who has been asked to leave and has not left yet, the next first."""
    rows = list(
        Workspace.objects.filter(leave_at__isnull=False, state__in=HOLDING)
        .select_related("team", "owner", "flavor", "flavor__pool")
        .order_by("leave_at", "pk")[:100]
    )
    seen = _visible(actor, rows)
    return [
        Leaving(
            row,
            row.pk in seen,
            size_of(row.resources),
            row.leave_at,
            LEAVES_FOR.get(row.leave_reason, "another"),
        )
        for row in rows
        if row.leave_at is not None
    ]


def _visible(actor: User, rows: list[Workspace]) -> set[Any]:
    if actor.operates:
        return {row.pk for row in rows}
    owned: dict[Any, bool] = {}
    for row in rows:
        if row.team_id not in owned:
            owned[row.team_id] = is_owner(actor, row.team)
    return {row.pk for row in rows if row.owner_id == actor.pk or owned[row.team_id]}


def teams_waiting() -> list[tuple[str, str]]:
    """Short name and name of every team that has something waiting, for the filter."""
    return list(
        Workspace.objects.filter(Q(state=State.PENDING, wanted=Wanted.RUNNING))
        .order_by("team__name")
        .values_list("team__slug", "team__name")
        .distinct()
    )


def size_of(stored: dict[str, Any]) -> str:
    """A size in a few words: its accelerators, else its cores and memory."""
    request = request_of(stored)
    wanted = request.accelerators
    if wanted.count:
        what = (
            f"MIG {wanted.mig_profile}"
            if wanted.mig_profile
            else format_resource(resources.gpu(wanted.model))
            if wanted.model
            else "GPU of any model"
        )
        count = format_thousandths(wanted.count * wanted.share_milli * request.nodes, 3)
        return f"{count} × {what}"
    memory = format_memory(request.memory_mib * request.nodes)
    return f"{format_cores(request.cpu_milli * request.nodes)}, {memory}"
