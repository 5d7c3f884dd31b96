"""Services that change reclaim policies. Changes apply from the next pass on, with notice."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from uuid import UUID

from django.db import IntegrityError, transaction
from django.utils import timezone

from portal.common import etags
from portal.common.actors import SYSTEM, SystemActor
from portal.common.constraints import violates
from portal.common.errors import InvalidInput, NotFound, StateConflict
from portal.common.events import services as events
from portal.common.events.kinds import AuditKind
from portal.common.history import selectors as history
from portal.common.history.models import ChangeAction, SubjectKind
from portal.common.history.services import save_revision
from portal.common.problem_codes import ProblemCode
from portal.common.reasons.reason import Reason
from portal.people.accounts.domain_events import TeamDeletion
from portal.people.accounts.models import User
from portal.people.accounts.policies import may_view_team
from portal.reclaim import policies
from portal.reclaim import policy_documents as documents
from portal.reclaim.codes import LifetimeCode
from portal.reclaim.models import ReclaimPolicy

TARGET_UNIQUE = ("reclaim_policy_one_site", "pool", "template", "flavor", "team")


def draft(*, actor: User | SystemActor, target: str, values: Mapping[str, Any]) -> ReclaimPolicy:
    """Return the validated, unsaved policy that `create` or `change` would write. Raises the same errors."""
    fixed = _target_columns(actor, target)
    row = ReclaimPolicy.objects.filter(**fixed).first() or ReclaimPolicy(**fixed)
    documents.fill(row, values)
    return row


def create(*, actor: User | SystemActor, target: str, values: Mapping[str, Any]) -> ReclaimPolicy:
    """Create a policy for `target` (`site`, `flavor:a100-full`, …).

    Raises `NotAllowed`, `InvalidInput`, and `StateConflict` if one exists.
    """
    fixed = _target_columns(actor, target)
    row = ReclaimPolicy(**fixed, updated_at=timezone.now())
    documents.fill(row, values)
    try:
        with transaction.atomic():
            row.save(force_insert=True)
            _save(actor, row, ChangeAction.CREATED)
            _record(actor, row, AuditKind.RECLAIM_POLICY_CREATED, f"created the {row}")
    except IntegrityError as error:
        if not violates(error, ReclaimPolicy, *TARGET_UNIQUE):
            raise
        reason = Reason(LifetimeCode.POLICY_TAKEN, {"target": target})
        raise StateConflict(reason, code=ProblemCode.POLICY_TAKEN, errors={"for": [reason]}) from error
    return row


def put_policy(*, actor: User | SystemActor, target: str, values: Mapping[str, Any]) -> ReclaimPolicy:
    """Create the policy for `target`, or change fields of the existing one. Raises the errors of both."""
    row = ReclaimPolicy.objects.filter(**documents.target_of(target)).first()
    if row is None:
        return create(actor=actor, target=target, values=values)
    return change(actor=actor, policy_id=row.pk, values=values)


def delete_for(*, actor: User | SystemActor, target: str) -> None:
    """Delete the policy for `target` if it exists. Raises the errors of `delete`."""
    row = ReclaimPolicy.objects.filter(**documents.target_of(target)).first()
    if row is not None:
        delete(actor=actor, policy_id=row.pk)


@transaction.atomic
def change(
    *,
    actor: User | SystemActor,
    policy_id: UUID,
    values: Mapping[str, Any],
    expected: frozenset[str] = etags.ANY,
    restored_from: int | None = None,
) -> ReclaimPolicy:
    """Change the fields in `values`. Writes nothing if nothing changes.

    Raises `NotAllowed`, `NotFound`, `InvalidInput`, `PreconditionFailed`.
    """
    row = _locked(actor, policy_id, expected)
    if values.get("for", row.target) != row.target:
        reason = Reason(LifetimeCode.POLICY_TARGET_FIXED)
        raise InvalidInput(reason, errors={"for": [reason]})
    before, before_at = documents.document_of(row), row.updated_at
    documents.fill(row, values)
    changed = [difference.field for difference in history.differences(before, documents.document_of(row))]
    if not changed:
        return row
    row.updated_at = timezone.now()
    row.save()
    act = ChangeAction.CHANGED if restored_from is None else ChangeAction.RESTORED
    _save(actor, row, act, before=before, before_at=before_at, restored_from=restored_from)
    message = f"changed {', '.join(changed)} of the {row}"
    if restored_from is not None:
        message = f"restored version {restored_from} of the {row}: {', '.join(changed)}"
    _record(actor, row, AuditKind.RECLAIM_POLICY_CHANGED, message, changed=changed)
    return row


def restore(
    *, actor: User | SystemActor, policy_id: UUID, number: int, expected: frozenset[str] = etags.ANY
) -> ReclaimPolicy:
    """Restore a stored version. Raises the errors of `change`, and `NotFound` for an unknown version."""
    revision = history.revision(SubjectKind.RECLAIM, policy_id, number)
    return change(
        actor=actor, policy_id=policy_id, values=revision.data, expected=expected, restored_from=number
    )


@transaction.atomic
def delete(*, actor: User | SystemActor, policy_id: UUID, expected: frozenset[str] = etags.ANY) -> None:
    """Delete a policy; the next wider one applies. Raises `NotAllowed`, `NotFound`, `PreconditionFailed`."""
    row = _locked(actor, policy_id, expected)
    _save(actor, row, ChangeAction.DELETED, before=documents.document_of(row), before_at=row.updated_at)
    _record(actor, row, AuditKind.RECLAIM_POLICY_DELETED, f"deleted the {row}")
    row.delete()


def _target_columns(actor: User | SystemActor, target: str) -> dict[str, Any]:
    """Return the columns of a target whose policy the actor may write. Hides teams that are not visible."""
    fixed = documents.target_of(target)
    team = fixed.get("team")
    if team is not None and isinstance(actor, User) and not may_view_team(actor, team):
        raise documents.unknown_target(target)
    policies.require_change(actor, team)
    return fixed


def changed_by(row: ReclaimPolicy) -> str:
    """Return the display name of the account that last changed the policy."""
    return history.last_label(SubjectKind.RECLAIM, row.pk) or SYSTEM.label


def _locked(actor: User | SystemActor, policy_id: UUID, expected: frozenset[str]) -> ReclaimPolicy:
    rows = ReclaimPolicy.objects.select_for_update(of=("self",))
    row = rows.select_related("pool", "template", "flavor", "team").filter(pk=policy_id).first()
    if row is None:
        raise NotFound(Reason(LifetimeCode.POLICY_NOT_FOUND))
    policies.require_change(actor, row.team)
    etags.require_expected(expected, row, name=str(row), by=changed_by(row))
    return row


def _save(actor: User | SystemActor, row: ReclaimPolicy, act: ChangeAction, **more: Any) -> None:
    save_revision(
        actor=actor,
        kind=SubjectKind.RECLAIM,
        key=row.pk,
        act=act,
        data=documents.document_of(row),
        **more,
    )


def _record(
    actor: User | SystemActor, row: ReclaimPolicy, kind: AuditKind, message: str, **more: Any
) -> None:
    events.record(
        actor=actor,
        kind=kind,
        team=row.team,
        pool=row.pool,
        message=message,
        data={"policy": str(row.pk), "for": row.target, **more},
    )


def team_deleted(event: TeamDeletion) -> None:
    """Delete the policy of a deleted team."""
    ReclaimPolicy.objects.filter(team=event.team).delete()
