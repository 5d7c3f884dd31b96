"""Egress limits of a workspace from its pool, team and template, for the node and as text."""

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
    """Return the egress limits of the template and the team."""
    return tuple(
        EgressLimit(scope.egress, _allow(scope.egress_allow) if scope.egress == Egress.LIST else "")
        for scope in (template, team)
        if scope.egress
    )


def _allow(text: str) -> str:
    return ",".join(text.replace(",", " ").split())


def limits_at_start(workspace: Workspace) -> tuple[EgressLimit, ...]:
    """Return the template's and team's limits as they were when the workspace was placed."""
    placed = workspace.placed_at
    return limits_of(
        catalog.template_at(workspace.template, placed), team_egress.with_policy_at(workspace.team, placed)
    )


def egress_texts(workspace: Workspace) -> tuple[str, str]:
    """Return the egress of the current start as text, and that of the next start if it differs, else empty.

    The second text is `_("As the pool allows")` if no limits will remain.
    """
    now = egress_sentence(limits_at_start(workspace), workspace.pool)
    planned = egress_sentence(limits_of(workspace.template, workspace.team), workspace.pool)
    if now == planned or workspace.placed_at is None:
        return planned, ""
    return now, planned or _("As the pool allows")


def blocked_by(workspace: Workspace, url: str, address: str) -> dict[str, str]:
    """Return the setting that blocks a Git server, as parameters of `GitCode.NOT_CLONED_EGRESS`.

    `rule` is template, team, pool or node; `name` is the name of that object; `address` is the blocked
    address, if known.
    """
    git_url = git_urls.parsed(url)
    try:
        address = str(ipaddress.ip_address(address)) if address else ""
    except ValueError:  # any program in the workspace can send reports
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
    """Return the limits as text; empty if the pool is unknown or its driver enforces no limits."""
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
    """Return the combined limits as text; empty if they block nothing."""
    return _policy_text(_tightest_of(limits, _BY_DEFAULT))


def _tightest_of(limits: Sequence[EgressLimit], base: EgressLimit) -> EgressPolicy | None:
    """Return the strictest combination of `base` and `limits`, or `None` if one is invalid."""
    try:
        policies = [policy_of(limit.egress, limit.allow) for limit in (base, *limits)]
    except InvalidSpec:
        return None
    return functools.reduce(tightest, policies)


def _policy_text(policy: EgressPolicy | None) -> str:
    """Return the policy as text; empty if it is `None` or blocks nothing."""
    match policy.egress if policy is not None else None:
        case Egress.NONE:
            return _("No network access")
        case Egress.LIST:
            listed = policy.as_text().replace(",", ", ") if policy is not None else ""
            return _("Only %(listed)s") % {"listed": listed} if listed else _("No network access")
        case _:
            return ""
