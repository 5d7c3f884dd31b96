"""Services to change, retire, restore and delete existing pools."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from django.core.exceptions import ValidationError
from django.db import transaction
from django.utils import timezone

from portal.common import etags
from portal.common.actors import SYSTEM, SystemActor
from portal.common.domain_events import emit
from portal.common.errors import InvalidInput, NotFound, StateConflict
from portal.common.events import services as events
from portal.common.events.kinds import AuditKind
from portal.common.history import selectors as history
from portal.common.history.models import ChangeAction, SubjectKind
from portal.common.history.services import save_revision
from portal.common.problem_codes import ProblemCode
from portal.common.reasons.reason import Reason
from portal.fleet.inventory.codes import InventoryCode
from portal.fleet.inventory.deletion_policy import deletion_policy
from portal.fleet.inventory.domain_events import CapacityChanged, CapacityFreed, PoolDeleted
from portal.fleet.inventory.models import Allocation, Device, Node, Pool
from portal.fleet.inventory.node_commands import config_of
from portal.people.accounts.models import User
from portal.people.accounts.policies import require_operator
from provisioning.errors import ProvisioningError
from provisioning.registry import driver_class, driver_for

FIELDS = ("name", "config", "placement_policy", "rebalancing", "enabled", "retiring")
FIXED = ("slug", "driver")


def document_of(pool: Pool) -> dict[str, Any]:
    """Return the pool as a JSON document, for its history and the site file."""
    return {"slug": pool.slug, "driver": pool.driver, **{name: getattr(pool, name) for name in FIELDS}}


def keep_created(actor: User | SystemActor, pool: Pool) -> None:
    """Save the first revision of a new pool."""
    _keep_revision(actor, pool, ChangeAction.CREATED)


@transaction.atomic
def change(
    *,
    actor: User | SystemActor,
    pool: Pool,
    fields: Mapping[str, Any],
    expected: frozenset[str] = etags.ANY,
    restored_from: int | None = None,
) -> Pool:
    """Change the `fields`.

    With `retiring`, nothing new is placed in the pool; running workspaces continue. Raises `NotAllowed`,
    `InvalidInput`, `PreconditionFailed`, `NotFound`.
    """
    require_operator(actor)
    row = _locked_pool(pool)
    etags.require_expected(expected, row, name=row.name, by=changed_by(row))
    before, before_at = document_of(row), row.updated_at
    for name in FIXED:
        if name in fields and fields[name] != before[name]:
            reason = Reason(InventoryCode.POOL_FIELD_FIXED, {"field": name})
            raise InvalidInput(reason, errors={name: [reason]})
    for name in FIELDS:
        if name in fields:
            setattr(row, name, fields[name])
    try:
        row.full_clean(validate_constraints=False)
    except ValidationError as error:
        raise InvalidInput(Reason(InventoryCode.POOL_NOT_VALID), errors=error.message_dict) from error
    require_driver(row, before["config"])
    changed = [difference.field for difference in history.differences(before, document_of(row))]
    if not changed:
        return row
    row.updated_at = timezone.now()
    row.inventory_due_at = row.updated_at
    row.save(update_fields=[*changed, "updated_at", "inventory_due_at"])
    act = ChangeAction.CHANGED if restored_from is None else ChangeAction.RESTORED
    _keep_revision(actor, row, act, before=before, before_at=before_at, restored_from=restored_from)
    kind, message = AuditKind.POOL_CHANGED, f"changed {', '.join(changed)} of the pool {row.name}"
    if changed == ["retiring"]:
        kind = AuditKind.POOL_RETIRED if row.retiring else AuditKind.POOL_UNRETIRED
        message = f"{'retired' if row.retiring else 'returned to service'} the pool {row.name}"
    events.record(actor=actor, kind=kind, pool=row, message=message, data={"changed": changed})
    emit(CapacityChanged())
    emit(CapacityFreed())
    return row


def restore(
    *, actor: User | SystemActor, pool: Pool, number: int, expected: frozenset[str] = etags.ANY
) -> Pool:
    """Restore an earlier version as a new change. Raises the errors of `change`."""
    require_operator(actor)
    revision = history.revision(SubjectKind.POOL, pool.pk, number)
    return change(actor=actor, pool=pool, fields=revision.data, expected=expected, restored_from=number)


@transaction.atomic
def delete(*, actor: User | SystemActor, pool: Pool, expected: frozenset[str] = etags.ANY) -> None:
    """Delete a retired, empty pool with its nodes and the flavors that exist only there.

    The row stays for the records about its workspaces. Raises `NotAllowed`, `PreconditionFailed`, and
    `StateConflict` if the pool takes or has workspaces.
    """
    require_operator(actor)
    row = _locked_pool(pool)
    etags.require_expected(expected, row, name=row.name, by=changed_by(row))
    if not row.retiring:
        raise StateConflict(
            Reason(InventoryCode.POOL_NOT_RETIRED, {"pool": row.name}), code=ProblemCode.NOT_RETIRED
        )
    count = Allocation.objects.filter(node__pool=row, released_at=None).values("workspace").distinct().count()
    if count:
        reason = Reason(InventoryCode.POOL_IN_USE, {"pool": row.name, "count": count})
        raise StateConflict(reason, code=ProblemCode.IN_USE, count=count)
    deletion_policy().require_deletable(row)
    emit(PoolDeleted(row, actor))
    before, before_at = document_of(row), row.updated_at
    now = timezone.now()
    Node.objects.filter(pool=row).update(retired=True, online=False, cordoned=True, cordon_reason="")
    Device.objects.filter(node__pool=row).update(present=False)
    row.enabled, row.deleted_at, row.updated_at = False, now, now
    row.save(update_fields=["enabled", "deleted_at", "updated_at"])
    _keep_revision(actor, row, ChangeAction.DELETED, before=before, before_at=before_at)
    events.record(actor=actor, kind=AuditKind.POOL_DELETED, pool=row, message=f"deleted the pool {row.name}")
    emit(CapacityChanged())


def changed_by(pool: Pool) -> str:
    """Return the display name of the account that made the last change."""
    return history.last_label(SubjectKind.POOL, pool.pk) or SYSTEM.label


def refused_by_driver(error: ProvisioningError, field: str) -> InvalidInput:
    """Return a driver's `error` about `field` (its name or configuration) as `InvalidInput`."""
    reason = Reason(InventoryCode.DRIVER_REPORT, {"code": error.code, "message": error.message})
    return InvalidInput(reason, errors={field: [reason]})


def require_driver(pool: Pool, before: Collection[str] = ()) -> None:
    """Raise `InvalidInput` if the driver rejects the pool's configuration.

    Unknown settings are accepted only if they are in `before`. A misspelt restriction is never ignored
    silently, and an obsolete setting does not block other changes.
    """
    scalar = all(
        value is None or isinstance(value, str | int | float | bool) for value in pool.config.values()
    )
    names = driver_class(pool.driver).settings
    unknown = sorted(set(pool.config) - set(before) - names) if names else []
    if unknown:
        params = {"driver": pool.driver, "name": unknown[0][:60], "known": sorted(names)}
        reason = Reason(InventoryCode.POOL_HAS_NO_SETTING, params)
        raise InvalidInput(reason, errors={"config": [reason]})
    try:
        if not scalar:
            raise TypeError("a value is a list or an object")
        driver_for(config_of(pool))
    except ProvisioningError as error:
        raise refused_by_driver(error, "config") from error
    except (TypeError, ValueError) as error:
        reason = Reason(InventoryCode.POOL_CONFIG_NOT_UNDERSTOOD, {"reason": str(error)[:200]})
        raise InvalidInput(reason, errors={"config": [reason]}) from error


def _locked_pool(pool: Pool) -> Pool:
    locked = Pool.objects.select_for_update().filter(pk=pool.pk, deleted_at=None).first()
    if locked is None:
        raise NotFound(Reason(InventoryCode.NO_SUCH_POOL, {"slug": pool.slug}))
    return locked


def _keep_revision(actor: User | SystemActor, pool: Pool, act: ChangeAction, **more: Any) -> None:
    save_revision(actor=actor, kind=SubjectKind.POOL, key=pool.pk, act=act, data=document_of(pool), **more)
