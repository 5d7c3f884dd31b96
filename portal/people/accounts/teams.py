"""Rename, archive, restore and delete teams. Each writes an audit entry in the same transaction."""

from __future__ import annotations

from collections.abc import Collection

from django.core.exceptions import ValidationError
from django.db import transaction
from django.utils import timezone

from portal.common import etags
from portal.common.actors import SystemActor
from portal.common.domain_events import emit
from portal.common.errors import InvalidInput
from portal.common.events import services as events
from portal.common.events.kinds import AuditKind
from portal.common.reasons.reason import Reason
from portal.common.texts import strip_nul
from portal.people.accounts import policies
from portal.people.accounts.codes import AccountCode
from portal.people.accounts.domain_events import TeamArchived, TeamsChanged
from portal.people.accounts.models import Team, User
from portal.people.accounts.team_contents import team_contents


@transaction.atomic
def rename(
    *, actor: User | SystemActor, team: Team, name: str, expected: Collection[str] = etags.ANY
) -> Team:
    """Change the name. The slug stays. Idempotent.

    Raises `NotAllowed`, `InvalidInput` and `PreconditionFailed`.
    """
    policies.require_manage_team(actor, team)
    team = _locked(team)
    etags.require_expected(expected, team, *state_of(team), name=team.name)
    before, team.name = team.name, strip_nul(name).strip()
    if team.name == before:
        return team
    try:
        team.full_clean()
    except ValidationError as error:
        raise InvalidInput(Reason(AccountCode.TEAM_NOT_VALID), errors=error.message_dict) from error
    team.save(update_fields=["name"])
    emit(TeamsChanged())
    events.record(
        actor=actor,
        kind=AuditKind.TEAM_RENAMED,
        team=team,
        message=f"renamed the team {before} to {team.name}",
        data={"before": before, "after": team.name},
    )
    return team


@transaction.atomic
def archive(*, actor: User | SystemActor, team: Team) -> Team:
    """Stop the team's workspaces and allow no new ones, until it is restored.

    Cancels its open requests and its reservations. Keeps members, workspaces, files, quota, budgets and
    records. Idempotent. Raises `NotAllowed`.
    """
    policies.require_manage_team(actor, team)
    team = _locked(team)
    if team.archived_at is not None:
        return team
    team.archived_at = timezone.now()
    team.save(update_fields=["archived_at"])
    events.record(
        actor=actor, kind=AuditKind.TEAM_ARCHIVED, team=team, message=f"archived the team {team.name}"
    )
    emit(TeamArchived(team=team, actor=actor))
    return team


@transaction.atomic
def restore(*, actor: User | SystemActor, team: Team) -> Team:
    """Let members of an archived team start workspaces again. Idempotent. Raises `NotAllowed`."""
    policies.require_manage_team(actor, team)
    team = _locked(team)
    if team.archived_at is None:
        return team
    team.archived_at = None
    team.save(update_fields=["archived_at"])
    events.record(
        actor=actor, kind=AuditKind.TEAM_RESTORED, team=team, message=f"restored the team {team.name}"
    )
    return team


@transaction.atomic
def delete(*, actor: User | SystemActor, team: Team, expected: Collection[str] = etags.ANY) -> None:
    """Delete a team that was never used, with its members' roles, quota, budget and secrets. For operators.

    Raises `NotAllowed`, `PreconditionFailed`, and `StateConflict` for a team with records: it can be
    archived.
    """
    policies.require_operator(actor)
    team = Team.objects.select_for_update().get(pk=team.pk)
    etags.require_expected(expected, team, *state_of(team), name=team.name)
    team_contents().require_unused(team)
    data = {"slug": team.slug, "name": team.name}
    team.delete()
    emit(TeamsChanged())
    events.record(
        actor=actor, kind=AuditKind.TEAM_DELETED, message=f"deleted the team {team.name}", data=data
    )


def state_of(team: Team) -> tuple[object, ...]:
    """Return what a version of the team covers besides its network access (`portal.common.etags`)."""
    return (team.name, team.archived_at)


def _locked(team: Team) -> Team:
    return Team.objects.select_for_update(no_key=True).get(pk=team.pk)
