"""Services for templates and flavors: create, change, restore and delete, with history."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar, cast

from django.core.exceptions import ValidationError
from django.db import IntegrityError, transaction
from django.db.models import QuerySet
from django.utils import timezone

from portal.catalog import documents, policies, rules
from portal.catalog.codes import CatalogCode
from portal.catalog.deletion_policy import deletion_policy
from portal.catalog.domain_events import EntryChanged, EntryDeleted
from portal.catalog.models import TEAM_SIGN, Flavor, Template
from portal.common import etags
from portal.common.actors import SYSTEM, SystemActor
from portal.common.constraints import violates
from portal.common.domain_events import emit
from portal.common.errors import InvalidInput, StateConflict
from portal.common.events import services as events
from portal.common.events.kinds import AuditKind
from portal.common.history import selectors as history
from portal.common.history.models import ChangeAction, SubjectKind
from portal.common.history.services import save_revision
from portal.common.problem_codes import ProblemCode
from portal.common.reasons.reason import Reason
from portal.common.texts import strip_nul
from portal.fleet.inventory.deletion_policy import PoolDeletionPolicy
from portal.fleet.inventory.domain_events import PoolDeleted
from portal.fleet.inventory.models import Pool
from portal.people.accounts.domain_events import TeamDeletion
from portal.people.accounts.models import Team, User
from portal.people.accounts.policies import require_manage_team, require_operator

E = TypeVar("E", Template, Flavor)


def kind_of(model: type[Template] | type[Flavor]) -> SubjectKind:
    """Return the history's kind of subject for this model."""
    return SubjectKind.TEMPLATE if model is Template else SubjectKind.FLAVOR


@transaction.atomic
def create(
    *, actor: User | SystemActor, model: type[E], values: Mapping[str, Any], team: Team | None = None
) -> E:
    """Create an entry from a document. With `team`, the entry is a template of that team.

    Its slug is then prefixed with the team's: `vision_pytorch`. Raises `NotAllowed`, `InvalidInput`, and
    `StateConflict` if the slug is taken.
    """
    if team is not None:
        require_manage_team(actor, team)
    else:
        require_operator(actor)
    entry = model(slug=slug_for(strip_nul(str(values.get("slug", ""))), team))
    if isinstance(entry, Template):
        entry.team = team
    teams = _fill(entry, {name: value for name, value in values.items() if name not in documents.FIXED})
    try:
        with transaction.atomic():
            entry.save(force_insert=True)
    except IntegrityError as error:
        if not violates(error, model, f"{model._meta.model_name}_slug_unique"):
            raise
        raise _slug_taken_error(entry.slug) from error
    entry.teams.set(teams or [])
    entry = _read(model, entry)
    _keep(actor, entry, ChangeAction.CREATED)
    _record(actor, entry, "created", f"created the {_noun(entry)} {entry.name}")
    emit(EntryChanged(entry))
    return entry


def draft(
    *, actor: User | SystemActor, model: type[E], values: Mapping[str, Any], team: Team | None = None
) -> E:
    """Return the validated entry that `create` would write, unsaved. Raises like `create`."""
    if team is not None:
        require_manage_team(actor, team)
    else:
        require_operator(actor)
    entry = model(slug=slug_for(strip_nul(str(values.get("slug", "draft"))) or "draft", team))
    if isinstance(entry, Template):
        entry.team = team
    _fill(entry, {name: value for name, value in values.items() if name not in documents.FIXED})
    return entry


@transaction.atomic
def change(
    *,
    actor: User | SystemActor,
    entry: E,
    values: Mapping[str, Any],
    expected: frozenset[str] = etags.ANY,
    restored_from: int | None = None,
) -> E:
    """Change the fields in `values`. Running workspaces are unaffected until their next start.

    Writes nothing if all values are equal. Raises `NotAllowed`, `InvalidInput`, `PreconditionFailed`.
    """
    row = _locked(entry)
    policies.require_manage(actor, row)
    etags.require_expected(expected, row, name=row.name, by=changed_by(row))
    before, before_at = documents.document_of(row), row.updated_at
    for name in documents.FIXED:
        if name in values and name in before and (values[name] or None) != (before[name] or None):
            reason = Reason(CatalogCode.FIELD_FIXED, {"field": name})
            raise InvalidInput(reason, errors={name: [reason]})
    teams = _fill(row, {name: values[name] for name in values if name not in documents.FIXED})
    row.updated_at = timezone.now()
    row.save()
    if teams is not None:
        row.teams.set(teams)
    row = _read(type(row), row)
    after = documents.document_of(row)
    changed = [difference.field for difference in history.differences(before, after)]
    if not changed:
        # Restore the time of the last change.
        type(row).objects.filter(pk=row.pk).update(updated_at=before_at)
        row.updated_at = before_at
        return row
    act = ChangeAction.CHANGED if restored_from is None else ChangeAction.RESTORED
    _keep(actor, row, act, before=before, before_at=before_at, restored_from=restored_from)
    names = ", ".join(changed)
    done = f"changed {names} of the {_noun(row)} {row.name}"
    if restored_from is not None:
        done = f"restored version {restored_from} of the {_noun(row)} {row.name}: {names}"
    _record(actor, row, "changed", done, changed=changed)
    emit(EntryChanged(row))
    return row


def restore(*, actor: User | SystemActor, entry: E, number: int, expected: frozenset[str] = etags.ANY) -> E:
    """Restore a stored version, as a new change.

    Raises like `change`, and `NotFound` if the version is not stored.
    """
    policies.require_manage(actor, entry)
    revision = history.revision(kind_of(type(entry)), entry.pk, number)
    return change(actor=actor, entry=entry, values=revision.data, expected=expected, restored_from=number)


@transaction.atomic
def delete(*, actor: User | SystemActor, entry: E, expected: frozenset[str] = etags.ANY) -> None:
    """Delete an entry: it becomes invisible, and its slug can be reused.

    Entries with this successor lose it. A workspace that is being created keeps the entry. Raises
    `NotAllowed`, `PreconditionFailed`, and `StateConflict` while workspaces use the entry.
    """
    row = _locked(entry)
    policies.require_manage(actor, row)
    etags.require_expected(expected, row, name=row.name, by=changed_by(row))
    deletion_policy().require_deletable(row)
    before, before_at = documents.document_of(row), row.updated_at
    now = timezone.now()
    for other in cast(Any, row).predecessors.filter(deleted_at=None):
        change(actor=actor, entry=other, values={"successor": None})
    row.enabled, row.deleted_at, row.updated_at = False, now, now
    row.save(update_fields=["enabled", "deleted_at", "updated_at"])
    _keep(actor, row, ChangeAction.DELETED, before=before, before_at=before_at)
    _record(actor, row, "deleted", f"deleted the {_noun(row)} {row.name}")
    emit(EntryDeleted(row))
    emit(EntryChanged(row))


class KeepPoolsOfFlavorsInUse(PoolDeletionPolicy):
    """Prevents the deletion of a pool while one of its own flavors is in use."""

    def require_deletable(self, pool: Pool) -> None:
        for flavor in _flavors_of(pool):
            deletion_policy().require_deletable(flavor)


def pool_deleted(event: PoolDeleted) -> None:
    """Delete the flavors that exist only in the deleted pool."""
    for flavor in _flavors_of(event.pool):
        delete(actor=event.actor, entry=flavor)


def team_deleted(event: TeamDeletion) -> None:
    """Remove a deleted team from the templates and flavors that list it. They stay restricted."""
    event.team.offered_templates.clear()
    event.team.offered_flavors.clear()


def _flavors_of(pool: Pool) -> QuerySet[Flavor]:
    return Flavor.objects.filter(pool=pool, deleted_at=None)


def changed_by(entry: Template | Flavor) -> str:
    """Return the display name of the account that last changed the entry."""
    return history.last_label(kind_of(type(entry)), entry.pk) or SYSTEM.label


def slug_for(slug: str, team: Team | None) -> str:
    """Return the slug in stored form, prefixed for a team's template. Raises `InvalidInput`."""
    if team is not None:
        prefix = f"{team.slug}{TEAM_SIGN}"
        return prefix + slug.removeprefix(prefix)
    if TEAM_SIGN in slug:
        reason = Reason(CatalogCode.SLUG_OF_OTHER_TEAM)
        raise InvalidInput(reason, errors={"slug": [reason]})
    return slug


def _fill(entry: Template | Flavor, values: Mapping[str, Any]) -> list[Team] | None:
    """Write `values` to the entry and validate it. Returns the teams to store, or None (`documents.fill`)."""
    teams = documents.fill(entry, values)
    if isinstance(entry, Template) and entry.team_id is not None:
        _check_team_fields(entry)
    try:
        entry.full_clean(
            exclude=["slug"] if not entry._state.adding else None,
            validate_unique=False,
            validate_constraints=False,
        )
        entry.validate_constraints(exclude={"slug"})
    except ValidationError as error:
        raise InvalidInput(Reason(CatalogCode.ENTRY_NOT_VALID), errors=error.message_dict) from error
    problems = rules.template_problems(entry) if isinstance(entry, Template) else rules.flavor_problems(entry)
    if problems:
        raise InvalidInput(Reason(CatalogCode.ENTRY_NOT_VALID), errors=problems)
    return teams


def _check_team_fields(template: Template) -> None:
    """Reject fields that a team's template cannot have, even if operators set them.

    The team's owners could change the rest of the template afterwards.
    """
    for field, value in (
        ("service_workers", template.service_workers),
        ("teams", template.restricted),
        ("mounts", template.mounts),
    ):
        if value:
            reason = Reason(CatalogCode.TEAM_FIELD_FIXED, {"field": field})
            raise InvalidInput(reason, errors={field: [reason]})


def _locked(entry: E) -> E:
    """Lock and return the current row. Raises `StateConflict` if it has been deleted."""
    model = type(entry)
    row = model._default_manager.select_for_update(of=("self",)).filter(pk=entry.pk, deleted_at=None).first()
    if row is None:
        reason = Reason(CatalogCode.ENTRY_GONE, {"name": entry.name})
        raise StateConflict(reason)
    return row


def _read(model: type[E], entry: E) -> E:
    return model._default_manager.get(pk=entry.pk)


def _slug_taken_error(slug: str) -> StateConflict:
    reason = Reason(CatalogCode.SLUG_TAKEN, {"slug": slug})
    return StateConflict(reason, code=ProblemCode.SLUG_TAKEN, errors={"slug": [reason]})


def _noun(entry: Template | Flavor) -> str:
    return "template" if isinstance(entry, Template) else "flavor"


def _keep(actor: User | SystemActor, entry: Template | Flavor, act: ChangeAction, **more: Any) -> None:
    save_revision(
        actor=actor,
        kind=kind_of(type(entry)),
        key=entry.pk,
        act=act,
        data=documents.document_of(entry),
        **more,
    )


def _record(
    actor: User | SystemActor, entry: Template | Flavor, action: str, message: str, **more: Any
) -> None:
    events.record(
        actor=actor,
        kind=AuditKind(f"{_noun(entry)}.{action}"),
        team=entry.team if isinstance(entry, Template) else None,
        message=message,
        data={_noun(entry): entry.slug, **more},
    )
