"""Read operations on workspaces, limited to those visible to the actor."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from functools import lru_cache
from uuid import UUID

from django.db.models import F, Q, QuerySet
from django.utils import timezone
from django.utils.translation import get_language
from django.utils.translation import gettext as _

from portal.catalog.environments.models import EnvironmentVersion
from portal.catalog.environments.selectors import LONG
from portal.common import idempotency
from portal.common.errors import NotFound
from portal.common.events.kinds import AuditKind
from portal.common.events.models import Event
from portal.common.reasons.reason import Reason
from portal.people.accounts.models import User
from portal.people.accounts.selectors import chargeable_teams
from portal.workspaces import engine_queue
from portal.workspaces.codes import WorkspaceCode
from portal.workspaces.lifecycle import LIVE, QueueOutcome, State
from portal.workspaces.models import Workspace, WorkspaceQuerySet
from portal.workspaces.policies import visible_to

CREATION = "workspaces.create"
"""Endpoint name for the idempotency keys of new workspaces."""
MAX_WORDS = 8
"""Maximum number of words in a search."""


def rows_for(actor: User) -> WorkspaceQuerySet:
    """Return all workspaces visible to the actor, newest first, without related rows."""
    return visible_to(actor, Workspace.objects.all()).order_by("-created_at", "-id")


def listed_for(actor: User, *, deleted: bool = False) -> WorkspaceQuerySet:
    """Return the workspaces visible to the actor for lists, including deleted ones only with `deleted`."""
    visible = rows_for(actor)
    return visible if deleted else visible.live()


def with_words(workspaces: WorkspaceQuerySet, text: str) -> WorkspaceQuerySet:
    """Return workspaces whose name, template, flavor, team or owner contains each word of the text."""
    for word in text.split()[:MAX_WORDS]:
        workspaces = workspaces.filter(
            Q(name__icontains=word)
            | Q(template__name__icontains=word)
            | Q(flavor__name__icontains=word)
            | Q(team__name__icontains=word)
            | Q(owner__username__icontains=word)
        )
    return workspaces


def workspaces_for(actor: User) -> WorkspaceQuerySet:
    """Return all workspaces visible to the actor, newest first, with the related rows of a list."""
    return (
        rows_for(actor)
        .select_related("owner", "team", "template", "flavor", "flavor__pool", "pool")
        .select_related("queue_entry", "status", "preemption", "environment_version__environment")
        .defer(*(f"environment_version__{name}" for name in LONG))
    )


def own_workspaces(actor: User) -> WorkspaceQuerySet:
    """Return the actor's own workspaces that are not deleted."""
    return workspaces_for(actor).live().filter(owner=actor)


def workspace_by_id(actor: User, workspace_id: UUID) -> Workspace:
    """Return the workspace. Raises `NotFound` if it does not exist or is not visible to the actor."""
    workspace = workspaces_for(actor).filter(pk=workspace_id).first()
    if workspace is None:
        raise NotFound(Reason(WorkspaceCode.NOT_VISIBLE))
    return workspace


def current_number(environment_id: UUID) -> int | None:
    """Return the environment version number that new workspaces get."""
    rows = EnvironmentVersion.objects.filter(environment=environment_id, environment__current=F("pk"))
    return rows.values_list("number", flat=True).first()


def events_of(workspace: Workspace, *, after: int = 0) -> QuerySet[Event]:
    """Return the workspace's events after event id `after`, oldest first."""
    return Event.objects.filter(workspace=workspace, pk__gt=after).order_by("pk")


def failed_starts(workspace: Workspace) -> int:
    """Return how many starts have failed since the workspace was last ready."""
    ready = Event.objects.filter(workspace=workspace, kind=AuditKind.WORKSPACE_READY).order_by("-pk").first()
    return events_of(workspace, after=ready.pk if ready else 0).filter(kind=AuditKind.WORKSPACE_FAIL).count()


def workspace_created_with(actor: User, key: str) -> Workspace | None:
    """Return the workspace that the actor created with this idempotency key, unless it is deleted."""
    workspace_id = idempotency.recorded_response(user=actor, endpoint=CREATION, key=key).get("workspace")
    return Workspace.objects.filter(pk=workspace_id, state__in=LIVE).first() if workspace_id else None


def last_choice(actor: User) -> Workspace | None:
    """Return the actor's latest workspace whose template and flavor are still available, as a default."""
    last = (
        Workspace.objects.filter(
            owner=actor, template__enabled=True, flavor__enabled=True, team__in=chargeable_teams(actor)
        )
        .select_related("template", "flavor", "team", "flavor__pool", "template__environment__current")
        .select_related("environment_version__environment__current", "environment_version__environment__team")
        .order_by("-created_at")
        .first()
    )
    if last is None or not (last.template.offered_to(last.team_id) and last.flavor.offered_to(last.team_id)):
        return None
    return last


@dataclass(frozen=True, slots=True)
class StartStage:
    """One stage of a start.

    `state` is `done`, `current`, `failed` or `todo`. The last stage has the total duration since the request.
    `by` is the approver's username, in the approval stage.
    """

    key: str
    label: str
    state: str
    began_at: datetime | None = None
    ended_at: datetime | None = None
    by: str = ""

    @property
    def seconds(self) -> float | None:
        """The duration, or the duration so far."""
        ended = timezone.now() if self.state == "current" else self.ended_at
        return (ended - self.began_at).total_seconds() if ended and self.began_at else None

    @property
    def timed(self) -> bool:
        """Whether the stage has its own duration, unlike the request and the total."""
        return self.key not in {"requested", "ready"} and self.seconds is not None

    @property
    def state_label(self) -> str:
        labels = {
            "done": _("done"),
            "current": _("in progress"),
            "failed": _("failed"),
            "todo": _("pending"),
        }
        return labels[self.state]


def stage_labels() -> dict[str, str]:
    """Return the names of the stages in the active language."""
    return _stage_labels(get_language())


@lru_cache(maxsize=16)
def _stage_labels(_language: str) -> dict[str, str]:
    return {
        "requested": _("Requested"),
        "approved": _("Approved"),
        "admitted": _("Admitted"),
        "placed": _("Placed"),
        "checked": _("Checked"),
        "home": _("Files moved"),
        "handed_over": _("Handed over"),
        "engine": _("At the cluster"),
        "starting": _("Starting"),
        "answering": _("First answer"),
        "ready": _("Ready"),
    }


def _latest(times: Iterable[datetime | None]) -> datetime | None:
    """Return the latest time, or `None` if one is missing."""
    pks = list(times)
    return None if None in pks else max(at for at in pks if at is not None)


_MOVING = frozenset({State.PENDING, State.PROVISIONING})
_BROKEN = frozenset({State.FAILED, State.TERMINATING})


@lru_cache(maxsize=64)
def _pending_stage(key: str, label: str) -> StartStage:
    return StartStage(key, label, "todo")


def stages(workspace: Workspace, labels: Mapping[str, str] | None = None) -> list[StartStage]:
    """Return the stages of a start in order, each with its duration.

    They are Requested, (Approved), Admitted, Placed, (Checked), (Files moved), (At the cluster), Starting,
    (First answer) and Ready; stages in brackets appear only if the start has them. An engine that places by
    itself has the stages Handed over, instead of Placed, and At the cluster, which lasts until the engine
    begins the workspace. Starting ends when the program is launched, First answer when its app answers. If no
    launch is reported, Starting lasts until the app answers.

    `labels` are `stage_labels()`, for callers with many workspaces.
    """
    requested, launched, ready = workspace.requested_at, workspace.launched_at, workspace.ready_at
    if launched is not None and ready is not None and launched >= ready:
        launched = None
    at_engine = engine_queue.places(workspace)
    if at_engine:
        # The engine has accepted the workspace then.
        launched = None
    checks = (workspace.checks_began_at, workspace.checks_ended_at)
    home = (workspace.home_move_began_at, workspace.home_move_ended_at)
    prepared = [(key, *span) for key, span in (("checked", checks), ("home", home)) if span[0] is not None]
    ends = [ended for _key, _began, ended in prepared]
    handed_over = _latest(ends) if ends else workspace.placed_at
    if at_engine:
        queued = engine_queue.queued_at(workspace) if handed_over else None
        prepared.append(("engine", queued, workspace.began_at))
    approved = workspace.approved_at
    needs_approval = approved is not None or (
        workspace.state == State.PENDING and workspace.queue_entry.outcome == QueueOutcome.NEEDS_APPROVAL
    )
    spans: list[tuple[str, datetime | None, datetime | None]] = [
        ("requested", requested, requested),
        *([("approved", requested, approved)] if needs_approval else []),
        ("admitted", approved if needs_approval else requested, workspace.admitted_at),
        ("placed", workspace.admitted_at, workspace.placed_at),
        *prepared,
        ("starting", workspace.began_at if at_engine else handed_over, launched or ready),
        *([("answering", launched, ready)] if launched is not None else []),
        ("ready", requested if ready else None, ready),
    ]
    labels = labels or stage_labels()
    if at_engine:
        labels = {**labels, "placed": labels["handed_over"]}
    moving = workspace.state in _MOVING
    # Whether the next unfinished stage is the current one.
    is_next = moving or (ready is None and workspace.state in _BROKEN)
    rows: list[StartStage] = []
    for key, began, ended in spans:
        if began is not None and ended is not None:
            by = workspace.approved_by if key == "approved" else ""
            rows.append(StartStage(key, labels[key], "done", began, ended, by))
        elif is_next:
            rows.append(StartStage(key, labels[key], "current" if moving else "failed", began))
            is_next = False
        else:
            rows.append(_pending_stage(key, labels[key]))
    return rows
