"""Writes service accounts of teams.

`tokens` creates their tokens. `deactivation` and `users` deactivate and delete the accounts.
"""

from __future__ import annotations

from django.core.exceptions import ValidationError
from django.db import transaction

from portal.common import etags
from portal.common.actors import SystemActor
from portal.common.errors import InvalidInput, StateConflict
from portal.common.events import services as events
from portal.common.events.kinds import AuditKind
from portal.common.names import SERVICE_PREFIX, username_validator
from portal.common.reasons.reason import Reason
from portal.common.texts import strip_nul
from portal.people.accounts import deactivation, policies, sessions
from portal.people.accounts.codes import AccountCode
from portal.people.accounts.models import Membership, Role, Team, User

MAX_PER_TEAM = 200


@transaction.atomic
def create(*, actor: User | SystemActor, team: Team, name: str, description: str = "") -> User:
    """Create a service account, with or without `SERVICE_PREFIX` in `name`. For team owners and operators.

    Raises `NotAllowed`, `InvalidInput` (name, description) and `StateConflict` (too many in the team, or
    the team is being deleted).
    """
    policies.require_manage_team(actor, team)
    policies.require_not_being_deleted(Team.objects.select_for_update().get(pk=team.pk))
    if User.objects.not_deleted().filter(owning_team=team).count() >= MAX_PER_TEAM:
        most = {"team": team.name, "most": MAX_PER_TEAM}
        raise StateConflict(Reason(AccountCode.TOO_MANY_SERVICE_ACCOUNTS, most))
    short = strip_nul(name).strip().lower().removeprefix(SERVICE_PREFIX)
    user = User(
        username=f"{SERVICE_PREFIX}{short}" if short else "",
        owning_team=team,
        description=_description(description),
        mail_notices=False,
    )
    user.set_unusable_password()
    try:
        if short:
            username_validator(short)
        user.full_clean(exclude=["password"])
    except ValidationError as error:
        problems = error.message_dict if hasattr(error, "error_dict") else {"username": error.messages}
        problems["name"] = [*problems.pop("username", []), *problems.pop("__all__", [])]
        raise InvalidInput(Reason(AccountCode.USER_NOT_VALID), errors=problems) from error
    user.save(force_insert=True)
    Membership.objects.create(team=team, user=user, role=Role.MEMBER)
    events.record(
        actor=actor,
        kind=AuditKind.SERVICE_ACCOUNT_CREATED,
        team=team,
        message=f"created the service account {user.username} of {team.name}",
        targets=sessions.audit_targets(user),
        data={"username": user.username},
    )
    return user


@transaction.atomic
def describe(
    *, actor: User | SystemActor, user: User, description: str, expected: frozenset[str] = etags.ANY
) -> User:
    """Set the description. Idempotent. For team owners and operators.

    Raises `NotAllowed`, `InvalidInput`, `PreconditionFailed`.
    """
    assert user.owning_team is not None
    policies.require_manage_team(actor, user.owning_team)
    cleaned = _description(description)
    user = deactivation.lock_user(user)
    etags.require_expected(expected, user, name=user.username)
    if user.description != cleaned:
        user.description = cleaned
        user.save(update_fields=["description"])
        events.record(
            actor=actor,
            kind=AuditKind.SERVICE_ACCOUNT_CHANGED,
            team=user.owning_team,
            message=f"changed the description of {user.username}",
            targets=sessions.audit_targets(user),
            data={"username": user.username, "description": cleaned},
        )
    return user


def _description(text: str) -> str:
    cleaned = strip_nul(text).strip()
    if len(cleaned) > 200:
        reason = Reason(AccountCode.DESCRIPTION_TOO_LONG, {"most": 200})
        raise InvalidInput(reason, errors={"description": [reason]})
    return cleaned
