"""Network egress of a workspace by its pool, team and template, for its node and as text."""

from __future__ import annotations

import functools
import ipaddress
from collections.abc import Sequence

from django.utils.translation import gettext as _

from portal.catalog import selectors as catalog
from portal.catalog.models import Template
from portal.fleet.inventory.models import Pool
from portal.people.accounts import team_egress
from portal.people.accounts.models import Team
from portal.workspaces.models import Workspace
from provisioning import git_urls
from provisioning.egress_rules import Egress, EgressPolicy, policy_of, reachable, tightest
from provisioning.errors import InvalidSpec
from provisioning.types import EgressLimit

_BY_DEFAULT = EgressLimit(Egress.OPEN.value)


def limits_of(template: Template, team: Team) -> tuple[EgressLimit, ...]:
    """Return the limits that template and team add to those of pool and node."""
    return tuple(
        EgressLimit(scope.egress, _allow(scope.egress_allow) if scope.egress == Egress.LIST else "")
        for scope in (template, team)
        if scope.egress
    )


def _allow(text: str) -> str:
    return ",".join(text.replace(",", " ").split())


def limits_at_start(workspace: Workspace) -> tuple[EgressLimit, ...]:
    """Return the limits of the current start: those of template and team at its placement."""
    placed = workspace.placed_at
    return limits_of(
        catalog.template_at(workspace.template, placed), team_egress.with_policy_at(workspace.team, placed)
    )


def egress_texts(workspace: Workspace) -> tuple[str, str]:
    """Return what the current start may reach, and what the next one may if that differs, as text or empty.

    The second is `_("What its pool allows")` if no limits will remain.
    """
    now = egress_sentence(limits_at_start(workspace), workspace.pool)
    planned = egress_sentence(limits_of(workspace.template, workspace.team), workspace.pool)
    if now == planned or workspace.placed_at is None:
        return planned, ""
    return now, planned or _("As the pool allows")


def blocked_by(workspace: Workspace, url: str, address: str) -> dict[str, str]:
    """Return the setting that blocks a Git server, as parameters of `GitCode.NOT_CLONED_EGRESS`.

    `rule` is template, team, pool or node, `name` its name, `address` the blocked address if known.
    """
    git_url = git_urls.parsed(url)
    try:
        address = str(ipaddress.ip_address(address)) if address else ""
    except ValueError:  # programs of the workspace can send reports too
        address = ""
    params = {"rule": "node", "name": "", "address": address}
    if isinstance(git_url, git_urls.UrlProblem):
        return params
    port = git_url.port or (22 if git_url.scheme == "ssh" else 443)
    placed = workspace.placed_at
    template = catalog.template_at(workspace.template, placed)
    team = team_egress.with_policy_at(workspace.team, placed)
    pool = workspace.pool
    config = pool.config if pool is not None else {}
    for rule, name, kind, allow in (
        ("template", template.name, template.egress, template.egress_allow),
        ("team", workspace.team.name, team.egress, team.egress_allow),
        ("pool", pool.name if pool is not None else "", config.get("egress"), config.get("egress_allow")),
    ):
        try:
            policy = policy_of(str(kind), str(allow or "")) if kind else None
        except InvalidSpec:
            continue
        if policy is not None and not allows(policy, git_url.host, port, address):
            return {**params, "rule": rule, "name": name}
    return params


def allows(policy: EgressPolicy, host: str, port: int, address: str) -> bool:
    """Return whether a policy allows connections to a host with this address (empty: unknown)."""
    if policy.egress is Egress.NONE:
        return False
    network = ipaddress.ip_network(address) if address else None
    if network is not None and reachable(network, policy):
        return True
    if policy.egress is Egress.OPEN:
        return network is None
    return any(rule.covers(host, port) for rule in policy.hosts)


def egress_sentence(limits: tuple[EgressLimit, ...], pool: Pool | None) -> str:
    """Return a sentence; an empty string if the pool is unknown, or its driver enforces no limits."""
    if pool is None or not pool.traits.limits_egress:
        return ""
    own = str(pool.config.get("egress") or ""), str(pool.config.get("egress_allow") or "")
    policy = _tightest_of(limits, EgressLimit(*own) if own[0] else _BY_DEFAULT)
    if policy is None or policy.egress is not Egress.OPEN:
        return _policy_text(policy)
    if not pool.config.get("egress"):
        return _("Set by the node. Default: the internet, no private networks")
    if policy.allowed:
        listed = policy.as_text().replace(",", ", ")
        return _("The internet, and of private networks only %(listed)s") % {"listed": listed}
    return _("The internet, no private networks")


def limits_sentence(limits: Sequence[EgressLimit]) -> str:
    """Return what all limits together allow as a sentence; empty if they close nothing."""
    return _policy_text(_tightest_of(limits, _BY_DEFAULT))


def _tightest_of(limits: Sequence[EgressLimit], base: EgressLimit) -> EgressPolicy | None:
    """Return the policy of all limits together with that of the pool; None if one is invalid."""
    try:
        policies = [policy_of(limit.egress, limit.allow) for limit in (base, *limits)]
    except InvalidSpec:
        return None
    return functools.reduce(tightest, policies)


def _policy_text(policy: EgressPolicy | None) -> str:
    """Return what a policy allows as a sentence; empty if it closes nothing, or is unknown."""
    match policy.egress if policy is not None else None:
        case Egress.NONE:
            return _("No network access")
        case Egress.LIST:
            listed = policy.as_text().replace(",", ", ") if policy is not None else ""
            return _("Only %(listed)s") % {"listed": listed} if listed else _("No network access")
        case _:
            return ""
