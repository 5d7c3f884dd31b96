"""Reads for the queue's page: pending workspaces and those being preempted, as the reader may see them."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any

from django.db.models import F, Q, QuerySet
from django.utils.translation import gettext

from portal.catalog.environments.codes import EnvironmentCode
from portal.catalog.selectors import flavors_for
from portal.common.formatting import format_cores, format_memory, format_resource, format_thousandths
from portal.common.reasons.reason import Reason
from portal.common.reasons.wording import message_of, reason_of
from portal.people.accounts.models import User
from portal.quota.limits import resources
from portal.scheduling.placement_request import request_of
from portal.workspaces.lifecycle import HOLDING, DesiredState, QueueOutcome, State
from portal.workspaces.models import Preemption, Workspace
from portal.workspaces.policies import teams_seen
from portal.workspaces.presenters import PREEMPTED_FOR
from portal.workspaces.troubles import stored_message

NAMES_SOFTWARE = frozenset({EnvironmentCode.ON_ITS_WAY})


@dataclass(frozen=True, slots=True)
class QueueRow:
    """A workspace that waits. What names it is shown only where `visible`; `flavor_seen`: its flavor, too."""

    workspace: Workspace
    visible: bool
    own: bool
    size: str
    flavor_seen: bool = True

    @property
    def asks(self) -> bool:
        """Whether it waits for somebody's approval and not for room."""
        return self.workspace.queue_entry.outcome == QueueOutcome.NEEDS_APPROVAL

    @property
    def waits_for(self) -> str:
        """What is in its way, in a sentence; empty until the queue has looked at it."""
        return message_of(reason) if (reason := self.reason) is not None else ""

    @property
    def reason(self) -> Reason | None:
        """What is in its way, without the name of software that may be a team's own."""
        reason = reason_of(self.workspace.queue_entry.reason)
        if self.visible or reason is None or reason.code not in NAMES_SOFTWARE:
            return reason
        return Reason(reason.code, {**reason.params, "environment": gettext("Its software")})

    @property
    def eta_basis(self) -> str:
        """What its expected start rests on."""
        return stored_message(self.workspace.queue_entry.eta_basis)


@dataclass(frozen=True, slots=True)
class PreemptingRow:
    """A workspace that is being preempted: when it stops, and for what."""

    workspace: Workspace
    visible: bool
    size: str
    at: datetime
    why: str


def waiting() -> QuerySet[Workspace]:
    """All that wait, in the queue's order; those that need approval have no place in it and come last."""
    return (
        Workspace.objects.filter(state=State.PENDING, desired_state=DesiredState.RUNNING)
        .select_related("team", "owner", "flavor", "flavor__pool", "template", "queue_entry")
        .order_by(F("queue_entry__position").asc(nulls_last=True), "requested_at", "pk")
    )


def filtered(found: QuerySet[Workspace], *, team: str = "", resource: str = "") -> QuerySet[Workspace]:
    """Narrow pending workspaces to a team, or to those whose blocker is about a resource."""
    if team:
        found = found.filter(team__slug=team)
    if resource:
        found = found.filter(queue_entry__blocker__resource=resource)
    return found


def entries(actor: User, rows: list[Workspace]) -> list[QueueRow]:
    """The rows as the reader sees them: names only of their own and of those they look after."""
    seen = _visible(actor, rows)
    sizes = set(
        flavors_for(actor).filter(pk__in={row.flavor_id for row in rows}).values_list("pk", flat=True)
    )
    return [
        QueueRow(
            row,
            row.pk in seen,
            row.owner_id == actor.pk,
            size_of(row.resources),
            row.pk in seen or row.flavor_id in sizes,
        )
        for row in rows
    ]


def preempting(actor: User) -> list[PreemptingRow]:
    """The workspaces that are being preempted and still hold capacity, the next to stop first."""
    notices = list(
        Preemption.objects.filter(workspace__state__in=HOLDING)
        .select_related("workspace__team", "workspace__owner", "workspace__flavor", "workspace__flavor__pool")
        .order_by("preempt_at", "pk")[:100]
    )
    rows = [notice.workspace for notice in notices]
    seen = _visible(actor, rows)
    return [
        PreemptingRow(
            row,
            row.pk in seen,
            size_of(row.resources),
            notice.preempt_at,
            PREEMPTED_FOR.get(notice.cause, "another"),
        )
        for notice, row in zip(notices, rows, strict=True)
    ]


def _visible(actor: User, rows: list[Workspace]) -> set[Any]:
    if actor.sees_all:
        return {row.pk for row in rows}
    seen = set(teams_seen(actor).values_list("pk", flat=True))
    return {row.pk for row in rows if row.owner_id == actor.pk or row.team_id in seen}


def teams_waiting() -> list[tuple[str, str]]:
    """Short name and name of every team that has something waiting, for the filter."""
    return list(
        Workspace.objects.filter(Q(state=State.PENDING, desired_state=DesiredState.RUNNING))
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
