"""Writes users: invitation, joining, changes, passwords, deletion. Each writes an audit entry.

Deactivation is in `deactivation`, sessions are in `sessions`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial

from django.conf import settings
from django.contrib.auth.password_validation import validate_password
from django.core.exceptions import ValidationError
from django.db import transaction
from django.http import HttpRequest
from django.utils import timezone

from portal.common import etags
from portal.common.actors import SYSTEM, SystemActor
from portal.common.domain_events import emit
from portal.common.errors import InvalidInput, StateConflict
from portal.common.events import services as events
from portal.common.events.kinds import AuditKind
from portal.common.events.models import Notification
from portal.common.reasons.reason import Reason
from portal.common.texts import strip_nul
from portal.people.accounts import deactivation, links, mails, policies, services, sessions
from portal.people.accounts.codes import AccountCode
from portal.people.accounts.deletion_policy import deletion_policy
from portal.people.accounts.domain_events import UserDeleted
from portal.people.accounts.links import LinkKind
from portal.people.accounts.mfa import services as mfa
from portal.people.accounts.models import ROLE_FIELDS, AccountState, ApiToken, Role, SiteRole, Team, User

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Link:
    """A link for a user, which works once until `expires_at`. `mailed` says whether it was e-mailed."""

    user: User
    url: str = field(repr=False)
    expires_at: datetime
    mailed: bool


RolesByTeam = Mapping[str, str]
"""Roles by team slug."""


@transaction.atomic
def create(
    *,
    actor: User | SystemActor,
    username: str,
    email: str = "",
    teams: RolesByTeam | None = None,
    roles: Sequence[str] = (),
    password: str = "",
    first_name: str = "",
    last_name: str = "",
    linked: bool = False,
    require_allowed: Callable[[User | SystemActor], None] = policies.require_administrator,
) -> User:
    """Create an account. Without a password, the user sets one through a link.

    With `linked`, the user signs in through a provider. `require_allowed` raises `NotAllowed` unless the
    actor may create it; the default permits administrators. Raises `InvalidInput` (name, address, teams,
    roles, password).
    """
    require_allowed(actor)
    site_roles = _roles(roles)
    roles_by_team = _teams(teams or {})
    user = User(
        username=strip_nul(username).strip(),
        email=strip_nul(email).strip(),
        first_name=first_name,
        last_name=last_name,
        linked=linked,
    )
    user.email_confirmed = bool(user.email)
    _set_roles(user, site_roles)
    if password:
        _set_password(user, password)
    else:
        user.set_unusable_password()
    _check(user)
    user.save(force_insert=True)
    role_names = ", ".join(site_roles) or "no role"
    events.record(
        actor=actor,
        kind=AuditKind.USER_JOINED if linked else AuditKind.USER_INVITED,
        message=f"created the account {user.username} with {role_names}",
        targets=sessions.audit_targets(user),
        data={"username": user.username, "roles": site_roles, "teams": dict(teams or {})},
    )
    default = _default_team()
    if default is not None and default not in roles_by_team:
        services.set_member(actor=SYSTEM, team=default, username=user.username, role=Role.MEMBER)
    for team, role in roles_by_team.items():
        services.set_member(actor=actor, team=team, username=user.username, role=role)
    return user


@transaction.atomic
def invite(
    *,
    actor: User | SystemActor,
    username: str,
    email: str = "",
    teams: RolesByTeam | None = None,
    roles: Sequence[str] = (),
) -> Link:
    """Create an account and a link to choose a password. Raises like `create`."""
    user = create(actor=actor, username=username, email=email, teams=teams, roles=roles)
    return make_link(user, LinkKind.INVITATION)


@transaction.atomic
def invite_again(*, actor: User | SystemActor, user: User) -> Link:
    """Create a new invitation link and invalidate earlier ones.

    Raises `NotAllowed`, and `StateConflict` if the user has joined.
    """
    policies.require_administrator(actor)
    policies.require_person(user)
    user = deactivation.lock_user(user)
    _require_active(user)
    if user.state != AccountState.INVITED:
        raise StateConflict(Reason(AccountCode.NOT_INVITED, {"username": user.username}))
    user.set_unusable_password()
    user.save(update_fields=["password"])
    events.record(
        actor=actor,
        kind=AuditKind.USER_INVITED,
        message=f"invited {user.username} again",
        targets=sessions.audit_targets(user),
        data={"username": user.username},
    )
    return make_link(user, LinkKind.INVITATION)


@transaction.atomic
def reset_password(*, actor: User | SystemActor, user: User) -> Link:
    """End a user's password and sessions, and create a link to choose a new password.

    Tokens stay valid. Raises `NotAllowed`, and `StateConflict` (deactivated; the last administrator).
    """
    policies.require_administrator(actor)
    policies.require_person(user)
    user = deactivation.lock_user(user)
    _require_active(user)
    policies.require_another_administrator(user)
    user.set_unusable_password()
    ended = sessions.end_all(user)
    user.save(update_fields=["password", "session_salt"])
    events.record(
        actor=actor,
        kind=AuditKind.USER_PASSWORD_RESET,
        message=f"invalidated the password of {user.username}",
        targets=sessions.audit_targets(user),
        data={"username": user.username, "sessions": ended},
    )
    return make_link(user, LinkKind.RESET)


@transaction.atomic
def end_sessions(*, actor: User | SystemActor, user: User, tokens: bool = False) -> int:
    """End all sessions of a user and, with `tokens`, revoke their tokens. Returns the number of sessions.

    For the user and for administrators. Raises `NotAllowed`.
    """
    if isinstance(actor, SystemActor) or actor.pk != user.pk:
        policies.require_administrator(actor)
    user = deactivation.lock_user(user)
    ended = sessions.end_all(user)
    user.save(update_fields=["session_salt"])
    revoked = deactivation.revoke_tokens(user) if tokens else 0
    events.record(
        actor=actor,
        kind=AuditKind.SESSION_ENDED,
        message=f"ended all sessions of {user.username}",
        targets=sessions.audit_targets(user),
        data={"username": user.username, "sessions": ended, "tokens": revoked},
    )
    return ended


@transaction.atomic
def change(
    *,
    actor: User | SystemActor,
    user: User,
    email: str | None = None,
    roles: Sequence[str] | None = None,
    teams: RolesByTeam | None = None,
    first_name: str | None = None,
    last_name: str | None = None,
    expected: frozenset[str] = etags.ANY,
) -> User:
    """Change address, first and last name, all site roles, or all memberships. None leaves a part unchanged.

    Raises `NotAllowed` unless the actor is an administrator, `InvalidInput`, `PreconditionFailed`, and
    `StateConflict` (the last administrator, the only owner of a team, workspaces in a team that the user
    would leave).
    """
    policies.require_administrator(actor)
    policies.require_person(user)
    user = deactivation.lock_user(user)
    etags.require_expected(expected, user, name=user.username)
    if user.deleted_at is not None:
        raise StateConflict(Reason(AccountCode.USER_DELETED, {"username": user.username}))
    changes: dict[str, object] = {}
    if email is not None and strip_nul(email).strip() != user.email:
        user.email = strip_nul(email).strip()
        user.email_confirmed = bool(user.email)
        changes["email"] = user.email
    for column, value in (("first_name", first_name), ("last_name", last_name)):
        if value is not None and value != getattr(user, column):
            setattr(user, column, value)
            changes[column] = value
    if roles is not None:
        site_roles = _roles(roles)
        if set(site_roles) != set(user.roles):
            if SiteRole.AUDITOR in site_roles:
                _require_no_work(user, teams)
            if SiteRole.ADMINISTRATOR not in site_roles:
                policies.require_another_administrator(user)
            _set_roles(user, site_roles)
            changes["roles"] = site_roles
    if changes:
        _check(user)
        user.save()
        events.record(
            actor=actor,
            kind=AuditKind.USER_CHANGED,
            message=f"changed {' and '.join(changes)} of {user.username}",
            targets=sessions.audit_targets(user),
            data={"username": user.username, **changes},
        )
    if teams is not None:
        _set_memberships(actor, user, teams)
    return user


def _require_no_work(user: User, roles_by_slug: RolesByTeam | None) -> None:
    """Require that a new auditor has only viewer memberships. Raises `StateConflict`."""
    working = user.memberships.exclude(role=Role.VIEWER)
    if roles_by_slug is not None:
        working = working.filter(
            team__slug__in=[slug for slug, role in roles_by_slug.items() if role != Role.VIEWER]
        )
    slugs = sorted(working.values_list("team__slug", flat=True))
    if slugs:
        params = {"username": user.username, "teams": slugs}
        raise StateConflict(Reason(AccountCode.AUDITOR_WORKS_IN_TEAMS, params))


def _set_memberships(actor: User | SystemActor, user: User, roles_by_slug: RolesByTeam) -> None:
    """Replace the user's memberships with `roles_by_slug`."""
    roles_by_team = _teams(roles_by_slug)
    roles = dict(user.memberships.values_list("team", "role"))
    if {team.pk: role for team, role in roles_by_team.items()} == roles:
        return
    if roles_by_team:
        _require_active(user)
    for team, role in roles_by_team.items():
        services.set_member(actor=actor, team=team, username=user.username, role=role)
    for membership in user.memberships.exclude(team__in=roles_by_team).select_related("team"):
        services.remove_member(actor=actor, team=membership.team, username=user.username)


@transaction.atomic
def delete(
    *,
    actor: User | SystemActor,
    user: User,
    delete_workspaces: bool = False,
    delete_homes: bool = False,
) -> None:
    """Delete an account permanently: roles, teams, tokens, address and notices. The name stays reserved.

    For the manager of the account, and for its user where the site allows it. Homes are kept unless
    `delete_homes`. Raises `NotAllowed`, and `StateConflict` if there are workspaces without
    `delete_workspaces`, or if no other user could administer the site or own the user's teams.
    """
    user = deactivation.lock_user(user)
    if user.deleted_at is not None:
        policies.require_manage_account(actor, user)
        return
    policies.require_delete_account(actor, user)
    if user.is_active:
        deactivation.deactivate_account(actor=actor, user=user)
        user.refresh_from_db()
    deletion_policy().require_deletable(user, delete_workspaces=delete_workspaces)
    emit(UserDeleted(user=user, actor=actor, delete_workspaces=delete_workspaces, delete_homes=delete_homes))
    user.deleted_at = timezone.now()
    user.email = user.first_name = user.last_name = ""
    user.email_confirmed = False
    _set_roles(user, [])
    user.set_unusable_password()
    mfa.remove_all(user)
    user.save()
    user.memberships.all().delete()
    ApiToken.objects.filter(owner=user).delete()
    Notification.objects.filter(user=user).delete()
    events.record(
        actor=actor,
        kind=AuditKind.USER_DELETED,
        message=f"deleted the account {user.username}",
        targets=sessions.audit_targets(user),
        data={"username": user.username, "workspaces": delete_workspaces, "homes": delete_homes},
    )


@transaction.atomic
def join(*, user: User, kind: LinkKind, link: str, password: str) -> User:
    """Set the password through a link. Raises `InvalidInput` and `StateConflict`.

    Of two concurrent uses of a link, the second finds it spent.
    """
    locked = deactivation.lock_user(user)
    if links.resolve(locked.pk, link) is None:
        raise StateConflict(Reason(AccountCode.LINK_SPENT), code=AccountCode.LINK_SPENT)
    _set_password(locked, password)
    sessions.end_all(locked)
    locked.save(update_fields=["password", "session_salt"])
    events.record(
        actor=locked,
        kind=AuditKind.USER_JOINED if kind is LinkKind.INVITATION else AuditKind.USER_PASSWORD_CHANGED,
        message="accepted the invitation"
        if kind is LinkKind.INVITATION
        else "chose another password by a link",
        targets=sessions.audit_targets(locked),
    )
    return locked


@transaction.atomic
def change_password(
    request: HttpRequest, *, user: User, old: str, password: str, end_tokens: bool = False
) -> int:
    """Change one's own password and end other sessions. Returns the number of ended sessions.

    Raises `InvalidInput` with errors at `old_password` or `new_password`.
    """
    user = deactivation.lock_user(user)
    if not user.check_password(old):
        reason = Reason(AccountCode.WRONG_PASSWORD)
        raise InvalidInput(reason, errors={"old_password": [reason]})
    _set_password(user, password, field="new_password")
    ended = sessions.end_all_except_current(request, user)
    revoked = deactivation.revoke_tokens(user) if end_tokens else 0
    events.record(
        actor=user,
        kind=AuditKind.USER_PASSWORD_CHANGED,
        message="changed the password",
        targets=sessions.audit_targets(user),
        data={"sessions": ended, "tokens": revoked},
    )
    return ended


@transaction.atomic
def change_email(*, user: User, email: str, password: str) -> User:
    """Change one's own address, confirmed by the password. Raises `InvalidInput`."""
    user = deactivation.lock_user(user)
    if not user.check_password(password):
        reason = Reason(AccountCode.WRONG_PASSWORD)
        raise InvalidInput(reason, errors={"password": [reason]})
    email = strip_nul(email).strip()
    if email == user.email:
        return user
    user.email, user.email_confirmed = email, False
    _check(user)
    user.save(update_fields=["email", "email_confirmed"])
    events.record(
        actor=user,
        kind=AuditKind.USER_EMAIL_CHANGED,
        message="changed the e-mail address",
        targets=sessions.audit_targets(user),
    )
    return user


def forgot_password(name: str) -> None:
    """Send a reset link to the user with this name or address, if there is one.

    The worker looks up the user, so that neither response nor timing reveals whether the account exists.
    """
    mails.order_forgotten(strip_nul(name).strip()[:254])


def make_link(user: User, kind: LinkKind) -> Link:
    """Return a link, and e-mail it on commit if the site sends mail and the user has an address."""
    mailed = bool(settings.BERTH_MAIL and user.email)
    if mailed:
        transaction.on_commit(partial(mails.order_link, user.pk, kind))
    return Link(user, links.make(user, kind), links.expires_at(kind), mailed)


def _require_active(user: User) -> None:
    if user.deleted_at is not None:
        raise StateConflict(Reason(AccountCode.USER_DELETED, {"username": user.username}))
    if not user.is_active:
        raise StateConflict(Reason(AccountCode.USER_DEACTIVATED, {"username": user.username}))


def _set_password(user: User, password: str, *, field: str = "password") -> None:
    try:
        validate_password(password, user)
    except ValidationError as error:
        raise InvalidInput(Reason(AccountCode.USER_NOT_VALID), errors={field: error.messages}) from error
    user.set_password(password)


def _check(user: User) -> None:
    deleted = User.objects.exclude(deleted_at=None).filter(username=user.username).exclude(pk=user.pk)
    if deleted.exists():
        reason = Reason(AccountCode.USER_DELETED, {"username": user.username})
        raise InvalidInput(reason, errors={"username": [reason]})
    try:
        user.full_clean(exclude=["password"])
    except ValidationError as error:
        raise InvalidInput(Reason(AccountCode.USER_NOT_VALID), errors=_messages_by_field(error)) from error


def _messages_by_field(error: ValidationError) -> dict[str, list[str]]:
    """Return the messages by field. Constraint errors are shown at the address."""
    errors = dict(error.message_dict)
    if general := errors.pop("__all__", []):
        errors["email"] = [*errors.get("email", []), *general]
    return errors


def _roles(roles: Sequence[str]) -> list[str]:
    unknown = [role for role in roles if role not in SiteRole.values]
    if unknown:
        reason = Reason(AccountCode.NO_SUCH_SITE_ROLE, {"role": unknown[0], "known": list(SiteRole.values)})
        raise InvalidInput(reason, errors={"roles": [reason]})
    if SiteRole.AUDITOR in roles and set(roles) != {SiteRole.AUDITOR}:
        reason = Reason(AccountCode.AUDITOR_HOLDS_NO_OTHER_ROLE)
        raise InvalidInput(reason, errors={"roles": [reason]})
    return [role for role in SiteRole.values if role in roles]


def _set_roles(user: User, roles: Sequence[str]) -> None:
    for role, column in ROLE_FIELDS.items():
        setattr(user, column, role in roles)


def _default_team() -> Team | None:
    """Return the team that every new account joins (`BERTH_DEFAULT_TEAM`), or None if it does not exist."""
    slug = settings.BERTH_DEFAULT_TEAM
    team = Team.objects.filter(slug=slug).first() if slug else None
    if slug and team is None:
        log.warning("new account joins no team: team %r does not exist (BERTH_DEFAULT_TEAM)", slug)
    return team


def _teams(roles_by_slug: RolesByTeam) -> dict[Team, str]:
    teams = {team.slug: team for team in Team.objects.filter(slug__in=roles_by_slug)}
    for slug, role in roles_by_slug.items():
        if slug not in teams:
            reason = Reason(AccountCode.NO_SUCH_TEAM, {"slug": slug})
            raise InvalidInput(reason, errors={"teams": [reason]})
        if role not in Role.values:
            reason = Reason(AccountCode.NO_SUCH_ROLE, {"role": role})
            raise InvalidInput(reason, errors={"teams": [reason]})
    return {teams[slug]: role for slug, role in roles_by_slug.items()}
