"""Queries for the queue page: pending, handed-over and preempted workspaces, as visible to the user."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from math import inf
from typing import Any

from django.db.models import Case, CharField, Count, F, Min, Q, QuerySet, Value, When
from django.db.models.fields.json import KeyTextTransform
from django.db.models.functions import Coalesce
from django.utils import timezone
from django.utils.translation import gettext

from portal.catalog.environments.codes import EnvironmentCode
from portal.catalog.selectors import flavors_for
from portal.common.formatting import format_cores, format_memory, format_resource, format_thousandths
from portal.common.reasons.reason import Reason
from portal.common.reasons.wording import message_of, reason_of
from portal.people.accounts.models import User
from portal.quota.limits import resources
from portal.scheduling.placement_request import request_of
from portal.scheduling.wording.waiting import OTHER_LABEL, WAITING_LABELS
from portal.workspaces import engine_queue
from portal.workspaces.engine_queue import EngineWait
from portal.workspaces.lifecycle import HOLDING, DesiredState, QueueOutcome, State
from portal.workspaces.models import Preemption, Workspace
from portal.workspaces.policies import teams_seen
from portal.workspaces.presenters import PREEMPTED_FOR, ExpectedStart, expected_start
from portal.workspaces.problems import stored_message
from portal.workspaces.wait_texts import reason_text
from provisioning.registry import drivers_with
from provisioning.traits import Placing

QUEUE_ORDER = (
    F("queue_entry__position").asc(nulls_last=True),
    F("requested_at").asc(),
    F("pk").asc(),
)
"""The order of the queue. Requests that need an approval have no position and come last."""
NAMES_SOFTWARE = frozenset({EnvironmentCode.ON_ITS_WAY})


@dataclass(frozen=True, slots=True)
class QueueRow:
    """A pending workspace. Its names are shown only if `visible`, its flavor only if `flavor_seen`."""

    workspace: Workspace
    visible: bool
    own: bool
    size: str
    flavor_seen: bool = True

    @property
    def needs_approval(self) -> bool:
        """Whether it waits for an approval instead of capacity."""
        return self.workspace.queue_entry.outcome == QueueOutcome.NEEDS_APPROVAL

    @property
    def blocker_text(self) -> str:
        """The blocker as a sentence; empty until the queue has decided."""
        return message_of(reason) if (reason := self.reason) is not None else ""

    @property
    def reason(self) -> Reason | None:
        """The blocker, without software names, which may belong to a team."""
        reason = reason_of(self.workspace.queue_entry.reason)
        if self.visible or reason is None or reason.code not in NAMES_SOFTWARE:
            return reason
        return Reason(reason.code, {**reason.params, "environment": gettext("Software")})

    @property
    def expected_start(self) -> ExpectedStart:
        """When the workspace is expected to start."""
        return expected_start(self.workspace)

    @property
    def eta_basis(self) -> str:
        """The basis of the expected start."""
        return stored_message(self.workspace.queue_entry.eta_basis)

    @property
    def member_order_text(self) -> str:
        """How the members' use changes its position. Empty unless visible, as it names a member."""
        return stored_message(self.workspace.queue_entry.member_order) if self.visible else ""

    @property
    def next_flavor(self) -> str:
        """The flavor on which it is expected to start. Empty unless visible, as it names flavors."""
        return stored_message(self.workspace.queue_entry.next_flavor) if self.visible else ""

    @property
    def notes(self) -> list[str]:
        """Texts besides the blocker that explain its position and its expected start."""
        return [text for text in (self.member_order_text, self.next_flavor, self.eta_basis) if text]


@dataclass(frozen=True, slots=True)
class HandedOverRow:
    """A workspace that waits at an engine. Its names are shown only if `visible`."""

    workspace: Workspace
    visible: bool
    own: bool
    size: str
    wait: EngineWait

    @property
    def message(self) -> str:
        """The engine's reason. Empty unless visible, as the engine may name users and jobs."""
        return self.wait.message if self.visible else ""

    @property
    def reason(self) -> str:
        """The engine's code and its reason, if visible."""
        return reason_text(self.wait.code, self.message)

    @property
    def since(self) -> datetime | None:
        """When the workspace joined the engine's queue."""
        return engine_queue.queued_at(self.workspace)


@dataclass(frozen=True, slots=True)
class PreemptingRow:
    """A preempted workspace: when and why it stops."""

    workspace: Workspace
    visible: bool
    size: str
    at: datetime
    reason: str


def waiting() -> QuerySet[Workspace]:
    """Return all pending workspaces in queue order. Those that need an approval come last."""
    return (
        Workspace.objects.filter(state=State.PENDING, desired_state=DesiredState.RUNNING)
        .select_related("team", "owner", "flavor", "flavor__pool", "template", "queue_entry")
        .order_by(*QUEUE_ORDER)
    )


@dataclass(frozen=True, slots=True)
class WaitingGroup:
    """Pending workspaces with the same reason: its code, their number, and the oldest request.

    The code is empty while the queue has not decided, and `NEEDS_APPROVAL` for requests above a limit.
    """

    code: str
    count: int
    since: datetime

    @property
    def label(self) -> str:
        """The reason in a few words, without numbers and names."""
        return str(WAITING_LABELS.get(self.code, OTHER_LABEL))


def waiting_by_reason() -> list[WaitingGroup]:
    """Return all pending workspaces by reason code, largest group first. Uses one query."""
    rows = _with_code(waiting().select_related(None).order_by()).values("code")
    counted = rows.annotate(number=Count("pk"), since=Min("requested_at"))
    groups = [WaitingGroup(row["code"], row["number"], row["since"]) for row in counted]
    return sorted(groups, key=lambda group: (-group.count, group.code))


def _with_code(queryset: QuerySet[Workspace]) -> QuerySet[Any]:
    """Annotate pending workspaces with the `code` of `WaitingGroup`."""
    approval = Q(queue_entry__outcome=QueueOutcome.NEEDS_APPROVAL)
    return queryset.annotate(
        code=Case(
            When(approval, then=Value(QueueOutcome.NEEDS_APPROVAL.value)),
            default=Coalesce(KeyTextTransform("code", "queue_entry__reason"), Value("")),
            output_field=CharField(),
        )
    )


def filtered(
    queryset: QuerySet[Workspace], *, team: str = "", resource: str = "", reason: str = ""
) -> QuerySet[Workspace]:
    """Filter pending workspaces by team, the resource of their blocker, or the code of `WaitingGroup`."""
    if reason:
        queryset = _with_code(queryset).filter(code=reason)
    if team:
        queryset = queryset.filter(team__slug=team)
    if resource:
        queryset = queryset.filter(queue_entry__blocker__resource=resource)
    return queryset


def entries(actor: User, rows: list[Workspace]) -> list[QueueRow]:
    """Return the rows. Only workspaces that the user may see have names."""
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


def handed_over() -> QuerySet[Workspace]:
    """Return all workspaces that wait at an engine that places by itself. There are few per pool."""
    engines = drivers_with(lambda traits: traits.placing is Placing.ENGINE)
    return (
        Workspace.objects.filter(
            state=State.PROVISIONING, pool__driver__in=engines, status__engine__has_key="queue"
        )
        .select_related("team", "owner", "flavor", "flavor__pool", "pool", "status")
        .order_by("requested_at", "pk")
    )


def handed_over_rows(actor: User, rows: list[Workspace]) -> list[HandedOverRow]:
    """Return the rows that still wait. Only workspaces that the user may see have names."""
    seen, now = _visible(actor, rows), timezone.now()
    waits = ((row, engine_queue.current_wait(row, now)) for row in rows)
    return [
        HandedOverRow(row, row.pk in seen, row.owner_id == actor.pk, size_of(row.resources), wait)
        for row, wait in waits
        if wait is not None
    ]


def by_engine(rows: list[HandedOverRow]) -> list[HandedOverRow]:
    """Return the rows by pool and position there. Those without a position come last."""
    return sorted(rows, key=lambda row: (str(row.workspace.pool), row.wait.position or inf))


def preempting(actor: User) -> list[PreemptingRow]:
    """Return preempted workspaces that still use capacity, soonest stop first."""
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
    """Return the slug and name of each team with pending workspaces."""
    return list(
        Workspace.objects.filter(Q(state=State.PENDING, desired_state=DesiredState.RUNNING))
        .order_by("team__name")
        .values_list("team__slug", "team__name")
        .distinct()
    )


def size_of(stored: dict[str, Any]) -> str:
    """Return a size in a few words: accelerators, or else cores and memory."""
    request = request_of(stored)
    accelerators = request.accelerators
    if accelerators.count:
        unit = (
            f"MIG {accelerators.mig_profile}"
            if accelerators.mig_profile
            else format_resource(resources.gpu(accelerators.model))
            if accelerators.model
            else "GPU of any model"
        )
        count = format_thousandths(accelerators.count * accelerators.share_milli * request.nodes, 3)
        return f"{count} × {unit}"
    memory = format_memory(request.memory_mib * request.nodes)
    return f"{format_cores(request.cpu_milli * request.nodes)}, {memory}"
