"""Settings for automatic checks of a pool's devices."""

from __future__ import annotations

from typing import Any

from django.core.exceptions import ValidationError
from django.db import transaction

from portal.common import etags
from portal.common.actors import SystemActor
from portal.common.domain_events import emit
from portal.common.errors import InvalidInput, NotFound
from portal.common.events import services as events
from portal.common.events.kinds import AuditKind
from portal.common.reasons.reason import Reason
from portal.fleet.inventory.codes import InventoryCode
from portal.fleet.inventory.domain_events import CapacityChanged, CapacityFreed, NodesChanged
from portal.fleet.inventory.models import CheckLevel, Device, Pool
from portal.gpu_checks.codes import CheckCode
from portal.people.accounts.models import User
from portal.people.accounts.policies import require_operator

MAX_HOURS = 24 * 365
NAMES = (
    "check_every_hours", "check_level", "hand_out_max_age_hours", "check_required", "scrub_required",
    "mig_repartition",
)  # fmt: skip
DEFAULTS: dict[str, Any] = {name: getattr(Pool(), name) for name in NAMES}


def values_of(pool: Pool) -> list[object]:
    """Return a pool's settings, in the order of `NAMES`."""
    return [getattr(pool, name) for name in NAMES]


@transaction.atomic
def set_checks(
    *, actor: User | SystemActor, slug: str, expected: frozenset[str] = etags.ANY, **fields: Any
) -> Pool:
    """Change some of a pool's settings (`NAMES`; 0 hours means never). Idempotent.

    Raises `NotAllowed`, `NotFound`, `InvalidInput`, `PreconditionFailed`.
    """
    require_operator(actor)
    pool = Pool.objects.select_for_update().filter(slug=slug, deleted_at=None).first()
    if pool is None:
        raise NotFound(Reason(InventoryCode.NO_SUCH_POOL, {"slug": slug}))
    etags.require_expected(expected, pool, *values_of(pool), name=pool.name)
    changed = {name: value for name, value in fields.items() if getattr(pool, name) != value}
    for name, value in changed.items():
        setattr(pool, name, value)
    try:
        pool.clean_fields(exclude={field.name for field in Pool._meta.fields} - set(NAMES))
    except ValidationError as error:
        raise InvalidInput(Reason(CheckCode.SETTINGS_NOT_VALID), errors=error.message_dict) from error
    for name in ("check_every_hours", "hand_out_max_age_hours"):
        if getattr(pool, name) > MAX_HOURS:
            too_many = Reason(CheckCode.HOURS_TOO_MANY, {"max": MAX_HOURS})
            raise InvalidInput(Reason(CheckCode.SETTINGS_NOT_VALID), errors={name: [too_many]})
    if changed:
        pool.save(update_fields=list(changed))
        if changed.get("scrub_required") is False:
            _return_scrubbed(pool)
        if "mig_repartition" in changed:
            emit(CapacityChanged())
            emit(CapacityFreed())
        events.record(
            actor=actor,
            kind=AuditKind.POOL_CHECKS_SET,
            pool=pool,
            message=f"set the schedule of GPU checks of {pool.name}",
            data={name: getattr(pool, name) for name in NAMES},
        )
    return pool


def _return_scrubbed(pool: Pool) -> None:
    """Return the pool's unscrubbed devices to service."""
    waiting = Device.objects.filter(node__pool=pool, unscrubbed=True)
    nodes = tuple(set(waiting.order_by().values_list("node_id", flat=True)))
    if nodes:
        waiting.update(unscrubbed=False)
        emit(NodesChanged(nodes))
        emit(CapacityFreed())


def from_form(data: Any) -> dict[str, Any]:
    """Return the settings in a form. Raises `InvalidInput` for hours that are not whole numbers."""
    values: dict[str, Any] = {"check_level": data.get("check_level", CheckLevel.STANDARD)}
    for name in ("check_every_hours", "hand_out_max_age_hours"):
        text = str(data.get(name, "")).strip()
        if not (text.isascii() and text.isdigit() and len(text) < 9):
            raise InvalidInput(
                Reason(CheckCode.HOURS_NOT_WHOLE), errors={name: [Reason(CheckCode.WRITE_HOURS)]}
            )
        values[name] = int(text)
    for name in ("check_required", "scrub_required", "mig_repartition"):
        values[name] = name in data
    return values
