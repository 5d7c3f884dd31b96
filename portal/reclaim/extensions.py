"""Limits extensions by policies, budgets and reservations, and withdraws notices after extensions."""

from __future__ import annotations

from datetime import datetime, timedelta

from django.utils import timezone

from portal.common.errors import StateConflict
from portal.common.problem_codes import ProblemCode
from portal.common.reasons.reason import Reason
from portal.quota.ledger.selectors import teams_without_hours
from portal.quota.reservations.models import Reservation, ReservationState
from portal.reclaim import keeping
from portal.reclaim.codes import LifetimeCode
from portal.reclaim.effective import effective_policy
from portal.reclaim.engine.ladder import KEEPABLE, Cause
from portal.reclaim.models import ReclaimNotice
from portal.workspaces.domain_events import WorkspaceExtended
from portal.workspaces.extension_policy import ExtensionPolicy
from portal.workspaces.models import Workspace

BOUNDS = frozenset({Cause.LONGEST, Cause.BUDGET})
"""Causes that an extension does not affect, so that their notices stay."""


class LimitExtensions(ExtensionPolicy):
    """Limits extensions by reclaim policies, GPU-hours and reservations."""

    def longest_s(self, workspace: Workspace) -> int | None:
        return effective_policy(workspace).policy.longest_s

    def require_extendable(self, workspace: Workspace, until: datetime) -> None:
        team = workspace.team
        if workspace.accelerated and team.slug in teams_without_hours():
            raise StateConflict(
                Reason(LifetimeCode.HOURS_SPENT, {"team": team.name}), code=ProblemCode.HOURS_SPENT
            )
        _require_not_booked(workspace, until)


def _require_not_booked(workspace: Workspace, until: datetime) -> None:
    """Raise `StateConflict` if a non-preemptible workspace would run into another team's reservation."""
    ends_at = workspace.ends_at
    if workspace.preemptible or ends_at is None:
        return
    booked = (
        Reservation.objects.filter(state=ReservationState.BOOKED, starts_at__lt=until, ends_at__gt=ends_at)
        .exclude(team=workspace.team_id)
        .order_by("starts_at")
    )
    for reservation in booked:
        if any(workspace.amounts.get(name) for name in reservation.amounts):
            reason = Reason(LifetimeCode.BOOKED_BEFORE, {"until": reservation.starts_at.isoformat()})
            raise StateConflict(reason, code=ProblemCode.BOOKED_BEFORE)


def workspace_extended(event: WorkspaceExtended) -> None:
    """Withdraw notices after an extension, except for `BOUNDS`."""
    workspace = event.workspace
    notices = ReclaimNotice.objects.filter(workspace=workspace.pk)
    if notices.filter(cause__in=KEEPABLE).exists():
        # An extension also counts as keeping, so that the notice does not return at once.
        seconds = min(event.seconds, keeping.MAX_KEEP_S)
        keeping.ignore_idleness(workspace, timezone.now() + timedelta(seconds=seconds))
    notices.exclude(cause__in=BOUNDS).delete()
    notices.update(ends_version=workspace.ends_version)
