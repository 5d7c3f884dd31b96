"""Reads of workspaces, as the actor may see them."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from functools import lru_cache
from uuid import UUID

from django.db.models import QuerySet
from django.utils import timezone
from django.utils.translation import get_language
from django.utils.translation import gettext as _

from portal.accounts.models import User
from portal.accounts.selectors import chargeable_teams
from portal.common.errors import NotFound
from portal.common.reasons.codes import WorkspaceCode
from portal.common.reasons.reason import Reason
from portal.environments.selectors import LONG
from portal.events.kinds import AuditKind
from portal.events.models import Event
from portal.workspaces.lifecycle import LIVE, State
from portal.workspaces.models import IdempotencyKey, Workspace, WorkspaceQuerySet
from portal.workspaces.policies import visible_to


def workspaces_for(actor: User) -> WorkspaceQuerySet:
    """All that the actor may see, newest first, with what a list shows: no query for each row."""
    return (
        visible_to(actor, Workspace.objects.all())
        .select_related("owner", "team", "template", "flavor", "flavor__pool", "pool")
        .select_related("queue_entry", "status", "preemption", "environment_version__environment")
        .defer(*(f"environment_version__{name}" for name in LONG))
        .order_by("-created_at", "-id")
    )


def own_live(actor: User) -> WorkspaceQuerySet:
    """The actor's own workspaces that have not been deleted."""
    return workspaces_for(actor).live().filter(owner=actor)


def workspace_by_id(actor: User, workspace_id: UUID) -> Workspace:
    """The workspace, or `NotFound` when there is none or the actor may not see it."""
    workspace = workspaces_for(actor).filter(pk=workspace_id).first()
    if workspace is None:
        raise NotFound(Reason(WorkspaceCode.NOT_VISIBLE))
    return workspace


def events_of(workspace: Workspace, *, after: int = 0) -> QuerySet[Event]:
    """The workspace's events, oldest first, those after event id `after`."""
    return Event.objects.filter(workspace=workspace, pk__gt=after).order_by("pk")


def failed_starts(workspace: Workspace) -> int:
    """How many starts of the workspace have failed since it was last ready."""
    ready = Event.objects.filter(workspace=workspace, kind=AuditKind.WORKSPACE_READY).order_by("-pk").first()
    return events_of(workspace, after=ready.pk if ready else 0).filter(kind=AuditKind.WORKSPACE_FAIL).count()


def made_with(actor: User, key: str) -> Workspace | None:
    """The workspace that the actor made with this idempotency key, unless it has been deleted."""
    found = IdempotencyKey.objects.filter(user=actor, key=key, workspace__state__in=LIVE).first()
    return found.workspace if found is not None else None


def last_choice(actor: User) -> Workspace | None:
    """The actor's most recent request whose template and flavor can still be had: the next default."""
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
class Stage:
    """One step of the way to a usable workspace.

    `state` is `done`, `current`, `failed` or `todo`; `seconds` is how long it took, or has been taking
    since `began_at`. Of the last stage it is the whole way from the request.
    """

    key: str
    label: str
    state: str
    began_at: datetime | None = None
    seconds: float | None = None

    @property
    def state_label(self) -> str:
        words = {
            "done": _("done"),
            "current": _("under way"),
            "failed": _("failed"),
            "todo": _("still to come"),
        }
        return words[self.state]


@lru_cache(maxsize=16)
def _stage_labels(_language: str) -> dict[str, str]:
    """The stages in the present language; a list asks for them row by row."""
    return {
        "requested": _("Requested"),
        "admitted": _("Admitted"),
        "placed": _("Placed"),
        "checked": _("Checked"),
        "starting": _("Starting"),
        "ready": _("Ready"),
    }


def stages(workspace: Workspace) -> list[Stage]:
    """Requested → Admitted → Placed → (Checked →) Starting → Ready, with the duration of each."""
    requested, ready = workspace.requested_at, workspace.ready_at
    checks = (workspace.checks_began_at, workspace.checks_ended_at)
    checked = workspace.checks_began_at is not None
    ways: list[tuple[str, datetime | None, datetime | None]] = [
        ("requested", requested, requested),
        ("admitted", requested, workspace.admitted_at),
        ("placed", workspace.admitted_at, workspace.placed_at),
        *([("checked", *checks)] if checked else []),
        # Starting is over when the app has answered, not when its process is there.
        ("starting", checks[1] if checked else workspace.placed_at, ready),
        ("ready", requested if ready else None, ready),
    ]
    labels = _stage_labels(get_language())
    moving = workspace.state in {State.PENDING, State.PROVISIONING}
    broken = ready is None and workspace.state in {State.FAILED, State.TERMINATING}
    found: list[Stage] = []
    for key, began, ended in ways:
        label = labels[key]
        if began is not None and ended is not None:
            found.append(Stage(key, label, "done", began, (ended - began).total_seconds()))
        elif (moving or broken) and all(stage.state == "done" for stage in found):
            seconds = (timezone.now() - began).total_seconds() if moving and began else None
            found.append(Stage(key, label, "current" if moving else "failed", began, seconds))
        else:
            found.append(Stage(key, label, "todo"))
    return found
