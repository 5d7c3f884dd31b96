"""Selects the secrets that a workspace gets, and decrypts their values for its agent.

A workspace gets all secrets of its template. From its team and its user it gets the secrets marked for every
workspace and those that it names. If names are equal, the user's secret overrides the team's, and the team's
overrides the template's.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

from django.db.models import Q

from portal.catalog.models import Template
from portal.common.encrypted_fields import Unreadable, decrypt
from portal.common.errors import InvalidInput, PortalError, StateConflict, Unavailable
from portal.common.reasons.reason import Reason
from portal.people.accounts.models import Team, User
from portal.people.accounts.policies import may_work_in
from portal.workspaces.secrets import places
from portal.workspaces.secrets.codes import SecretCode
from portal.workspaces.secrets.models import Secret, Source, purpose_of
from portal.workspaces.secrets.services import MAX_VALUE_BYTES, folders_of, is_text

MAX_NAMED = 50
MAX_TOTAL_BYTES = 512 * 1024
"""Maximum total size of a workspace's values, which the agent and process environments limit."""
ORDER = [Source.USER, Source.TEAM, Source.TEMPLATE]


@dataclass(frozen=True, slots=True)
class AvailableSecrets:
    """The secrets available to a workspace of this user, team and template, by name.

    The candidates for each name are in order of precedence.
    """

    by_name: dict[str, list[Secret]]

    def selection(self, names: Collection[str]) -> list[Secret]:
        """Return the secrets for a workspace that names `names`, sorted by name."""
        requested = set(names)
        offered = []
        for name, rows in sorted(self.by_name.items()):
            row = next((row for row in rows if name in requested or is_automatic(row)), None)
            if row is not None:
                offered.append(row)
        return offered

    def missing(self, names: Collection[str]) -> list[str]:
        """Return the names without a secret."""
        return sorted(set(names) - set(self.by_name))


def is_automatic(secret: Secret) -> bool:
    """Return whether the secret is delivered without being named."""
    return secret.everywhere or secret.source is Source.TEMPLATE


@dataclass(frozen=True, slots=True)
class Holders:
    """The primary keys of users, teams and templates that have secrets."""

    users: frozenset[object]
    teams: frozenset[object]
    templates: frozenset[object]

    def offer(self, owner_id: object, team_id: object, template_id: object) -> bool:
        """Return whether `available_secrets` could find a secret for such a workspace."""
        return owner_id in self.users or team_id in self.teams or template_id in self.templates


def holders_among(
    owners: Collection[object], teams: Collection[object], templates: Collection[object]
) -> Holders:
    """Return which of these users, teams and templates have secrets. Uses one query."""
    condition = Q(user__in=owners) | Q(team__in=teams) | Q(template__in=templates)
    rows = list(Secret.objects.filter(condition).values_list("user_id", "team_id", "template_id").distinct())
    return Holders(*(frozenset(row[column] for row in rows) for column in range(3)))


def available_secrets(owner: User, team: Team | None, template: Template | None) -> AvailableSecrets:
    """Return the secrets for a workspace of `owner`. Omits the team's unless the owner works in the team."""
    holders = Q(user=owner)
    if team is not None:
        holders |= Q(team=team)
    if template is not None:
        holders |= Q(template=template)
    rows = list(Secret.objects.filter(holders).defer("sealed", "description"))
    if team is not None and any(row.team_id for row in rows) and not may_work_in(owner, team):
        rows = [row for row in rows if row.team_id is None]
    by_name: dict[str, list[Secret]] = {}
    for row in sorted(rows, key=lambda row: ORDER.index(row.source)):
        by_name.setdefault(row.name, []).append(row)
    return AvailableSecrets(by_name)


def require_known(owner: User, team: Team, template: Template, names: Sequence[str]) -> list[str]:
    """Return the distinct names, sorted. Raises `InvalidInput` for unknown names or too much data."""
    requested = sorted({str(name) for name in names})
    offer = available_secrets(owner, team, template)
    unknown = offer.missing(requested)
    reason = None
    if len(requested) > MAX_NAMED:
        reason = Reason(SecretCode.TOO_MANY_NAMED, {"limit": MAX_NAMED})
    elif unknown:
        reason = Reason(SecretCode.UNKNOWN_NAMED, {"names": [name[:64] for name in unknown[:10]]})
    elif _total_bytes(offer.selection(requested)) > MAX_TOTAL_BYTES:
        reason = Reason(SecretCode.TOO_LARGE_TOGETHER, {"limit": MAX_TOTAL_BYTES})
    if reason is not None:
        raise InvalidInput(reason, errors={"secrets": [reason]})
    return requested


@dataclass(frozen=True, slots=True)
class VaultValue:
    """A value read from Vault, and its path and key; `version` is Vault's version number."""

    path: str
    key: str
    value: str
    version: int


Fetched = dict[UUID, VaultValue | PortalError]
"""Value or error from Vault, by secret."""


def fetch(rows: Iterable[Secret]) -> Fetched:
    """Read the secrets stored in Vault, once per path. May take seconds: do not call it in a transaction."""
    vault_rows = [row for row in rows if row.in_vault]
    if not vault_rows:
        return {}
    # Imported here, so that only sites with secrets in Vault load the client libraries.
    from portal.workspaces.secrets import vault

    # Never request a path that the holder may not use, or no longer may.
    allowed = {row.pk: places.is_below(row.vault_path, folders_of(row.holder)) for row in vault_rows}
    entries = vault.read(row.vault_path for row in vault_rows if allowed[row.pk])
    fetched: Fetched = {}
    for row in vault_rows:
        entry = entries.get(row.vault_path) if allowed[row.pk] else None
        if entry is None:
            params = {"path": row.vault_path, "name": row.name}
            fetched[row.pk] = StateConflict(Reason(SecretCode.VAULT_PATH_LOST, params))
        elif isinstance(entry, PortalError):
            fetched[row.pk] = entry
        else:
            fetched[row.pk] = _pick_value(row, entry.values.get(row.vault_key), entry.version)
    return fetched


def _pick_value(row: Secret, value: object, version: int) -> VaultValue | PortalError:
    params = {"path": row.vault_path, "key": row.vault_key}
    if value is None:
        return StateConflict(Reason(SecretCode.VAULT_NO_SUCH_KEY, params))
    if not isinstance(value, str) or not value or not is_text(value) or len(value.encode()) > MAX_VALUE_BYTES:
        return StateConflict(Reason(SecretCode.VAULT_NOT_A_VALUE, {**params, "limit": MAX_VALUE_BYTES}))
    return VaultValue(row.vault_path, row.vault_key, value, version)


def values_of(
    secrets: Sequence[Secret], *, owner: User, now: datetime, fetched: Fetched
) -> list[tuple[Secret, str]]:
    """Return the values for the agent of a workspace of `owner`, and record the delivery.

    `fetched` is the result of `fetch`. Secrets that were deleted meanwhile are left out. Raises
    `StateConflict` if the values are too large together, encrypted with a lost key, or not available from
    Vault, and `Unavailable` if a retry may succeed.
    """
    rows = Secret.objects.filter(pk__in=[row.pk for row in secrets])
    columns = ("pk", "sealed", "version", "vault_path", "vault_key")
    present = {key: rest for key, *rest in rows.values_list(*columns)}
    values = []
    for row in secrets:
        if row.pk not in present:
            continue
        sealed, row.version, row.vault_path, row.vault_key = present[row.pk]
        if row.in_vault:
            values.append((row, _fetched_value(row, fetched)))
            continue
        try:
            values.append((row, decrypt(sealed, purpose=purpose_of(row))))
        except Unreadable:
            raise StateConflict(Reason(SecretCode.UNREADABLE, {"name": row.name})) from None
    if sum(len(value.encode()) for _row, value in values) > MAX_TOTAL_BYTES:
        raise StateConflict(Reason(SecretCode.TOO_LARGE_TOGETHER, {"limit": MAX_TOTAL_BYTES}))
    rows.update(delivered_at=now, delivered_to=owner)
    return values


def _fetched_value(row: Secret, fetched: Fetched) -> str:
    fetched_value = fetched.get(row.pk)
    if isinstance(fetched_value, PortalError):
        raise fetched_value
    if fetched_value is None or (fetched_value.path, fetched_value.key) != (row.vault_path, row.vault_key):
        # Changed while Vault was read: the agent retries.
        raise Unavailable(Reason(SecretCode.CHANGED_MEANWHILE, {"name": row.name}))
    return fetched_value.value


def _total_bytes(rows: Sequence[Secret]) -> int:
    return sum(row.size_bytes for row in rows)
