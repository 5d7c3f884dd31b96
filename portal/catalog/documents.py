"""Catalog entries as JSON documents, for history, REST and the site file.

A document names teams, pools and other entries by slug. Entries with equal documents are equal.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

from portal.catalog.codes import CatalogCode
from portal.catalog.environments.codes import EnvironmentCode
from portal.catalog.environments.models import Environment
from portal.catalog.models import Flavor, Template
from portal.common.errors import InvalidInput
from portal.common.reasons.reason import Reason
from portal.common.texts import strip_nul
from portal.fleet.inventory.models import Pool
from portal.people.accounts.models import Team

E = TypeVar("E", Template, Flavor)
Document = dict[str, Any]
FIXED = ("slug", "team")
COMMON = ("default_lifetime_hours", "max_lifetime_hours", "enabled", "position", "deprecated")
TEMPLATE_FIELDS = (
    "name", "description", "icon", "program", "install_hint", "min_cuda", "min_compute_capability", "argv",
    "env", "startup", "ready_path", "open_path", "upstream_auth", "service_workers", "activity", "egress",
    "egress_allow", "git_url", "git_ref", "git_secret", "dotfiles_url", "mounts",
    "start_timeout_s", "stop_timeout_s", "work_lost", *COMMON,
)  # fmt: skip
FLAVOR_FIELDS = (
    "name", "description", "cpu_milli", "memory_mib", "disk_mib", "nodes", "accelerator_count",
    "accelerator_model", "accelerator_models", "accelerator_milli", "accelerator_memory_mib", "mig_profile",
    "within", "preemptible", "work_lost", "expected_hours", "price_cents", *COMMON,
)  # fmt: skip


def fields_of(model: type[Template] | type[Flavor]) -> tuple[str, ...]:
    """Return the plain fields of a document, without slug and relations."""
    return TEMPLATE_FIELDS if model is Template else FLAVOR_FIELDS


def document_of(entry: Template | Flavor) -> Document:
    """Return the entry's document. Reads `teams`, `successor`, `team`, `pool` and `environment`."""
    document: Document = {"slug": entry.slug}
    if isinstance(entry, Template):
        document["team"] = entry.team.slug if entry.team is not None else None
        document["environment"] = entry.environment.slug if entry.environment is not None else None
    else:
        document["pool"] = entry.pool.slug if entry.pool is not None else None
    document |= {name: getattr(entry, name) for name in fields_of(type(entry))}
    document["teams"] = sorted(team.slug for team in entry.teams.all()) if entry.restricted else None
    document["successor"] = entry.successor.slug if entry.successor is not None else None
    return document


def document_of_new(entry: Template | Flavor) -> Document:
    """Return the document of an unsaved entry with defaults."""
    document: Document = {name: getattr(entry, name) for name in fields_of(type(entry))}
    relations = {"environment": None} if isinstance(entry, Template) else {"pool": None}
    return {"slug": entry.slug, **document, **relations, "teams": None, "successor": None}


def fill(entry: Template | Flavor, values: Mapping[str, Any]) -> list[Team] | None:
    """Write the fields of a full or partial document to an unsaved entry.

    `teams` lists the teams that may use the entry; None means all teams. Returns the teams to store, or None
    if `values` has no `teams`. Raises `InvalidInput` for unknown names.
    """
    for name in fields_of(type(entry)):
        if name in values:
            setattr(entry, name, values[name])
    if "environment" in values and isinstance(entry, Template):
        entry.environment = _environment(entry, values["environment"])
    if "pool" in values and isinstance(entry, Flavor):
        entry.pool = _pool(values["pool"])
    if "successor" in values:
        entry.successor = _successor(entry, values["successor"])
    if "teams" not in values:
        return None
    entry.restricted = values["teams"] is not None
    return _teams(values["teams"] or [])


def _field_error(field: str, reason: Reason) -> InvalidInput:
    return InvalidInput(reason, errors={field: [reason]})


def _teams(slugs: list[str]) -> list[Team]:
    requested_slugs = {strip_nul(slug) for slug in slugs}
    teams = list(Team.objects.filter(slug__in=requested_slugs).order_by("slug"))
    for slug in sorted(requested_slugs - {team.slug for team in teams}):
        raise _field_error("teams", Reason(CatalogCode.NO_SUCH_TEAM_NAMED, {"slug": slug}))
    return teams


def _pool(slug: str | None) -> Pool | None:
    if not slug:
        return None
    pool = Pool.objects.filter(slug=strip_nul(slug), deleted_at=None).first()
    if pool is None:
        raise _field_error("pool", Reason(CatalogCode.NO_SUCH_POOL_NAMED, {"slug": slug}))
    return pool


def _environment(template: Template, slug: str | None) -> Environment | None:
    """Return an environment that all users of the template may use: a general one, or their team's."""
    if not slug:
        return None
    environment = Environment.objects.filter(slug=strip_nul(slug)).first()
    if environment is None or not (environment.team_id is None or environment.team_id == template.team_id):
        raise _field_error("environment", Reason(EnvironmentCode.NO_SUCH_ENVIRONMENT))
    return environment


def _successor(entry: Template | Flavor, slug: str | None) -> Template | Flavor | None:
    """Return a successor of the same kind that all users of the entry may see.

    Raises `InvalidInput` for an unknown slug or a cycle.
    """
    if not slug:
        return None
    rows: Any = type(entry)._default_manager.filter(deleted_at=None, slug=strip_nul(slug))
    if isinstance(entry, Template):
        rows = rows.filter(team=None) | rows.filter(team=entry.team_id)
    successor: Template | Flavor | None = rows.first()
    if successor is None:
        raise _field_error("successor", Reason(CatalogCode.NO_SUCH_SUCCESSOR, {"slug": slug}))
    later: Template | Flavor | None = successor
    seen = set()
    while later is not None and later.pk not in seen:
        if later.pk == entry.pk:
            raise _field_error("successor", Reason(CatalogCode.SUCCESSOR_CIRCLE, {"slug": slug}))
        seen.add(later.pk)
        later = later.successor
    return successor
