"""What a workspace may reach, as its pool and template say: for its node, and in words for people."""

from __future__ import annotations

import functools

from django.utils.translation import gettext as _

from portal.catalog.models import Template
from portal.inventory.models import Pool
from provisioning.drivers.local.egress import Egress, Policy, policy_of, tightest
from provisioning.errors import InvalidSpec
from provisioning.types import EgressLimit

ENFORCED_BY = "local"
"""The driver that keeps workspaces from what they may not reach."""


def limits_of(template: Template) -> tuple[EgressLimit, ...]:
    """What the template adds to what a workspace's pool and node say."""
    if not template.egress:
        return ()
    allow = template.egress_allow if template.egress == Egress.LIST else ""
    return (EgressLimit(template.egress, ",".join(allow.replace(",", " ").split())),)


def in_words(template: Template, pool: Pool | None) -> str:
    """A sentence for people; empty where nothing is limited, or where it is not known."""
    if pool is None or pool.driver != ENFORCED_BY:
        return ""
    config = pool.config
    said = [(limit.egress, limit.allow) for limit in limits_of(template)]
    if config.get("egress"):
        said.append((str(config["egress"]), str(config.get("egress_allow") or "")))
    try:
        policy = functools.reduce(tightest, (policy_of(*each) for each in said), Policy())
    except InvalidSpec:
        return ""
    match policy.egress:
        case Egress.NONE:
            return _("Nothing outside of it")
        case Egress.LIST:
            listed = policy.words().replace(",", ", ")
            return _("Only %(listed)s") % {"listed": listed} if listed else _("Nothing outside of it")
        case Egress.OPEN:
            return ""
