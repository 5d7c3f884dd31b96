"""Lifetime limits of workspaces by template and flavor, with the site's settings as default."""

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
    """Default and maximum lifetime, in seconds after the workspace is ready. None: no limit."""

    default_s: int | None
    max_s: int | None


def terms_of(template: Template, flavor: Flavor) -> LifetimeTerms:
    """Return the terms for this template and flavor: the shorter of both values.

    If both are empty, the site's settings apply. The default is never longer than the maximum.
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
    limits = [hours for hours in own_h if hours is not None] or [site_h]
    return min((hours * HOUR_S for hours in limits if hours), default=None)


def lifetime_of(
    template: Template, flavor: Flavor, asked_s: int | None, *, expected_s: int | None = None
) -> int | None:
    """Return the lifetime of a new workspace in seconds; None for no limit.

    Without `asked_s`, this is the default, or `expected_s` if longer. Raises `InvalidInput` if the requested
    time is not allowed.
    """
    terms = terms_of(template, flavor)
    if asked_s is None:
        if terms.default_s is None or expected_s is None:
            return terms.default_s
        longest_s = max(terms.default_s, expected_s)
        return longest_s if terms.max_s is None else min(longest_s, terms.max_s)
    if asked_s < MIN_LIFETIME_S:
        raise _lifetime_error(Reason(CatalogCode.LIFETIME_TOO_SHORT))
    most_s = MAX_LIFETIME_H * HOUR_S if terms.max_s is None else terms.max_s
    if asked_s > most_s:
        raise _lifetime_error(Reason(CatalogCode.LIFETIME_TOO_LONG, {"asked_s": asked_s, "max_s": most_s}))
    return asked_s


def restart_lifetime(template: Template, flavor: Flavor, lifetime_s: int | None) -> int | None:
    """Return the lifetime for a restart: the previous one, within the current maximum."""
    terms = terms_of(template, flavor)
    if lifetime_s is None or terms.max_s is None:
        return terms.default_s if lifetime_s is None else lifetime_s
    return min(lifetime_s, terms.max_s)


def expected_run_time(template: Template, flavor: Flavor, requested_s: int | None = None) -> int:
    """Return the run time for estimates, in seconds: `requested_s`, else the flavor's usual run time.

    Never longer than the maximum lifetime or, without `requested_s`, the default one.
    """
    terms = terms_of(template, flavor)
    expected_s = requested_s or round(flavor.expected_hours * 3600)
    most_s = terms.max_s if requested_s else terms.default_s
    return expected_s if most_s is None else min(expected_s, most_s)


def _lifetime_error(reason: Reason) -> InvalidInput:
    return InvalidInput(reason, errors={"lifetime_hours": [reason]})
