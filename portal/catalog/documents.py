"""Entries of the catalog as plain JSON values: what history keeps, REST writes and the site file holds.

A document names teams, pools and other entries by their slugs. Two entries with equal documents are alike.
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
    """The plain fields of a document; slug, team, teams, successor, pool and environment come beside them."""
    return TEMPLATE_FIELDS if model is Template else FLAVOR_FIELDS


def document_of(entry: Template | Flavor) -> Document:
    """The entry's document. Reads `teams`, `successor`, `team`, `pool` and `environment`."""
    found: Document = {"slug": entry.slug}
    if isinstance(entry, Template):
        found["team"] = entry.team.slug if entry.team is not None else None
        found["environment"] = entry.environment.slug if entry.environment is not None else None
    else:
        found["pool"] = entry.pool.slug if entry.pool is not None else None
    found |= {name: getattr(entry, name) for name in fields_of(type(entry))}
    found["teams"] = sorted(team.slug for team in entry.teams.all()) if entry.restricted else None
    found["successor"] = entry.successor.slug if entry.successor is not None else None
    return found


def document_of_new(entry: Template | Flavor) -> Document:
    """The document of an entry that has no row yet: what its columns begin with, for everybody."""
    found: Document = {name: getattr(entry, name) for name in fields_of(type(entry))}
    more = {"environment": None} if isinstance(entry, Template) else {"pool": None}
    return {"slug": entry.slug, **found, **more, "teams": None, "successor": None}


def fill(entry: Template | Flavor, given: Mapping[str, Any]) -> list[Team] | None:
    """Write the fields of a document, or of a part of one, into an entry that is not saved yet.

    `teams` is a list of those that may use it, or None for everybody. Returns the teams to keep, None where
    `given` does not say. Raises `InvalidInput` for names that there are not.
    """
    for name in fields_of(type(entry)):
        if name in given:
            setattr(entry, name, given[name])
    if "environment" in given and isinstance(entry, Template):
        entry.environment = _environment(entry, given["environment"])
    if "pool" in given and isinstance(entry, Flavor):
        entry.pool = _pool(given["pool"])
    if "successor" in given:
        entry.successor = _successor(entry, given["successor"])
    if "teams" not in given:
        return None
    entry.restricted = given["teams"] is not None
    return _teams(given["teams"] or [])


def _refused(field: str, reason: Reason) -> InvalidInput:
    return InvalidInput(reason, errors={field: [reason]})


def _teams(slugs: list[str]) -> list[Team]:
    wanted = {strip_nul(slug) for slug in slugs}
    found = list(Team.objects.filter(slug__in=wanted).order_by("slug"))
    for slug in sorted(wanted - {team.slug for team in found}):
        raise _refused("teams", Reason(CatalogCode.NO_SUCH_TEAM_NAMED, {"slug": slug}))
    return found


def _pool(slug: str | None) -> Pool | None:
    if not slug:
        return None
    pool = Pool.objects.filter(slug=strip_nul(slug), deleted_at=None).first()
    if pool is None:
        raise _refused("pool", Reason(CatalogCode.NO_SUCH_POOL_NAMED, {"slug": slug}))
    return pool


def _environment(template: Template, slug: str | None) -> Environment | None:
    """One that everybody who may use the template may use: everybody's, or the same team's."""
    if not slug:
        return None
    found = Environment.objects.filter(slug=strip_nul(slug)).first()
    if found is None or not (found.team_id is None or found.team_id == template.team_id):
        raise _refused("environment", Reason(EnvironmentCode.NO_SUCH_ENVIRONMENT))
    return found


def _successor(entry: Template | Flavor, slug: str | None) -> Template | Flavor | None:
    """One of the same kind, that everybody who may use the entry may see: the site's, or the same team's."""
    if not slug:
        return None
    rows: Any = type(entry)._default_manager.filter(deleted_at=None, slug=strip_nul(slug))
    if isinstance(entry, Template):
        rows = rows.filter(team=None) | rows.filter(team=entry.team_id)
    found: Template | Flavor | None = rows.first()
    if found is None:
        raise _refused("successor", Reason(CatalogCode.NO_SUCH_SUCCESSOR, {"slug": slug}))
    later: Template | Flavor | None = found
    seen = set()
    while later is not None and later.pk not in seen:
        if later.pk == entry.pk:
            raise _refused("successor", Reason(CatalogCode.SUCCESSOR_CIRCLE, {"slug": slug}))
        seen.add(later.pk)
        later = later.successor
    return found
