"""How long a workspace may live: by template and flavor, by the site's settings where both say nothing."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from django.conf import settings

from portal.catalog.codes import CatalogCode
from portal.catalog.models import MAX_LIFETIME_H, Flavor, Template
from portal.common.errors import InvalidInput
from portal.common.reasons.reason import Reason

HOUR_S = 3600
MIN_LIFETIME_S = 60


@dataclass(frozen=True, slots=True)
class LifetimeTerms:
    """Seconds from ready: `default_s` where nothing is asked for, `max_s` at most. None: no end."""

    default_s: int | None
    max_s: int | None


def terms_of(template: Template, flavor: Flavor) -> LifetimeTerms:
    """What holds for workspaces of this template and flavor: the shorter of what the two say.

    Where neither says anything the site's settings hold. The default is never longer than what is allowed.
    """
    default_s = _seconds(
        (template.default_lifetime_hours, flavor.default_lifetime_hours), settings.BERTH_LIFETIME_HOURS
    )
    max_s = _seconds(
        (template.max_lifetime_hours, flavor.max_lifetime_hours), settings.BERTH_MAX_LIFETIME_HOURS
    )
    if max_s is not None:
        default_s = max_s if default_s is None else min(default_s, max_s)
    return LifetimeTerms(default_s, max_s)


def _seconds(own_h: Iterable[int | None], site_h: int) -> int | None:
    said = [hours for hours in own_h if hours is not None] or [site_h]
    return min((hours * HOUR_S for hours in said if hours), default=None)


def lifetime_of(
    template: Template, flavor: Flavor, asked_s: int | None, *, expected_s: int | None = None
) -> int | None:
    """For how many seconds a workspace may run; None for no end.

    Without `asked_s` it is the default, or the time for which it was said to be needed where that is longer.
    Raises `InvalidInput` where what was asked for is not allowed.
    """
    terms = terms_of(template, flavor)
    if asked_s is None:
        if terms.default_s is None or expected_s is None:
            return terms.default_s
        longest_s = max(terms.default_s, expected_s)
        return longest_s if terms.max_s is None else min(longest_s, terms.max_s)
    if asked_s < MIN_LIFETIME_S:
        raise _refused(Reason(CatalogCode.LIFETIME_TOO_SHORT))
    most_s = MAX_LIFETIME_H * HOUR_S if terms.max_s is None else terms.max_s
    if asked_s > most_s:
        raise _refused(Reason(CatalogCode.LIFETIME_TOO_LONG, {"asked_s": asked_s, "max_s": most_s}))
    return asked_s


def lifetime_again(template: Template, flavor: Flavor, lifetime_s: int | None) -> int | None:
    """The same for one that is started again: what it had, as far as that is allowed now."""
    terms = terms_of(template, flavor)
    if lifetime_s is None or terms.max_s is None:
        return terms.default_s if lifetime_s is None else lifetime_s
    return min(lifetime_s, terms.max_s)


def expected_of(template: Template, flavor: Flavor, said_s: int | None = None) -> int:
    """For how many seconds estimates take a workspace to run: what was said of it, else as is usual.

    Never longer than it may run.
    """
    terms = terms_of(template, flavor)
    found = said_s or round(flavor.expected_hours * 3600)
    most_s = terms.max_s if said_s else terms.default_s
    return found if most_s is None else min(found, most_s)


def _refused(reason: Reason) -> InvalidInput:
    return InvalidInput(reason, errors={"lifetime_hours": [reason]})
