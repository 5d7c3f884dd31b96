"""Egress policy of teams, with history and audit entries."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from django.db import transaction
from django.utils import timezone

from portal.common import etags
from portal.common.actors import SYSTEM, SystemActor
from portal.common.errors import InvalidInput, NotAllowed
from portal.common.events import services as events
from portal.common.events.kinds import AuditKind
from portal.common.history import selectors as history
from portal.common.history.models import ChangeAction, Revision, SubjectKind
from portal.common.history.services import save_revision
from portal.common.json_input import storable
from portal.common.reasons.reason import Reason
from portal.people.accounts import policies
from portal.people.accounts.codes import AccountCode
from portal.people.accounts.models import Team, TeamEgress, User
from provisioning.egress_rules import EgressPolicy, no_looser, policy_of
from provisioning.errors import InvalidSpec

MAX_ALLOW = 4000


def document_of(team: Team) -> dict[str, Any]:
    """Return the document of a team for its history."""
    return {"egress": team.egress, "egress_allow": team.egress_allow}


@transaction.atomic
def set_egress(
    *,
    actor: User | SystemActor,
    team: Team,
    egress: str | None = None,
    egress_allow: str | None = None,
    expected: frozenset[str] = etags.ANY,
    restored_from: int | None = None,
) -> Team:
    """Set the egress policy of the team's workspaces. None leaves a part unchanged.

    Running workspaces keep their policy until the next start. Operators may set anything, team owners only a
    policy that is at least as strict. Without a change nothing is written. Raises `NotAllowed`,
    `InvalidInput`, `PreconditionFailed`.
    """
    policies.require_manage_team(actor, team)
    row = Team.objects.select_for_update().get(pk=team.pk)
    etags.require_expected(expected, row, name=row.name, by=changed_by(row))
    before = document_of(row)
    old = _policy(row)
    row.egress = row.egress if egress is None else egress
    row.egress_allow = row.egress_allow if egress_allow is None else egress_allow.strip()
    after = document_of(row)
    changed = [difference.field for difference in history.differences(before, after)]
    if not changed:
        return row
    new = _validated_policy(row)
    if not policies.may_loosen_egress(actor) and not _is_as_strict(new, old):
        raise NotAllowed(Reason(AccountCode.EGRESS_LOOSER, {"team": row.name}))
    row.updated_at = timezone.now()
    row.save(update_fields=["egress", "egress_allow", "updated_at"])
    save_revision(
        actor=actor,
        kind=SubjectKind.TEAM,
        key=row.pk,
        act=ChangeAction.CHANGED if restored_from is None else ChangeAction.RESTORED,
        data=after,
        before=before,
        before_at=row.created_at,
        restored_from=restored_from,
    )
    events.record(
        actor=actor,
        kind=AuditKind.TEAM_EGRESS_SET,
        team=row,
        message=f"changed the egress rules of {row.name}",
        data={"before": before, "after": after},
    )
    return row


def restore(
    *, actor: User | SystemActor, team: Team, number: int, expected: frozenset[str] = etags.ANY
) -> Team:
    """Restore an earlier version as a new change. Raises like `set_egress`, and `NotFound`."""
    policies.require_manage_team(actor, team)
    data = history.revision(SubjectKind.TEAM, team.pk, number).data
    return set_egress(
        actor=actor,
        team=team,
        egress=data["egress"],
        egress_allow=data["egress_allow"],
        expected=expected,
        restored_from=number,
    )


def changed_by(team: Team) -> str:
    """Return the display name of the actor who last changed the policy."""
    return history.last_label(SubjectKind.TEAM, team.pk) or SYSTEM.label


def versions(team: Team, *, at_most: int) -> list[tuple[Revision, list[history.Difference]]]:
    """Return the latest versions with their changes."""
    rows = list(history.revisions(SubjectKind.TEAM, team.pk)[: at_most + 1])
    return history.revisions_with_changes(rows)[:at_most]


def with_policy_at(team: Team, moment: datetime | None) -> Team:
    """Return the team with its policy as of `moment`, for running workspaces. Do not save it."""
    if moment is None or team.updated_at <= moment:
        return team
    data = history.document_at(SubjectKind.TEAM, team.pk, moment)
    if data is None:
        return team
    return Team(
        pk=team.pk, slug=team.slug, name=team.name, **{name: data[name] for name in document_of(team)}
    )


def _policy(team: Team) -> EgressPolicy | None:
    """Return the policy, or None if it restricts nothing. Raises `InvalidInput`."""
    if not team.egress:
        return None
    try:
        return policy_of(team.egress, team.egress_allow if team.egress == TeamEgress.LIST else "")
    except InvalidSpec:
        reason = Reason(AccountCode.EGRESS_NOT_VALID)
        raise InvalidInput(reason, errors={"egress_allow": [reason]}) from None


def _validated_policy(team: Team) -> EgressPolicy | None:
    if team.egress not in TeamEgress.values:
        reason = Reason(AccountCode.EGRESS_NOT_VALID)
        raise InvalidInput(reason, errors={"egress": [reason]})
    if len(team.egress_allow) > MAX_ALLOW or not storable(team.egress_allow):
        reason = Reason(AccountCode.EGRESS_NOT_VALID)
        raise InvalidInput(reason, errors={"egress_allow": [reason]})
    return _policy(team)


def _is_as_strict(new: EgressPolicy | None, old: EgressPolicy | None) -> bool:
    if old is None:
        return True
    return new is not None and no_looser(new, old)
