"""Completes team deletions: once workspaces and homes are gone, deletes templates, environments and the team.

Each step is one transaction and is repeated until it succeeds, so a crash leaves no team half deleted.
"""

from __future__ import annotations

import logging

from django.db import transaction
from django.db.models import Exists, OuterRef, QuerySet

from portal.catalog import entries
from portal.catalog.environments import services as environments
from portal.catalog.environments.models import Environment
from portal.catalog.models import Template
from portal.common.actors import SYSTEM
from portal.people.accounts import teams
from portal.people.accounts.domain_events import TeamDeletionStarted
from portal.people.accounts.models import Team
from portal.workspaces.homes import deletions
from portal.workspaces.models import Workspace

log = logging.getLogger(__name__)


def team_deletion_started(event: TeamDeletionStarted) -> None:
    """Complete the deletion at once if the team has neither workspaces nor homes."""
    if _due().filter(pk=event.team.pk).exists():
        _finish(event.team)


def sweep() -> int:
    """Complete the deletions that need not wait any more, and return their number."""
    ended = 0
    for team in _due().order_by("deletion_started_at", "pk"):
        try:
            ended += _finish_if_due(team)
        except Exception:
            # One team must not block the others; it is retried with the next sweep.
            log.exception("the deletion of the team %s did not end", team.slug)
    return ended


def _due() -> QuerySet[Team]:
    return Team.objects.filter(
        ~Exists(Workspace.objects.live().filter(team=OuterRef("pk"))),
        ~Exists(deletions.waiting(team=OuterRef("pk"))),
        deletion_started_at__isnull=False,
    )


@transaction.atomic
def _finish_if_due(team: Team) -> bool:
    """Complete the team's deletion if nothing is left. Locks the team, so that only one sweep does this."""
    Team.objects.select_for_update(no_key=True).filter(pk=team.pk).first()
    if not _due().filter(pk=team.pk).exists():
        return False
    _finish(team)
    return True


def _finish(team: Team) -> None:
    for template in Template.objects.filter(team=team, deleted_at=None).order_by("slug"):
        entries.delete(actor=SYSTEM, entry=template)
    for environment in Environment.objects.filter(team=team).order_by("slug"):
        environments.delete(actor=SYSTEM, environment=environment)
    teams.finish_deletion(team=team)
