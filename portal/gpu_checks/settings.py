"""When a pool's devices are checked: an operator's choice, pool by pool."""

from __future__ import annotations

from typing import Any

from django.core.exceptions import ValidationError
from django.db import transaction

from portal.accounts.models import User
from portal.accounts.policies import require_operator
from portal.common.actors import SystemActor
from portal.common.errors import InvalidInput, NotFound
from portal.events import services as events
from portal.inventory.models import CheckLevel, Pool

MOST_HOURS = 24 * 365
NAMES = ("check_every_h", "check_level", "hand_out_max_age_h", "check_required", "scrub_required")


@transaction.atomic
def set_checks(*, actor: User | SystemActor, slug: str, **wanted: Any) -> Pool:
    """Change some of a pool's settings (`NAMES`; hours, 0 is never). Repeating it is success.

    Raises `NotAllowed`, `NotFound`, `InvalidInput`.
    """
    require_operator(actor)
    pool = Pool.objects.select_for_update().filter(slug=slug).first()
    if pool is None:
        raise NotFound(f"There is no pool “{slug}”.", next_action="Look at the list of pools.")
    changed = {name: value for name, value in wanted.items() if getattr(pool, name) != value}
    for name, value in changed.items():
        setattr(pool, name, value)
    try:
        pool.clean_fields(exclude={field.name for field in Pool._meta.fields} - set(NAMES))
    except ValidationError as error:
        raise InvalidInput("The pool's checks cannot be set like this.", errors=error.message_dict) from error
    for name in ("check_every_h", "hand_out_max_age_h"):
        if getattr(pool, name) > MOST_HOURS:
            sentence = f"At most {MOST_HOURS}, which is a year; 0 is never."
            raise InvalidInput("The pool's checks cannot be set like this.", errors={name: [sentence]})
    if changed:
        pool.save(update_fields=list(changed))
        events.record(
            actor=actor,
            kind="pool.checks_set",
            pool=pool,
            message=f"sets when devices of {pool.name} are checked",
            data={name: getattr(pool, name) for name in NAMES},
        )
    return pool


def from_form(data: Any) -> dict[str, Any]:
    """What a page sends. Raises `InvalidInput` for hours that are no whole number."""
    found: dict[str, Any] = {"check_level": data.get("check_level", CheckLevel.STANDARD)}
    for name in ("check_every_h", "hand_out_max_age_h"):
        text = str(data.get(name, "")).strip()
        if not (text.isascii() and text.isdigit() and len(text) < 9):
            raise InvalidInput(
                "Hours are whole numbers; 0 is never.",
                next_action="Correct the number and set it again.",
                errors={name: ["Write a whole number of hours; 0 is never."]},
            )
        found[name] = int(text)
    for name in ("check_required", "scrub_required"):
        found[name] = name in data
    return found
