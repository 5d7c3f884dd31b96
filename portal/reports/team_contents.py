"""Counts a team's workspaces and other contents, for the pages that archive and delete the team."""

from __future__ import annotations

from django.utils import timezone

from portal.catalog.environments.models import Environment
from portal.catalog.models import Template
from portal.notify.channels.models import Channel
from portal.notify.webhooks.models import Endpoint
from portal.people.accounts.models import ApiToken, Team
from portal.people.accounts.team_contents import TeamContents, TeamContentsSource
from portal.quota.ledger.models import Budget, LedgerAccount
from portal.quota.limits.models import MemberCap, Quota
from portal.workspaces.homes import deletions
from portal.workspaces.lifecycle import STOPPABLE
from portal.workspaces.models import Workspace
from portal.workspaces.secrets.models import Secret


class ContentsOfTeam(TeamContentsSource):
    """Counts a team's contents in all apps."""

    def contents_of(self, team: Team) -> TeamContents:
        workspaces = Workspace.objects.live().filter(team=team)
        accounts = team.service_accounts.not_deleted()
        tokens = ApiToken.objects.valid_at(timezone.now()).filter(owner__in=accounts)
        return TeamContents(
            members=team.memberships.filter(user__owning_team=None).count(),
            service_accounts=accounts.count(),
            tokens=tokens.count(),
            workspaces=workspaces.count(),
            active=workspaces.filter(state__in=STOPPABLE).count(),
            homes=len(deletions.homes_of_team(team)),
            templates=Template.objects.filter(team=team, deleted_at=None).count(),
            environments=Environment.objects.filter(team=team).count(),
            secrets=Secret.objects.filter(team=team).count(),
            webhooks=Endpoint.objects.filter(team=team).count(),
            channels=Channel.objects.filter(team=team).count(),
            quotas=Quota.objects.filter(team=team).count() + MemberCap.objects.filter(team=team).count(),
            has_gpu_hours=LedgerAccount.objects.filter(team=team).exists(),
            has_budget=Budget.objects.filter(team=team).exists(),
        )
