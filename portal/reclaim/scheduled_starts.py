"""Restarts each workspace that a schedule has stopped, once, through admission, and notifies its owner.

A later stop or start by a user takes precedence. Can be interrupted: the scheduled stop is deleted in the
same transaction as the start.
"""

from __future__ import annotations

import logging
from datetime import UTC, datetime
from uuid import UUID

from django.db import transaction
from django.db.models import F, Q
from django.utils import timezone
from django.utils.translation import gettext as _

from portal.common.actors import SYSTEM
from portal.common.errors import NotFound, PortalError
from portal.common.events import services as events
from portal.reclaim.effective import PolicySet, policy_set, scope_keys_of
from portal.reclaim.models import ScheduledStop
from portal.workspaces import services
from portal.workspaces.domain_events import StopRequested
from portal.workspaces.lifecycle import DesiredState, State
from portal.workspaces.models import Workspace
from portal.workspaces.transitions import lock_workspace

log = logging.getLogger(__name__)
STOPPED_STATES = (State.STOPPING, State.STOPPED)


def record_scheduled_stop(workspace: Workspace) -> None:
    """Record that a schedule stops this locked workspace now."""
    ScheduledStop.objects.update_or_create(
        workspace=workspace, defaults={"generation": workspace.generation, "stopped_at": timezone.now()}
    )


def cancel_scheduled_start(event: StopRequested) -> None:
    """Forget the scheduled stop because a user requested a stop, so that no schedule starts the workspace."""
    ScheduledStop.objects.filter(workspace=event.workspace.pk).delete()


def start_due(policies: PolicySet, now: datetime) -> int:
    """Start the workspaces that are due, and return their number. Two queries if none is due."""
    # Rows are obsolete after a start, deletion or failure.
    ScheduledStop.objects.exclude(
        workspace__state__in=STOPPED_STATES,
        workspace__desired_state=DesiredState.STOPPED,
        generation=F("workspace__generation"),
    ).delete()
    if not any(terms.week is not None and terms.week.start_at for terms in policies.terms.values()):
        return 0
    rows = ScheduledStop.objects.filter(workspace__state=State.STOPPED).select_related("workspace")
    due = [row.workspace_id for row in rows.order_by("stopped_at") if _is_due(row, policies, now)]
    return sum(_start(workspace_id, policies, now) for workspace_id in due)


def _is_due(row: ScheduledStop, policies: PolicySet, now: datetime) -> bool:
    stopped_s, now_s = row.stopped_at.timestamp(), now.timestamp()
    weeks = policies.policy(scope_keys_of(row.workspace)).weeks
    return any(week.start_due(stopped_s, now_s) for week in weeks)


def _start(workspace_id: UUID, policies: PolicySet, now: datetime) -> bool:
    """Start a workspace if that is still due once locked. Returns whether it was started."""
    try:
        with transaction.atomic():
            workspace = lock_workspace(workspace_id)
            row = ScheduledStop.objects.filter(
                Q(generation=workspace.generation), workspace=workspace_id
            ).first()
            is_stopped = (workspace.state, workspace.desired_state) == (State.STOPPED, DesiredState.STOPPED)
            if row is None or not is_stopped or not _is_due(row, policies, now):
                return False
            row.delete()
            try:
                with transaction.atomic():
                    services.start(actor=SYSTEM, workspace_id=workspace_id)
            except PortalError as error:
                _notify(workspace, _("%(name)s was not started"), error.sentence)
                return False
            _notify(workspace, _("%(name)s starts again"), _("The workspace was stopped by a schedule."))
            return True
    except NotFound:
        return False
    except Exception:
        # A failure must not block other workspaces; the next pass retries.
        log.exception("could not start workspace %s on schedule", workspace_id)
        return False


def _notify(workspace: Workspace, title: str, body: str) -> None:
    events.notify(
        [workspace.owner],
        kind="workspace.scheduled_start",
        title=title % {"name": workspace.name},
        body=body,
        url=f"/workspaces/{workspace.pk}/",
    )


def next_start_of(workspace: Workspace) -> datetime | None:
    """Return when a schedule starts the workspace that a schedule has stopped, or None."""
    if workspace.state not in STOPPED_STATES or workspace.desired_state != DesiredState.STOPPED:
        return None
    if not ScheduledStop.objects.filter(workspace=workspace, generation=workspace.generation).exists():
        return None
    now_s = timezone.now().timestamp()
    weeks = policy_set().policy(scope_keys_of(workspace)).weeks
    starts = [moment for week in weeks if (moment := week.next_start(now_s)) is not None]
    return datetime.fromtimestamp(min(starts), UTC) if starts else None
