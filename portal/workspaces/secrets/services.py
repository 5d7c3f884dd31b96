"""Write operations on secrets. They never return a value; `effective` decrypts values for workspaces."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from django.conf import settings
from django.db import transaction
from django.utils import timezone

from portal.catalog.domain_events import EntryDeleted
from portal.catalog.models import Template
from portal.common import etags
from portal.common.encrypted_fields import encrypt
from portal.common.errors import InvalidInput, NotAllowed, NotFound, StateConflict
from portal.common.events import services as events
from portal.common.events.kinds import AuditKind
from portal.common.problem_codes import ProblemCode
from portal.common.reasons.reason import Reason
from portal.common.texts import strip_nul
from portal.people.accounts.codes import AccountCode
from portal.people.accounts.domain_events import TeamDeletion, UserDeleted
from portal.people.accounts.models import Team, User
from portal.workspaces.secrets import names, places, policies
from portal.workspaces.secrets.codes import SecretCode
from portal.workspaces.secrets.models import Holder, Secret, SecretKind, columns_of, purpose_of

MAX_VALUE_BYTES = 64 * 1024
MAX_SECRETS = 100
"""Maximum number of secrets per user, team or template."""
MAX_DESCRIPTION = 200


@dataclass(frozen=True, slots=True)
class SavedSecret:
    """A secret after a write, and whether it was created."""

    secret: Secret
    created: bool


def put_secret(
    *,
    actor: User,
    holder: Holder,
    name: str,
    value: str = "",
    vault_path: str = "",
    vault_key: str = "",
    kind: str | None = None,
    description: str | None = None,
    everywhere: bool | None = None,
    expected: Collection[str] = etags.ANY,
    only_new: bool = False,
) -> SavedSecret:
    """Create the secret with this name, or set a new value. `None` keeps a field or uses its default.

    With `vault_path` and `vault_key` instead of `value`, the value is stored in Vault and read at each start
    of a workspace.

    Raises `InvalidInput`, `NotAllowed`, `PreconditionFailed`, and `StateConflict` if the limit is reached or,
    with `only_new`, the name is taken.
    """
    policies.require_manage(actor, holder)
    vault_path, vault_key = vault_path.strip().strip("/"), vault_key.strip()
    _check(holder, name, value, vault_path, vault_key, kind, description)
    now = timezone.now()
    with transaction.atomic():
        _lock(holder)
        _require_active(actor)
        row = Secret.objects.filter(**columns_of(holder), name=name).first()
        if row is not None and only_new:
            raise StateConflict(Reason(SecretCode.NAME_TAKEN, {"name": name}), code=ProblemCode.NAME_TAKEN)
        if row is not None:
            _expect(expected, row)
        elif expected:
            raise NotFound(Reason(SecretCode.NO_SUCH_SECRET))
        elif Secret.objects.filter(**columns_of(holder)).count() >= MAX_SECRETS:
            raise StateConflict(
                Reason(SecretCode.TOO_MANY, {"limit": MAX_SECRETS}), code=ProblemCode.TOO_MANY_SECRETS
            )
        created = row is None
        if row is None:
            row = Secret(**columns_of(holder), name=name, created_at=now, created_by=actor, version=0)
        row.version += 1
        row.sealed = "" if vault_path else encrypt(value, purpose=purpose_of(row))
        row.vault_path, row.vault_key = vault_path, vault_key
        row.size_bytes = len(value.encode())
        row.changed_at = row.updated_at = now
        row.changed_by = actor
        row.kind = row.kind if kind is None else kind
        row.description = row.description if description is None else _one_line(description)
        row.everywhere = row.everywhere if everywhere is None else everywhere
        row.save(force_insert=created)
        verb = "created" if created else "changed the value of"
        audit_kind = AuditKind.SECRET_CREATED if created else AuditKind.SECRET_CHANGED
        where: dict[str, object] = {"vault_path": vault_path, "vault_key": vault_key} if vault_path else {}
        _record(actor, audit_kind, row, f"{verb} the secret {name} of {_holder_label(holder)}", **where)
    return SavedSecret(row, created)


def change(
    *,
    actor: User,
    secret: Secret,
    description: str | None = None,
    everywhere: bool | None = None,
    expected: Collection[str] = etags.ANY,
) -> Secret:
    """Change these fields; value and kind stay. Raises `NotAllowed`, `NotFound`, `PreconditionFailed`."""
    policies.require_manage(actor, secret.holder)
    with transaction.atomic():
        row = _locked(secret)
        _expect(expected, row)
        columns = {
            "description": None if description is None else _one_line(description),
            "everywhere": everywhere,
        }
        changed = [
            name for name, value in columns.items() if value is not None and value != getattr(row, name)
        ]
        for name in changed:
            setattr(row, name, columns[name])
        if changed:
            row.updated_at = timezone.now()
            row.save(update_fields=[*changed, "updated_at"])
            message = f"changed the secret {row.name} of {_holder_label(row.holder)}"
            _record(actor, AuditKind.SECRET_CHANGED, row, message, changed=changed)
    return row


def delete(*, actor: User, secret: Secret, expected: Collection[str] = etags.ANY) -> None:
    """Delete a secret. Running workspaces keep it until they stop. Raises the exceptions of `change`."""
    policies.require_manage(actor, secret.holder)
    with transaction.atomic():
        row = _locked(secret)
        _expect(expected, row)
        message = f"deleted the secret {row.name} of {_holder_label(row.holder)}"
        _record(actor, AuditKind.SECRET_DELETED, row, message)
        row.delete()


def delete_all_of(event: UserDeleted) -> None:
    """Delete the secrets of a deleted account."""
    Secret.objects.filter(user=event.user).delete()


def delete_all_of_team(event: TeamDeletion) -> None:
    """Delete the secrets of a deleted team."""
    Secret.objects.filter(team=event.team).delete()


def delete_with_template(event: EntryDeleted) -> None:
    """Delete the secrets of a deleted template."""
    if isinstance(event.entry, Template):
        Secret.objects.filter(template=event.entry).delete()


def folders_of(holder: Holder) -> list[str]:
    """Return the Vault paths below which this holder's secrets may be stored, as configured."""
    match holder:
        case User():
            return places.folders(settings.BERTH_VAULT_USER_PATHS, user=holder.username)
        case Team():
            return places.folders(settings.BERTH_VAULT_TEAM_PATHS, team=holder.slug)
        case _:
            return places.folders(settings.BERTH_VAULT_TEMPLATE_PATHS, template=holder.slug)


def _check(
    holder: Holder,
    name: str,
    value: str,
    vault_path: str,
    vault_key: str,
    kind: str | None,
    description: str | None,
) -> None:
    errors: dict[str, list[Reason]] = {}
    if not names.is_well_formed(name):
        errors["name"] = [Reason(SecretCode.NAME_INVALID)]
    elif names.is_reserved(name):
        errors["name"] = [Reason(SecretCode.NAME_RESERVED, {"name": name})]
    if vault_path or vault_key:
        errors |= _problems_of_place(holder, value, vault_path, vault_key)
    elif not value:
        errors["value"] = [Reason(SecretCode.VALUE_EMPTY)]
    elif len(value) > MAX_VALUE_BYTES or not is_text(value) or len(value.encode()) > MAX_VALUE_BYTES:
        errors["value"] = [Reason(SecretCode.VALUE_INVALID, {"limit": MAX_VALUE_BYTES})]
    if kind is not None and kind not in SecretKind.values:
        errors["kind"] = [Reason(SecretCode.KIND_UNKNOWN)]
    if description is not None and len(description) > MAX_DESCRIPTION:
        errors["description"] = [Reason(SecretCode.DESCRIPTION_TOO_LONG, {"limit": MAX_DESCRIPTION})]
    if errors:
        raise InvalidInput(Reason(SecretCode.NOT_VALID), errors=errors)


def _problems_of_place(
    holder: Holder, value: str, vault_path: str, vault_key: str
) -> dict[str, list[Reason]]:
    """Return the errors of a path and key in Vault, by field."""
    if not places.is_configured():
        return {"vault_path": [Reason(SecretCode.VAULT_NOT_CONFIGURED)]}
    if value:
        return {"value": [Reason(SecretCode.VALUE_AND_VAULT)]}
    errors: dict[str, list[Reason]] = {}
    allowed = folders_of(holder)
    if not places.is_path(vault_path):
        errors["vault_path"] = [Reason(SecretCode.VAULT_PATH_INVALID)]
    elif not places.is_below(vault_path, allowed):
        code = SecretCode.VAULT_PATH_NOT_ALLOWED if allowed else SecretCode.VAULT_NO_PATHS
        errors["vault_path"] = [Reason(code, {"allowed": allowed} if allowed else {})]
    if not places.is_key(vault_key):
        errors["vault_key"] = [Reason(SecretCode.VAULT_KEY_INVALID)]
    return errors


def is_text(value: str) -> bool:
    """Return whether the value can be an environment variable and a file: UTF-8 without NUL."""
    return strip_nul(value) == value


def _one_line(text: str) -> str:
    return " ".join(strip_nul(text).split())[:MAX_DESCRIPTION]


def _lock(holder: Holder) -> None:
    """Lock the holder's row, which serialises writes to its secrets."""
    # Use `_meta`, because `request.user` is a lazy object of another type.
    holder._meta.model._default_manager.select_for_update().get(pk=holder.pk)


def _require_active(actor: User) -> None:
    if not User.objects.filter(pk=actor.pk, is_active=True).exists():
        raise NotAllowed(Reason(AccountCode.NO_SUCH_USER, {"username": actor.username}))


def _locked(secret: Secret) -> Secret:
    rows = Secret.objects.select_for_update(of=("self",)).select_related("user", "team", "template")
    row = rows.filter(pk=secret.pk).first()
    if row is None:
        raise NotFound(Reason(SecretCode.NO_SUCH_SECRET))
    return row


def _expect(expected: Collection[str], row: Secret) -> None:
    by = row.changed_by.username if row.changed_by is not None else ""
    etags.require_expected(expected, row, name=row.name, by=by)


def _holder_label(holder: Holder) -> str:
    match holder:
        case User():
            return "their own"
        case Team():
            return f"the team {holder.name}"
        case _:
            return f"the template {holder.name}"


def _record(actor: User, kind: AuditKind, secret: Secret, message: str, **more: object) -> None:
    data = {"secret": str(secret.pk), "name": secret.name, "of": secret.source.value, **more}
    if secret.template is not None:
        data["template"] = secret.template.slug
    events.record(actor=actor, kind=kind, team=secret.team, message=message, data=data)
