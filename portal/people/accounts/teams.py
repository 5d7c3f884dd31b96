"""Renames, configures, archives, restores and deletes teams, with an audit entry for each change."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import asdict

from django.core.exceptions import ValidationError
from django.db import transaction
from django.utils import timezone

from portal.common import etags
from portal.common.actors import SYSTEM, SystemActor
from portal.common.domain_events import emit
from portal.common.errors import InvalidInput, StateConflict
from portal.common.events import services as events
from portal.common.events.kinds import AuditKind
from portal.common.reasons.reason import Reason
from portal.common.texts import strip_nul
from portal.people.accounts import policies, users
from portal.people.accounts.codes import AccountCode
from portal.people.accounts.domain_events import (
    TeamArchived,
    TeamDeleted,
    TeamDeletionStarted,
    TeamsChanged,
)
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
def set_member_shares(
    *, actor: User | SystemActor, team: Team, on: bool, expected: Collection[str] = etags.ANY
) -> Team:
    """Set whether members take turns in the queue: those who used least come first. Idempotent.

    Raises `NotAllowed` and `PreconditionFailed`.
    """
    policies.require_manage_team(actor, team)
    team = _locked(team)
    etags.require_expected(expected, team, *state_of(team), name=team.name)
    if team.member_shares == on:
        return team
    team.member_shares = on
    team.save(update_fields=["member_shares"])
    emit(TeamsChanged())
    events.record(
        actor=actor,
        kind=AuditKind.TEAM_MEMBER_SHARES_SET,
        team=team,
        message=f"{'enabled' if on else 'disabled'} the queue order of members for {team.name}",
        data={"before": not on, "after": on},
    )
    return team


@transaction.atomic
def change(
    *,
    actor: User | SystemActor,
    team: Team,
    name: str | None = None,
    member_shares: bool | None = None,
    expected: Collection[str] = etags.ANY,
) -> Team:
    """Change several settings at once; None leaves one unchanged. Idempotent.

    Raises `NotAllowed`, `InvalidInput` and `PreconditionFailed`.
    """
    if name is not None:
        team = rename(actor=actor, team=team, name=name, expected=expected)
        expected = etags.ANY
    if member_shares is not None:
        team = set_member_shares(actor=actor, team=team, on=member_shares, expected=expected)
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
    """Let members of an archived team start workspaces again. Idempotent.

    Raises `NotAllowed`, and `StateConflict` once the deletion of the team has started.
    """
    policies.require_manage_team(actor, team)
    team = _locked(team)
    policies.require_not_being_deleted(team)
    if team.archived_at is None:
        return team
    team.archived_at = None
    team.save(update_fields=["archived_at"])
    events.record(
        actor=actor, kind=AuditKind.TEAM_RESTORED, team=team, message=f"restored the team {team.name}"
    )
    return team


@transaction.atomic
def delete(
    *,
    actor: User | SystemActor,
    team: Team,
    delete_homes: bool = False,
    expected: Collection[str] = etags.ANY,
) -> Team:
    """Start the deletion of an archived team, for operators. Idempotent.

    Members, service accounts, tokens, secrets, webhooks and limits end at once. Workspaces and home folders
    are deleted next, then `finish_deletion` completes the deletion, at once if there are none.

    Raises `NotAllowed`, `PreconditionFailed`, and `StateConflict` for a team that is not archived, or has
    home folders without `delete_homes`.
    """
    policies.require_operator(actor)
    team = _locked(team)
    if team.deletion_started_at is not None:
        return team
    etags.require_expected(expected, team, *state_of(team), name=team.name)
    if team.archived_at is None:
        reason = Reason(AccountCode.TEAM_NOT_ARCHIVED, {"team": team.name})
        raise StateConflict(reason, code=reason.code)
    contents = team_contents().contents_of(team)
    if contents.homes and not delete_homes:
        reason = Reason(AccountCode.TEAM_HAS_HOMES, {"team": team.name, "count": contents.homes})
        raise StateConflict(reason, code=reason.code)
    team.deletion_started_at = timezone.now()
    team.save(update_fields=["deletion_started_at"])
    events.record(
        actor=actor,
        kind=AuditKind.TEAM_DELETION_STARTED,
        team=team,
        message=f"started to delete the team {team.name}",
        data={"slug": team.slug, "name": team.name, **asdict(contents)},
    )
    for account in team.service_accounts.not_deleted().order_by("username"):
        users.delete(actor=actor, user=account, delete_workspaces=True, delete_homes=True)
    team.memberships.all().delete()
    emit(TeamDeletionStarted(team=team, actor=actor))
    team.refresh_from_db()
    return team


@transaction.atomic
def finish_deletion(*, team: Team) -> None:
    """End the deletion of a team whose workspaces and homes are gone. Its slug can then be used again."""
    team = _locked(team)
    former_slug, team.slug = team.slug, team.slug_when_deleted
    team.deleted_at = timezone.now()
    team.save(update_fields=["slug", "deleted_at"])
    emit(TeamDeleted(team=team, former_slug=former_slug))
    emit(TeamsChanged())
    events.record(
        actor=SYSTEM,
        kind=AuditKind.TEAM_DELETED,
        team=team,
        message=f"deleted the team {team.name}",
        data={"slug": former_slug, "name": team.name, "slug_in_reports": team.slug},
    )


def state_of(team: Team) -> tuple[object, ...]:
    """Return the state for a team's version (`portal.common.etags`), without the egress policy."""
    return (team.name, team.member_shares, team.archived_at, team.deletion_started_at)


def _locked(team: Team) -> Team:
    return Team.objects.select_for_update(no_key=True).get(pk=team.pk)
