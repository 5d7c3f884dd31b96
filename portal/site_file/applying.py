"""Applies a site file in one transaction, through the services of each section."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from django.db import transaction

from portal.catalog import entries, selectors
from portal.catalog.environments import documents as environments
from portal.catalog.environments import services as environment_services
from portal.catalog.environments.models import Environment
from portal.catalog.models import Flavor, Template
from portal.catalog.rules import is_secret_name
from portal.common.errors import InvalidInput, PortalError
from portal.common.reasons.reason import Reason
from portal.fleet.inventory import locations, pools
from portal.fleet.inventory import services as inventory
from portal.fleet.inventory.models import Pool
from portal.gpu_checks.settings import NAMES as CHECKS
from portal.gpu_checks.settings import set_checks
from portal.people.accounts import services as accounts
from portal.people.accounts import team_egress, teams
from portal.people.accounts.models import Team, User
from portal.people.accounts.policies import require_administrator
from portal.quota.ledger import budgets
from portal.quota.ledger import services as ledger
from portal.quota.limits.models import WEIGHT_ONE, Cohort, TeamShare
from portal.quota.limits.services import cohorts, limits
from portal.quota.limits.types import Fungibility
from portal.quota.requests.models import AutoApproveRule
from portal.quota.requests.services import rules
from portal.reclaim import policy_documents, policy_services
from portal.site_file.codes import SiteCode
from portal.site_file.exporting import current
from portal.site_file.planning import Action, Step, plan
from portal.site_file.reading import Lines, read
from portal.workspaces.secrets import documents as vault_secrets


def compare(*, actor: User, text: str, prune: bool = False) -> list[Step]:
    """Return the steps that `apply` would take. For administrators. Raises `NotAllowed`, `InvalidInput`."""
    require_administrator(actor)
    desired, lines = read(text)
    return _plan(_as_stored(desired, lines), prune=prune)


def apply(*, actor: User, text: str, prune: bool = False) -> list[Step]:
    """Apply the text in one transaction, and return the steps. Idempotent.

    Raises the exceptions of `compare`, and errors of services with their line in the file.
    """
    require_administrator(actor)
    desired, lines = read(text)
    desired = _as_stored(desired, lines)
    with transaction.atomic():
        steps = _plan(desired, prune=prune)
        for step in _order_steps(steps):
            _carry_out(actor, step, lines, first=True)
        for step in steps:
            if step.section in WITH_SUCCESSORS and step.act is not Action.DELETE:
                _carry_out(actor, step, lines, first=False)
    return steps


def _plan(desired: Mapping[str, Any], *, prune: bool) -> list[Step]:
    return plan(current(), desired, prune=prune, protected={"environments": environments.curated_slugs()})


def _as_stored(desired: dict[str, Any], lines: Lines) -> dict[str, Any]:
    """Return the site with normalised policies, Vault paths and environments, for comparison."""
    if isinstance(policies := desired.get("reclaim_policies"), dict):
        reclaim_policies = {
            target: policy_documents.stored_values(policy) for target, policy in policies.items()
        }
        desired = {**desired, "reclaim_policies": reclaim_policies}
    for section in ("teams", "templates"):
        if isinstance(entries_of := desired.get(section), dict):
            desired = {
                **desired,
                section: {name: _normalise_places(entry) for name, entry in entries_of.items()},
            }
    documents = dict(desired.get("environments") or {})
    for name, document in documents.items():
        with _refusals("environments", name, lines):
            documents[name] = environments.validate_document(document)
    return {**desired, "environments": documents} if documents else desired


def _normalise_places(document: dict[str, Any]) -> dict[str, Any]:
    """Return an entry with normalised Vault paths."""
    places = document.get("vault_secrets")
    return (
        document if places is None else {**document, "vault_secrets": vault_secrets.stored_documents(places)}
    )


def _order_steps(steps: list[Step]) -> list[Step]:
    """Order steps by dependency: referenced entries first, and deletions in reverse."""
    changing = [step for step in steps if step.act in (Action.CREATE, Action.CHANGE)]
    deletions = [step for step in steps if step.act is Action.DELETE]
    inner = [step for step in changing if step.section == "cohorts" and step.act is Action.CREATE]
    names = {step.name for step in inner}
    ordered: list[Step] = []
    while inner:
        free = [step for step in inner if (step.desired or {}).get("parent") not in names]
        # Leave a cycle unchanged, so that the service reports the error.
        for step in free or inner[:]:
            ordered.append(step)
            inner.remove(step)
            names.discard(step.name)
    rest = [step for step in changing if step not in ordered]
    before = [step for step in rest if step.section in ("pools", "nodes")]
    return [*before, *ordered, *(step for step in rest if step not in before), *reversed(deletions)]


def _carry_out(actor: User, step: Step, lines: Lines, *, first: bool) -> None:
    with _refusals(step.section, step.name, lines):
        if step.section in WITH_SUCCESSORS:
            _APPLY_SUCCESSORS[step.section](actor, step, first=first)
        else:
            _APPLY_BY_SECTION[step.section](actor, step)


@contextmanager
def _refusals(section: str, name: str, lines: Lines) -> Iterator[None]:
    """Add the line of the entry in the file to errors of services."""
    try:
        yield
    except PortalError as error:
        errors = error.field_errors
        line = lines.line_of((section, name, next(iter(errors), "")))
        problems = [f"{field}: {' '.join(texts)}" for field, texts in errors.items()]
        text = " ".join([error.sentence, *problems])[:500].rstrip(".")
        params = {"line": line, "section": section, "name": name, "reason": text}
        reason = Reason(SiteCode.STEP_REFUSED, params)
        raise InvalidInput(reason, errors={"yaml": [reason]}) from error


def _pool(actor: User, step: Step) -> None:
    fields = dict(step.desired or {})
    checks = {name: fields.pop(name) for name in CHECKS if name in fields}
    if step.act is Action.DELETE:
        pool = Pool.objects.get(slug=step.name, deleted_at=None)
        pool = pools.change(actor=actor, pool=pool, fields={"retiring": True})
        pools.delete(actor=actor, pool=pool)
        return
    if step.act is Action.CREATE:
        pool = inventory.create_pool(
            actor=actor,
            slug=step.name,
            name=fields.get("name", step.name),
            driver=fields.get("driver", ""),
            config=fields.get("config", {}),
        )
    else:
        pool = Pool.objects.get(slug=step.name, deleted_at=None)
    if "config" in fields:
        fields["config"] = _with_secrets(pool.config, fields["config"])
    pools.change(actor=actor, pool=pool, fields=fields)
    if checks:
        set_checks(actor=actor, slug=step.name, **checks)


def _node(actor: User, step: Step) -> None:
    pool, _slash, name = step.name.partition("/")
    key = locations.node_id_of(pool, name)
    locations.set_location(actor=actor, node_id=key, labels=step.desired or {})


def _with_secrets(present: Mapping[str, Any], desired: Mapping[str, Any]) -> dict[str, Any]:
    """Return the desired values plus stored secrets, which a file never contains."""
    secret = {
        name: value for name, value in present.items() if is_secret_name(name) and "{" not in str(value)
    }
    return {**secret, **desired}


def _cohort(actor: User, step: Step) -> None:
    fields = step.desired or {}
    cohort = Cohort.objects.filter(slug=step.name).first()
    if step.act is Action.DELETE:
        if cohort is not None:
            cohorts.delete_cohort(actor=actor, cohort=cohort)
        return
    parent = _named_cohort(fields["parent"]) if "parent" in fields else cohort.parent if cohort else None
    weight = fields.get("weight_milli", cohort.weight_milli if cohort else WEIGHT_ONE)
    rules = Fungibility(
        fields.get("borrow_first", cohort.borrow_first if cohort else True),
        fields.get("preempt_first", cohort.preempt_first if cohort else False),
    )
    if cohort is None:
        cohort = cohorts.create_cohort(
            actor=actor,
            slug=step.name,
            name=fields.get("name", ""),
            parent=parent,
            weight_milli=weight,
            fungibility=rules,
        )
    else:
        cohort = cohorts.change_cohort(
            actor=actor,
            cohort=cohort,
            name=fields.get("name", cohort.name),
            parent=parent,
            weight_milli=weight,
            fungibility=rules,
        )
    if "quotas" in fields:
        _quotas(actor, fields["quotas"], cohort=cohort)


def _named_cohort(slug: str | None) -> Cohort | None:
    if slug is None:
        return None
    cohort = Cohort.objects.filter(slug=slug).first()
    if cohort is None:
        raise InvalidInput(Reason(SiteCode.NO_SUCH_NAME, {"name": slug}))
    return cohort


def _quotas(actor: User, desired: Mapping[str, Any], **owner: Any) -> None:
    """Set the owner's quotas to `desired`."""
    present = set(next(iter(owner.values())).quotas.values_list("resource", flat=True))
    for resource, quota in desired.items():
        limits.set_quota(actor=actor, **owner, resource=resource, **quota)
    for resource in sorted(present - set(desired)):
        limits.remove_quota(actor=actor, **owner, resource=resource)


def _team(actor: User, step: Step) -> None:
    fields = step.desired or {}
    team = Team.objects.filter(slug=step.name).first()
    if team is None:
        team = accounts.create_team(actor=actor, slug=step.name, name=fields.get("name", step.name))
    elif fields.get("name", team.name) != team.name:
        team = teams.rename(actor=actor, team=team, name=fields["name"])
    if "member_shares" in fields:
        teams.set_member_shares(actor=actor, team=team, on=fields["member_shares"])
    if fields.keys() & {"egress", "egress_allow"}:
        team_egress.set_egress(
            actor=actor, team=team, egress=fields.get("egress"), egress_allow=fields.get("egress_allow")
        )
    if fields.keys() & {"cohort", "weight_milli", "reclaim"}:
        share = TeamShare.objects.filter(team=team).select_related("cohort").first()
        cohort = _named_cohort(fields["cohort"]) if "cohort" in fields else share.cohort if share else None
        cohorts.set_share(
            actor=actor,
            team=team,
            cohort=cohort,
            weight_milli=fields.get("weight_milli", share.weight_milli if share else WEIGHT_ONE),
            reclaim=fields.get("reclaim", share.reclaim if share else True),
        )
    if "quotas" in fields:
        _quotas(actor, fields["quotas"], team=team)
    if "member_caps" in fields:
        caps = fields["member_caps"]
        present = set(team.member_caps.filter(user=None).values_list("resource", flat=True))
        for resource, amount in caps.items():
            limits.set_member_cap(actor=actor, team=team, resource=resource, amount=amount)
        for resource in sorted(present - set(caps)):
            limits.remove_member_cap(actor=actor, team=team, resource=resource)
    if "ledger" in fields:
        if fields["ledger"] is None:
            ledger.close_ledger(actor=actor, team=team)
        else:
            ledger.set_ledger(actor=actor, team=team, **fields["ledger"])
    if "budget" in fields:
        if fields["budget"] is None:
            budgets.remove_budget(actor=actor, team=team)
        else:
            budgets.set_budget(actor=actor, team=team, **fields["budget"])
    if "vault_secrets" in fields:
        vault_secrets.apply(actor=actor, holder=team, desired=fields["vault_secrets"])


def _site_limit(actor: User, step: Step) -> None:
    if step.act is Action.DELETE:
        limits.remove_site_limit(actor=actor, resource=step.name)
    else:
        limits.set_site_limit(actor=actor, resource=step.name, amount=step.desired)


def _rate(actor: User, step: Step) -> None:
    if step.act is Action.DELETE:
        limits.remove_rate(actor=actor, resource=step.name)
    else:
        limits.set_rate(actor=actor, resource=step.name, rate_milli=step.desired)


def _entry(actor: User, step: Step, *, first: bool) -> None:
    """Apply a template or flavor. The second pass sets successors, once all entries exist."""
    model: Any = Template if step.section == "templates" else Flavor
    rows: Any = selectors.all_templates() if model is Template else selectors.all_flavors()
    entry = rows.filter(slug=step.name).first()
    if step.act is Action.DELETE:
        if entry is not None:
            entries.delete(actor=actor, entry=entry)
        return
    fields = dict(step.desired or {})
    if not first:
        if "successor" in fields:
            entries.change(actor=actor, entry=entry, values={"successor": fields["successor"]})
        return
    fields.pop("successor", None)
    secrets = fields.pop("vault_secrets", None)
    if entry is None:
        team = _named_team(fields.pop("team", None))
        fields.setdefault("name", step.name)
        entry = entries.create(actor=actor, model=model, values={**fields, "slug": step.name}, team=team)
    else:
        if "env" in fields:
            fields["env"] = _with_secrets(entry.env, fields["env"])
        entries.change(actor=actor, entry=entry, values=fields)
    if secrets is not None:
        vault_secrets.apply(actor=actor, holder=entry, desired=secrets)


def _environment(actor: User, step: Step, *, first: bool) -> None:
    """Apply an environment. The second pass sets its successor."""
    environment = Environment.objects.filter(slug=step.name).first()
    if step.act is Action.DELETE:
        if environment is not None:
            environment_services.delete(actor=actor, environment=environment)
        return
    fields = dict(step.desired or {})
    if not first:
        if "successor" in fields:
            environments.change(actor=actor, slug=step.name, values={"successor": fields["successor"]})
        return
    fields.pop("successor", None)
    if environment is not None and step.act is Action.CHANGE:
        environments.change(actor=actor, slug=step.name, values=fields)
        return
    environments.create(
        actor=actor, slug=step.name, team=_named_team(fields.pop("team", None)), values=fields
    )


def _named_team(slug: str | None) -> Team | None:
    if not slug:
        return None
    team = Team.objects.filter(slug=slug).first()
    if team is None:
        raise InvalidInput(Reason(SiteCode.NO_SUCH_NAME, {"name": slug}))
    return team


def _policy(actor: User, step: Step) -> None:
    """Apply a reclaim policy, by its target."""
    if step.act is Action.DELETE:
        policy_services.delete_for(actor=actor, target=step.name)
    else:
        policy_services.put_policy(actor=actor, target=step.name, values=step.desired or {})


def _rule(actor: User, step: Step) -> None:
    desired = dict(step.desired)
    team, enabled = _named_team(desired.pop("team")), desired.pop("enabled")
    if step.act is Action.DELETE:
        rule = AutoApproveRule.objects.filter(team=team, enabled=enabled, **desired).first()
        if rule is not None:
            rules.delete_rule(actor=actor, rule_id=rule.pk)
        return
    created = rules.create_rule(actor=actor, team=team, **desired)
    if not enabled:
        rules.change_rule(actor=actor, rule_id=created.pk, enabled=False)


_APPLY_SUCCESSORS: dict[str, Any] = {"flavors": _entry, "templates": _entry, "environments": _environment}
WITH_SUCCESSORS = frozenset(_APPLY_SUCCESSORS)
"""Sections whose entries have successors, which are set in a second pass."""
_APPLY_BY_SECTION = {
    "pools": _pool,
    "nodes": _node,
    "cohorts": _cohort,
    "teams": _team,
    "site_limits": _site_limit,
    "rates": _rate,
    "reclaim_policies": _policy,
    "rules": _rule,
}
