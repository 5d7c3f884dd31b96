"""Services for SCIM: accounts, through the services of `accounts`, groups and their grants.

The API has checked permission: a token with scope `scim` of an administrator. The actor is the provider, in
the name of that token.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any
from uuid import UUID

from django.db import transaction
from django.utils import timezone

from portal.common.actors import SystemActor
from portal.common.events import services as events
from portal.common.events.kinds import AuditKind
from portal.common.reasons.reason import Reason
from portal.people.accounts import deactivation, sessions, users
from portal.people.accounts.domain_events import UserReactivated
from portal.people.accounts.free_names import free_account_name, taken_account_names
from portal.people.accounts.models import User
from portal.people.identity import registry, rules
from portal.people.identity import services as identity
from portal.people.identity.models import GivenRole, IdentityLink
from portal.people.scim import account_names, grants
from portal.people.scim.codes import ScimCode
from portal.people.scim.errors import conflict, mutability, no_such_resource, refused_value, uniqueness
from portal.people.scim.models import ScimGroup, ScimUser
from portal.people.scim.resources import GroupValues, UserValues

MAX_NAMED = 100
"""Maximum number of members named in an audit entry."""
_OF_PROVIDER = ("external_id", "display_name", "email_type", "email_primary")
"""Fields that are stored as the provider sends them, beside those of the account."""


@transaction.atomic
def create_user(*, actor: SystemActor, values: UserValues) -> ScimUser:
    """Create an account without a password, or take over an existing one if permitted.

    An e-mail address never takes over an account by the part before the @: another person may have it.

    Raises `ScimRefusal` (uniqueness) if the name or address belongs to another account.
    """
    user = User.objects.filter(scim__user_name=values.user_name).first()
    name = values.user_name
    if user is None and account_names.is_account_name(name):
        user = User.objects.filter(username=name).first()
    elif user is None:
        name = free_account_name(name, taken_account_names([name]))
    if user is None:
        _require_free_email(values.email)
        user = users.create(
            actor=actor,
            username=name,
            email=values.email,
            first_name=values.first_name,
            last_name=values.last_name,
        )
        row = ScimUser.objects.create(
            user=user,
            user_name=values.user_name,
            external_id=values.external_id,
            display_name=values.display_name,
            email_type=values.email_type,
            email_primary=values.email_primary,
        )
    else:
        row = _adopt_user(actor, user, values.user_name)
    _link_to_provider(actor, row)
    return update_user(actor=actor, row=row, values=values)


def _adopt_user(actor: SystemActor, user: User, user_name: str) -> ScimUser:
    """Take over an existing account: one that SCIM had removed, or any if the settings permit it.

    Raises `ScimRefusal`, also for an account with site roles, because the operator of the provider would
    gain them.
    """
    user = deactivation.lock_user(user)
    named = {"name": user.username}
    if user.deleted_at is not None:
        raise uniqueness(Reason(ScimCode.NAME_OF_DELETED, named))
    row = ScimUser.objects.filter(user=user).first()
    # A removed account of another user name belongs to another person.
    managed = row is not None and (row.removed_at is None or row.user_name != user_name)
    # Service accounts belong to their teams.
    if managed or user.is_service or (row is None and not registry.scim().adopt):
        raise uniqueness(Reason(ScimCode.USER_EXISTS, named))
    if user.roles:
        raise uniqueness(Reason(ScimCode.ROLES_NOT_ADOPTED, named))
    if row is None:
        row = ScimUser(user=user, user_name=user_name)
    row.user, row.removed_at = user, None
    row.save()
    events.record(
        actor=actor,
        kind=AuditKind.USER_ADOPTED,
        message=f"adopted the account {user.username}",
        targets=sessions.audit_targets(user),
        data={"username": user.username},
    )
    return row


def _link_to_provider(actor: SystemActor, row: ScimUser) -> None:
    """Link the account to the configured sign-in provider, by name, at the user's first sign-in."""
    provider_id = registry.scim().provider
    if provider_id and not IdentityLink.objects.filter(provider=provider_id, user=row.user).exists():
        provider = registry.provider_by_id(provider_id)
        expected = rules.username_in(provider, row.user_name) or row.user_name
        identity.link(actor=actor, provider=provider, user=row.user, expected=expected)


@transaction.atomic
def update_user(*, actor: SystemActor, row: ScimUser, values: UserValues) -> ScimUser:
    """Update the account to the provider's values and apply the grants of its groups.

    Raises `ScimRefusal` (changed name, address of another account), and like `deactivation`.
    """
    user = deactivation.lock_user(row.user)
    if values.user_name != row.user_name:
        raise mutability(Reason(ScimCode.USERNAME_FIXED, {"name": row.user_name}))
    _change_account(actor, user, values)
    sent = {name: getattr(values, name) for name in _OF_PROVIDER}
    if any(value != getattr(row, name) for name, value in sent.items()):
        for name, value in sent.items():
            setattr(row, name, value)
        row.save(update_fields=[*sent, "changed_at"])
        events.record(
            actor=actor,
            kind=AuditKind.USER_CHANGED,
            message=f"changed the SCIM name of {user.username}",
            targets=sessions.audit_targets(user),
            data={"username": user.username, **sent},
        )
    _set_active(actor, row, user, active=values.active)
    grants.apply_grants([row])
    return ScimUser.objects.select_related("user").get(pk=row.pk)


def _change_account(actor: SystemActor, user: User, values: UserValues) -> None:
    new_values = {"email": values.email, "first_name": values.first_name, "last_name": values.last_name}
    changed: dict[str, Any] = {
        field: value for field, value in new_values.items() if value != getattr(user, field)
    }
    if "email" in changed:
        given_roles = set(GivenRole.objects.filter(user=user).values_list("role", flat=True))
        if any(role not in given_roles for role in user.roles):
            # Password links are sent to this address, so the provider's operator would gain the role.
            raise conflict(Reason(ScimCode.EMAIL_OF_ROLE, {"name": user.username}))
        _require_free_email(values.email, except_user=user)
    if changed:
        users.change(actor=actor, user=user, **changed)
        ScimUser.objects.filter(pk=user.pk).update(changed_at=timezone.now())


def _require_free_email(email: str, *, except_user: User | None = None) -> None:
    others = User.objects.filter(email__iexact=email)
    if except_user is not None:
        others = others.exclude(pk=except_user.pk)
    if email and others.exists():
        raise uniqueness(Reason(ScimCode.EMAIL_EXISTS))


def _set_active(actor: SystemActor, row: ScimUser, user: User, *, active: bool) -> None:
    """Deactivate the account, or reactivate it if SCIM deactivated it. Idempotent.

    Raises `ScimRefusal` for an account deactivated by an administrator.
    """
    if active and not user.is_active:
        if not row.switched_off:
            raise conflict(Reason(ScimCode.SWITCHED_OFF_HERE, {"name": user.username}))
        deactivation.reactivate(actor=actor, user=user)
    elif not active and user.is_active:
        # Before deactivation, because teams that lose their owner get a new one now.
        identity.replace_grants(source=grants.SOURCE, name=grants.SOURCE, user=user, granted=grants.NOTHING)
        deactivation.deactivate(actor=actor, user=user)
    else:
        return
    row.switched_off = not active
    row.save(update_fields=["switched_off", "changed_at"])


@transaction.atomic
def remove_user(*, actor: SystemActor, row: ScimUser) -> None:
    """Deactivate the account, or delete it if configured, and stop managing it.

    Raises `StateConflict` (the last administrator; workspaces that would be deleted).
    """
    user = deactivation.lock_user(row.user)
    _set_active(actor, row, user, active=False)
    _leave_groups(row)
    row.removed_at = timezone.now()
    row.save(update_fields=["removed_at", "changed_at"])
    grants.apply_grants([row])
    if registry.scim().delete_accounts:
        users.delete(actor=actor, user=user)
    events.record(
        actor=actor,
        kind=AuditKind.USER_RELEASED,
        message=f"no longer manages the account {user.username}",
        targets=sessions.audit_targets(user),
        data={"username": user.username},
    )


def _leave_groups(row: ScimUser) -> None:
    for group in row.groups.order_by("pk"):
        group.version += 1
        group.save(update_fields=["version", "changed_at"])
    row.groups.clear()


def reactivated(event: UserReactivated) -> None:
    """Apply the grants of groups again after an administrator has reactivated an account."""
    ScimUser.objects.filter(user=event.user, switched_off=True).update(switched_off=False)
    grants.apply_grants(ScimUser.objects.filter(user=event.user, removed_at=None))


@transaction.atomic
def create_group(*, actor: SystemActor, values: GroupValues) -> ScimGroup:
    """Create a group. It grants something only if a rule names it. Raises `ScimRefusal`."""
    _require_free_name(values.display_name)
    group = ScimGroup.objects.create(display_name=values.display_name, external_id=values.external_id)
    members = _members(values.members)
    group.members.set(members)
    if grants.grants_anything(grants.names_of(group)):
        grants.apply_grants(members)
    _record(actor, AuditKind.SCIM_GROUP_CREATED, group, f"created the group {group}", added=members)
    return group


@transaction.atomic
def update_group(*, actor: SystemActor, group: ScimGroup, values: GroupValues) -> ScimGroup:
    """Update a group to the provider's values. The caller has locked it. Raises `ScimRefusal`."""
    present = {row.pk: row for row in group.members.select_related("user")}
    added = _members(values.members - present.keys())
    removed = [row for key, row in present.items() if key not in values.members]
    names = grants.names_of(group)
    renamed = (values.display_name, values.external_id) != (group.display_name, group.external_id)
    if not (added or removed or renamed):
        return group
    if values.display_name.lower() != group.display_name.lower():
        _require_free_name(values.display_name)
    group.display_name, group.external_id = values.display_name, values.external_id
    group.version += 1
    group.save()
    group.members.add(*added)
    group.members.remove(*removed)
    if grants.grants_anything(names) or grants.grants_anything(grants.names_of(group)):
        grants.apply_grants([*added, *(present.values() if renamed else removed)])
    _record(
        actor, AuditKind.SCIM_GROUP_CHANGED, group, f"changed the group {group}", added=added, removed=removed
    )
    return group


@transaction.atomic
def remove_group(*, actor: SystemActor, group: ScimGroup) -> None:
    """Delete a group and its grants."""
    members = list(group.members.select_related("user"))
    granted = grants.grants_anything(grants.names_of(group))
    _record(actor, AuditKind.SCIM_GROUP_DELETED, group, f"deleted the group {group}", removed=members)
    group.delete()
    if granted:
        grants.apply_grants(members)


def _require_free_name(name: str) -> None:
    if ScimGroup.objects.filter(display_name__iexact=name).exists():
        raise uniqueness(Reason(ScimCode.GROUP_EXISTS, {"name": name[:100]}))


def _members(keys: Iterable[UUID]) -> list[ScimUser]:
    """Return the users with these ids. Raises `ScimRefusal` if SCIM does not manage one of them."""
    requested = set(keys)
    rows = list(
        ScimUser.objects.filter(pk__in=requested, removed_at=None, user__deleted_at=None).select_related(
            "user"
        )
    )
    if missing := requested - {row.pk for row in rows}:
        raise refused_value(Reason(ScimCode.NO_SUCH_MEMBER, {"id": str(min(missing))}))
    return rows


def _record(
    actor: SystemActor,
    kind: AuditKind,
    group: ScimGroup,
    message: str,
    *,
    added: Iterable[ScimUser] = (),
    removed: Iterable[ScimUser] = (),
) -> None:
    """Write an audit entry about a group. Names at most `MAX_NAMED` members."""
    data: dict[str, Any] = {"group": group.display_name, "external_id": group.external_id}
    for name, rows in (("added", list(added)), ("removed", list(removed))):
        if rows:
            data[name] = sorted(row.user.username for row in rows)[:MAX_NAMED]
            data[f"{name}_count"] = len(rows)
    events.record(actor=actor, kind=kind, message=message, data=data)


def present_user(key: UUID, *, leaving: bool = False) -> ScimUser:
    """Return the user with this id, locked. Raises `ScimRefusal` (404).

    With `leaving`, first locks the user's groups, in the order used by changes of groups.
    """
    if leaving:
        list(ScimGroup.objects.filter(members=key).order_by("pk").select_for_update())
    grants.lock_accounts([key])
    row = ScimUser.objects.filter(pk=key, removed_at=None, user__deleted_at=None).select_related("user")
    if (scim_user := row.first()) is None:
        raise no_such_resource()
    return scim_user


def present_group(key: UUID) -> ScimGroup:
    """Return the group with this id, locked. Raises `ScimRefusal` (404)."""
    group = ScimGroup.objects.select_for_update().filter(pk=key).first()
    if group is None:
        raise no_such_resource()
    return group
