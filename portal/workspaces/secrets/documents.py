"""Team and template secrets in Vault, as listed in a site file. Values are never included."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from portal.catalog.models import Template
from portal.people.accounts.models import Team, User
from portal.workspaces.secrets import services
from portal.workspaces.secrets.models import Secret, SecretKind, columns_of

Documents = dict[Any, dict[str, dict[str, Any]]]


def all_documents() -> tuple[Documents, Documents]:
    """Return the secrets of teams and of templates, by the holder's key and then by name."""
    teams: Documents = {}
    templates: Documents = {}
    for row in Secret.objects.filter(user=None).exclude(vault_path="").order_by("name"):
        group = teams if row.team_id is not None else templates
        group.setdefault(row.team_id or row.template_id, {})[row.name] = _document(row)
    return teams, templates


def stored_documents(desired: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    """Return a holder's secrets of a site file by name, with defaults."""
    usual = {"kind": SecretKind.ENV.value, "description": "", "everywhere": False}
    return {
        name: {**usual, **entry, "path": entry["path"].strip().strip("/")} for name, entry in desired.items()
    }


def apply(*, actor: User, holder: Team | Template, desired: Mapping[str, Mapping[str, Any]]) -> None:
    """Make the holder's secrets in Vault match `desired` (see `stored_documents`); others stay unchanged.

    Raises the exceptions of `services.put_secret`.
    """
    present = {row.name: row for row in Secret.objects.filter(**columns_of(holder)).exclude(vault_path="")}
    for name, entry in desired.items():
        row = present.get(name)
        if row is None or _document(row) != entry:
            services.put_secret(
                actor=actor,
                holder=holder,
                name=name,
                vault_path=entry["path"],
                vault_key=entry["key"],
                kind=entry["kind"],
                description=entry["description"],
                everywhere=entry["everywhere"],
            )
    for name in sorted(present.keys() - desired.keys()):
        services.delete(actor=actor, secret=present[name])


def _document(row: Secret) -> dict[str, Any]:
    return {
        "path": row.vault_path,
        "key": row.vault_key,
        "kind": row.kind,
        "description": row.description,
        "everywhere": row.everywhere,
    }
