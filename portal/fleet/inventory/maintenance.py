"""Writes the maintenance of the site and of pools. `maintenance_state` computes which pools are closed."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

from django.db import transaction
from django.utils import timezone

from portal.common import etags
from portal.common.actors import SystemActor
from portal.common.domain_events import emit
from portal.common.errors import InvalidInput, NotFound
from portal.common.events import services as events
from portal.common.events.kinds import AuditKind
from portal.common.formatting import format_moment
from portal.common.reasons.reason import Reason
from portal.common.texts import strip_nul
from portal.fleet.inventory.codes import InventoryCode
from portal.fleet.inventory.domain_events import CapacityChanged, CapacityFreed
from portal.fleet.inventory.models import MAX_REASON, SITE, Maintenance, Pool
from portal.people.accounts.models import User
from portal.people.accounts.policies import require_operator

MAX_LENGTH = timedelta(days=30)
MAX_AHEAD = timedelta(days=366)


def current(pool: Pool | None, now: datetime | None = None) -> Maintenance | None:
    """Return the current or planned maintenance of the pool (None: of the site), or None."""
    rows = Maintenance.objects.select_related("pool", "set_by").filter(ends_at__gt=now or timezone.now())
    return rows.filter(key=_key(pool)).first()


def read(pool: Pool | None) -> Maintenance:
    """Return the maintenance that is in progress or planned. Raises `NotFound`."""
    row = current(pool)
    if row is None:
        raise NotFound(Reason(InventoryCode.NO_MAINTENANCE))
    return row


@transaction.atomic
def set_maintenance(
    *,
    actor: User | SystemActor,
    pool: Pool | None,
    ends_at: datetime,
    reason: str,
    begins_at: datetime | None = None,
    expected: frozenset[str] = etags.ANY,
) -> Maintenance:
    """Begin, plan or change the maintenance of a pool (None: of the site). Idempotent.

    Without `begins_at`, maintenance begins now, or keeps its begin if already in progress. Running work
    continues. Raises `NotAllowed`, `InvalidInput`, `PreconditionFailed`.
    """
    require_operator(actor)
    now = timezone.now()
    before = _locked(pool, now)
    etags.require_expected(expected, before, name=_name(pool))
    if begins_at is None:
        begins_at = before.begins_at if before is not None and before.begins_at <= now else now
    reason = _validated(begins_at, ends_at, reason, now)
    values: dict[str, Any] = {"begins_at": begins_at, "ends_at": ends_at, "reason": reason}
    if before is not None and all(getattr(before, name) == value for name, value in values.items()):
        return before
    row, _created = Maintenance.objects.update_or_create(
        key=_key(pool),
        defaults={
            **values,
            "pool": pool,
            "set_by": None if isinstance(actor, SystemActor) else actor,
            "updated_at": now,
        },
    )
    _capacity_changed()
    _record(
        actor,
        AuditKind.MAINTENANCE_SET,
        row,
        f"set maintenance of {_name(pool)} from {format_moment(begins_at)} to {format_moment(ends_at)}",
    )
    return row


@transaction.atomic
def end(*, actor: User | SystemActor, pool: Pool | None, expected: frozenset[str] = etags.ANY) -> None:
    """End maintenance in progress, or cancel planned maintenance.

    Raises `NotAllowed`, `NotFound`, `PreconditionFailed`.
    """
    require_operator(actor)
    row = _locked(pool, timezone.now())
    if row is None:
        raise NotFound(Reason(InventoryCode.NO_MAINTENANCE))
    etags.require_expected(expected, row, name=_name(pool))
    _record(actor, AuditKind.MAINTENANCE_ENDED, row, f"ended maintenance of {_name(pool)}")
    row.delete()
    _capacity_changed()


def _capacity_changed() -> None:
    emit(CapacityChanged())
    emit(CapacityFreed())


def _key(pool: Pool | None) -> Any:
    return SITE if pool is None else pool.pk


def _name(pool: Pool | None) -> str:
    return "the site" if pool is None else f"the pool {pool.name}"


def _locked(pool: Pool | None, now: datetime) -> Maintenance | None:
    """Return the locked row unless it has ended."""
    return Maintenance.objects.select_for_update().filter(key=_key(pool), ends_at__gt=now).first()


def _validated(begins_at: datetime, ends_at: datetime, reason: str, now: datetime) -> str:
    """Return the cleaned reason. Raises `InvalidInput`."""
    errors: dict[str, list[Reason]] = {}
    reason = " ".join(strip_nul(reason).split())
    if not reason:
        errors["reason"] = [Reason(InventoryCode.MAINTENANCE_REASON_MISSING)]
    elif len(reason) > MAX_REASON:
        errors["reason"] = [Reason(InventoryCode.MAINTENANCE_REASON_TOO_LONG, {"max": MAX_REASON})]
    if ends_at <= max(begins_at, now):
        errors["ends_at"] = [Reason(InventoryCode.MAINTENANCE_END_PAST)]
    elif ends_at - begins_at > MAX_LENGTH:
        errors["ends_at"] = [Reason(InventoryCode.MAINTENANCE_TOO_LONG, {"days": MAX_LENGTH.days})]
    if begins_at > now + MAX_AHEAD:
        errors["begins_at"] = [Reason(InventoryCode.MAINTENANCE_TOO_FAR, {"days": MAX_AHEAD.days})]
    if errors:
        raise InvalidInput(Reason(InventoryCode.MAINTENANCE_NOT_VALID), errors=errors)
    return reason


def _record(actor: User | SystemActor, kind: AuditKind, row: Maintenance, message: str) -> None:
    events.record(
        actor=actor,
        kind=kind,
        pool=row.pool,
        message=message,
        reason=row.reason,
        data={"begins_at": row.begins_at.isoformat(), "ends_at": row.ends_at.isoformat()},
    )
