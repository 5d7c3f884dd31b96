"""Exports the site as a document without secrets."""

from __future__ import annotations

from typing import Any

import yaml

from portal.catalog import documents, selectors
from portal.catalog.environments import documents as environments
from portal.catalog.rules import is_secret_name
from portal.common.actors import SystemActor
from portal.fleet.inventory import locations, pools
from portal.fleet.inventory.models import Node, Pool
from portal.gpu_checks.settings import NAMES as CHECKS
from portal.people.accounts import team_egress
from portal.people.accounts.models import Team, User
from portal.people.accounts.policies import require_see_people
from portal.people.identity import registry
from portal.quota.ledger.models import Budget, LedgerAccount
from portal.quota.limits.models import (
    WEIGHT_ONE,
    Cohort,
    MemberCap,
    Quota,
    ResourceRate,
    SiteLimit,
    TeamShare,
)
from portal.quota.requests.models import AutoApproveRule
from portal.reclaim import policy_documents
from portal.site_file.schema import VERSION
from portal.workspaces.secrets import documents as vault_secrets

HEAD = "# A Berth site. Compare with `berth plan -f FILE`, apply with `berth apply -f FILE`.\n"
RULE = ("resource", "amount_at_most", "hours_at_most", "enabled")


def export(*, actor: User | SystemActor) -> dict[str, Any]:
    """Return the site without users, workspaces and secrets. For administrators and auditors.

    Nodes without a location are omitted.
    """
    require_see_people(actor)
    site = current()
    site["nodes"] = {name: where for name, where in site["nodes"].items() if any(where.values())}
    return site


def current() -> dict[str, Any]:
    """Return the site without a permission check. The number of queries hardly depends on its size."""
    of_teams, of_templates = vault_secrets.all_documents()
    return {
        "berth": VERSION,
        "pools": {pool.slug: _pool(pool) for pool in Pool.objects.filter(deleted_at=None).order_by("slug")},
        "nodes": _nodes(),
        "cohorts": _cohorts(),
        "teams": _teams(of_teams),
        "site_limits": dict(SiteLimit.objects.order_by("resource").values_list("resource", "amount")),
        "rates": dict(ResourceRate.objects.order_by("resource").values_list("resource", "rate_milli")),
        "environments": environments.documents(),
        "flavors": {
            entry.slug: drop_secrets(documents.document_of(entry))
            for entry in selectors.all_flavors().order_by("slug")
        },
        "templates": {
            entry.slug: {
                **drop_secrets(documents.document_of(entry)),
                "vault_secrets": of_templates.get(entry.pk, {}),
            }
            for entry in selectors.all_templates().order_by("slug")
        },
        "reclaim_policies": policy_documents.all_documents(),
        "rules": [
            {"team": rule.team.slug if rule.team else None, **{name: getattr(rule, name) for name in RULE}}
            for rule in AutoApproveRule.objects.select_related("team").order_by(
                "team__slug", "resource", "amount_at_most", "hours_at_most", "enabled", "pk"
            )
        ],
        "sign_in_providers": [
            {"id": provider.id, "name": provider.name, "kind": provider.kind, "enabled": provider.enabled}
            for provider in registry.all_providers()
        ],
    }


class _Dumper(yaml.SafeDumper):
    """Writes multi-line strings as block scalars where possible."""


def _as_text(dumper: yaml.SafeDumper, text: str) -> yaml.Node:
    style = "|" if "\n" in text else None
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)


_Dumper.add_representer(str, _as_text)


def as_yaml(site: dict[str, Any]) -> str:
    """Return the document as the text of a site file."""
    body: str = yaml.dump(site, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=110)
    return HEAD + body


def drop_secrets(document: dict[str, Any]) -> dict[str, Any]:
    """Return an entry's document without its slug and without values that look like secrets."""
    fields = {name: value for name, value in document.items() if name != "slug"}
    for field in ("env", "config"):
        if isinstance(fields.get(field), dict):
            fields[field] = {
                name: value
                for name, value in fields[field].items()
                if not (is_secret_name(name) and "{" not in str(value))
            }
    return fields


def _pool(pool: Pool) -> dict[str, Any]:
    checks = {name: getattr(pool, name) for name in CHECKS}
    return {**drop_secrets(pools.document_of(pool)), **checks}


def _nodes() -> dict[str, dict[str, str]]:
    nodes = Node.objects.filter(pool__deleted_at=None, retired=False).select_related("pool")
    return {
        f"{node.pool.slug}/{node.name}": locations.document_of(node)
        for node in nodes.only("name", "pool__slug", *locations.FIELDS).order_by("pool__slug", "name")
    }


def _quotas() -> dict[tuple[Any, Any], dict[str, Any]]:
    by_holder: dict[tuple[Any, Any], dict[str, Any]] = {}
    for quota in Quota.objects.order_by("resource"):
        by_holder.setdefault((quota.team_id, quota.cohort_id), {})[quota.resource] = {
            "quota": quota.quota,
            "borrowing_limit": quota.borrowing_limit,
            "lending_limit": quota.lending_limit,
        }
    return by_holder


def _cohorts() -> dict[str, Any]:
    quotas = _quotas()
    return {
        cohort.slug: {
            "name": cohort.name,
            "parent": cohort.parent.slug if cohort.parent else None,
            "weight_milli": cohort.weight_milli,
            "borrow_first": cohort.borrow_first,
            "preempt_first": cohort.preempt_first,
            "quotas": quotas.get((None, cohort.pk), {}),
        }
        for cohort in Cohort.objects.select_related("parent").order_by("slug")
    }


def _teams(secrets: vault_secrets.Documents) -> dict[str, Any]:
    quotas = _quotas()
    shares = {share.team_id: share for share in TeamShare.objects.select_related("cohort")}
    ledgers = {row.team_id: row for row in LedgerAccount.objects.all()}
    budgets = {row.team_id: row for row in Budget.objects.all()}
    caps: dict[Any, dict[str, int]] = {}
    for cap in MemberCap.objects.filter(user=None).order_by("resource"):
        caps.setdefault(cap.team_id, {})[cap.resource] = cap.amount
    teams = {}
    for team in Team.objects.filter(deletion_started_at=None).order_by("slug"):
        share, ledger, budget = shares.get(team.pk), ledgers.get(team.pk), budgets.get(team.pk)
        teams[team.slug] = {
            "name": team.name,
            **team_egress.document_of(team),
            "member_shares": team.member_shares,
            "cohort": share.cohort.slug if share and share.cohort else None,
            "weight_milli": share.weight_milli if share else WEIGHT_ONE,
            "reclaim": share.reclaim if share else True,
            "quotas": quotas.get((team.pk, None), {}),
            "member_caps": caps.get(team.pk, {}),
            "ledger": {"quota": ledger.quota, "period": ledger.period} if ledger else None,
            "budget": {"amount_cents": budget.amount_cents, "blocks": budget.blocks} if budget else None,
            "vault_secrets": secrets.get(team.pk, {}),
        }
    return teams
