"""Delivers secrets to the agent of a start, which requests them before the app starts.

No message and no node disk contains a value (docs/adr/0035). An agent gets an answer only while its start is
in progress, not after its app has started, and not from another node. Values in Vault are read before the
transaction that delivers them, because Vault may take seconds.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from django.db import transaction
from django.utils import timezone
from django.utils.translation import gettext as _

from portal.common.actors import SYSTEM
from portal.common.errors import NotFound, PortalError, StateConflict, Unavailable
from portal.common.events import services as events
from portal.common.events.kinds import AuditKind
from portal.fleet.machines import selectors as machines
from portal.workspaces import checkouts
from portal.workspaces.lifecycle import HOLDING, State
from portal.workspaces.models import StartSecrets, Workspace
from portal.workspaces.results import Revoked
from portal.workspaces.secrets import effective
from portal.workspaces.secrets.models import Secret, SecretKind, Source
from portal.workspaces.transitions import lock_workspace

log = logging.getLogger(__name__)
GIT = "git"
VAULT_VERSION = "vault_version"
"""Key of the Vault version at delivery. Not compared, because the next version is unknown."""


def deliver_secrets(*, workspace_id: UUID, generation: int, node: str) -> dict[str, list[dict[str, str]]]:
    """Return the secrets of this start (`secrets`) and the credentials of its repositories (`git`).

    Each secret has name, kind and value. `node` is the requesting machine, if it has joined. The call can be
    repeated until the app has started, as an answer can be lost. Raises `Revoked`; `StateConflict` if a value
    cannot be read or all are too large together; and `Unavailable` if a retry may succeed. The error is
    stored with the start, to explain its failure.
    """
    workspace = Workspace.objects.filter(pk=workspace_id).first()
    if workspace is None:
        raise Revoked
    _require_entitled(workspace, generation, node)
    opening = [secret for _wanted, secret in checkouts.secrets_for(workspace) if secret is not None]
    fetched = effective.fetch([*secrets_for_start(workspace), *opening])
    try:
        return _deliver(workspace_id, generation, node, fetched)
    except (StateConflict, Unavailable) as error:
        _note_problem(workspace_id, generation, error)
        raise


def _require_entitled(workspace: Workspace, generation: int, node: str) -> None:
    """Raise `Revoked` if the caller may not get the secrets of this start."""
    if workspace.generation != generation or workspace.state != State.PROVISIONING:
        raise Revoked
    machine = machines.machine_of_workspace(workspace.pk, workspace.pool_id)
    if not workspace.owner.is_active or node != (machine.name if machine is not None else ""):
        log.warning("refused to deliver secrets of %s to “%s”", workspace.pk, node)
        raise Revoked


@transaction.atomic
def _note_problem(workspace_id: UUID, generation: int, error: PortalError) -> None:
    """Store why the delivery failed, unless a later start has begun meanwhile."""
    try:
        workspace = lock_workspace(workspace_id)
    except NotFound:
        return
    if workspace.generation != generation or workspace.state != State.PROVISIONING:
        return
    earlier = StartSecrets.objects.filter(workspace=workspace, generation=generation).first()
    StartSecrets.objects.update_or_create(
        workspace=workspace,
        defaults={
            "generation": generation,
            "given": earlier.given if earlier is not None else [],
            "given_at": timezone.now(),
            "closed": earlier is not None and earlier.closed,
            "problem": error.reason.as_json(),
        },
    )


@transaction.atomic
def _deliver(
    workspace_id: UUID, generation: int, node: str, fetched: effective.Fetched
) -> dict[str, list[dict[str, str]]]:
    try:
        workspace = lock_workspace(workspace_id)
    except NotFound:
        raise Revoked from None
    _require_entitled(workspace, generation, node)
    earlier = StartSecrets.objects.filter(workspace=workspace).first()
    if earlier is not None and earlier.generation == generation and earlier.closed:
        raise Revoked
    now = timezone.now()
    values = effective.values_of(
        secrets_for_start(workspace), owner=workspace.owner, now=now, fetched=fetched
    )
    opening = checkouts.secrets_for(workspace)
    git = checkouts.credentials(opening, owner=workspace.owner, now=now, fetched=fetched)
    all_facts = [*(_facts(secret) for secret, _value in values), *_facts_of_git(opening)]
    for facts in all_facts:
        vault_value = fetched.get(UUID(facts["id"]))
        if isinstance(vault_value, effective.VaultValue):
            facts[VAULT_VERSION] = vault_value.version
    StartSecrets.objects.update_or_create(
        workspace=workspace,
        defaults={
            "generation": generation,
            "given": all_facts,
            "given_at": now,
            "closed": False,
            "problem": {},
        },
    )
    if all_facts and (earlier is None or earlier.generation != generation or earlier.given != all_facts):
        events.record(
            actor=SYSTEM,
            kind=AuditKind.WORKSPACE_SECRETS_DELIVERED,
            workspace=workspace,
            message="passed the secrets to the workspace",
            data={"generation": generation, "secrets": all_facts},
        )
    return {
        "secrets": [{"name": secret.name, "kind": secret.kind, "value": value} for secret, value in values],
        "git": git,
    }


def close(workspace_id: UUID, generation: int) -> None:
    """Stop delivering secrets of this start, because its app has started."""
    StartSecrets.objects.filter(workspace=workspace_id, generation=generation, closed=False).update(
        closed=True
    )


def secrets_for_start(workspace: Workspace) -> list[Secret]:
    """Return the secrets that a start would get now, without values."""
    offer = effective.available_secrets(workspace.owner, workspace.team, workspace.template)
    return offer.selection(workspace.secrets)


def _facts(secret: Secret) -> dict[str, Any]:
    return {
        "id": str(secret.pk),
        "name": secret.name,
        "kind": secret.kind,
        "of": secret.source.value,
        "version": secret.version,
    }


def _facts_of_git(opening: list[tuple[checkouts.RequestedCheckout, Secret | None]]) -> list[dict[str, Any]]:
    """Return `_facts` of a repository's secret, which only Git gets."""
    rows = {secret.pk: secret for _wanted, secret in opening if secret is not None}
    return [{**_facts(secret), "kind": GIT} for secret in rows.values()]


@dataclass(frozen=True, slots=True)
class SecretRow:
    """A secret on the page of a workspace."""

    name: str
    kind: str
    source: str


@dataclass(frozen=True, slots=True)
class SecretsNote:
    """Secrets on the page of a workspace.

    `rows` are those of this start, or else of the next one. `changed` means that the next start gets others.
    `missing` are requested names without a secret.
    """

    rows: list[SecretRow]
    missing: list[str]
    changed: bool


def note_of(workspace: Workspace) -> SecretsNote | None:
    """Return the note about the workspace's secrets, or `None` if it has no secrets."""
    if workspace.state == State.TERMINATED:
        return None
    offer = effective.available_secrets(workspace.owner, workspace.team, workspace.template)
    coming = [_facts(secret) for secret in offer.selection(workspace.secrets)]
    coming += _facts_of_git(checkouts.secrets_for(workspace))
    missing = offer.missing(workspace.secrets)
    shown, changed = coming, False
    if workspace.state in HOLDING and workspace.state != State.PROVISIONING:
        taken = StartSecrets.objects.filter(workspace=workspace, generation=workspace.generation).first()
        shown = taken.given if taken is not None else []
        shown_facts = [
            {name: fact for name, fact in facts.items() if name != VAULT_VERSION} for facts in shown
        ]
        changed = shown_facts != coming
    if not (shown or missing or changed):
        return None
    return SecretsNote([_row(facts) for facts in shown], missing, changed)


def _row(facts: dict[str, Any]) -> SecretRow:
    sources = {
        Source.USER: _("user's"),
        Source.TEAM: _("the team's"),
        Source.TEMPLATE: _("the template's"),
    }
    kinds = {SecretKind.ENV.value: _("variable"), SecretKind.FILE.value: _("file"), GIT: _("for Git")}
    return SecretRow(facts["name"], kinds[facts["kind"]], sources[Source(facts["of"])])
