"""Network egress of a workspace by its pool, team and template, for its node and as text."""

from __future__ import annotations

import functools

from django.utils.translation import gettext as _

from portal.catalog import selectors as catalog
from portal.catalog.models import Template
from portal.fleet.inventory.models import Pool
from portal.people.accounts import team_egress
from portal.people.accounts.models import Team
from portal.workspaces.models import Workspace
from provisioning.egress_rules import Egress, EgressPolicy, policy_of, tightest
from provisioning.errors import InvalidSpec
from provisioning.types import EgressLimit


def limits_of(template: Template, team: Team) -> tuple[EgressLimit, ...]:
    """Return the limits that template and team add to those of pool and node."""
    return tuple(
        EgressLimit(scope.egress, _allow(scope.egress_allow) if scope.egress == Egress.LIST else "")
        for scope in (template, team)
        if scope.egress
    )


def _allow(text: str) -> str:
    return ",".join(text.replace(",", " ").split())


def started_with(workspace: Workspace) -> tuple[EgressLimit, ...]:
    """Return the limits of the current start: those of template and team at its placement."""
    placed = workspace.placed_at
    return limits_of(catalog.as_of(workspace.template, placed), team_egress.as_of(workspace.team, placed))


def of_workspace(workspace: Workspace) -> tuple[str, str]:
    """Return what the current start may reach, and what the next one may if that differs, as text or empty.

    The second is `_("What its pool allows")` if no limits will remain.
    """
    now = in_words(started_with(workspace), workspace.pool)
    then = in_words(limits_of(workspace.template, workspace.team), workspace.pool)
    if now == then or workspace.placed_at is None:
        return then, ""
    return now, then or _("As the pool allows")


def in_words(limits: tuple[EgressLimit, ...], pool: Pool | None) -> str:
    """Return a sentence, or an empty string if nothing is limited or the limits are unknown."""
    if pool is None or not pool.limits_egress:
        return ""
    all_limits = [*limits]
    if pool.config.get("egress"):
        all_limits.append(EgressLimit(str(pool.config["egress"]), str(pool.config.get("egress_allow") or "")))
    return words_of(all_limits)


def words_of(limits: list[EgressLimit] | tuple[EgressLimit, ...]) -> str:
    """Return what all limits together allow as a sentence; empty if they close nothing."""
    try:
        policy = functools.reduce(
            tightest, (policy_of(limit.egress, limit.allow) for limit in limits), EgressPolicy()
        )
    except InvalidSpec:
        return ""
    match policy.egress:
        case Egress.NONE:
            return _("No network access")
        case Egress.LIST:
            listed = policy.words().replace(",", ", ")
            return _("Only %(listed)s") % {"listed": listed} if listed else _("No network access")
        case Egress.OPEN:
            return ""
