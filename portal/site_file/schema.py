"""Generates the JSON Schema of site files from the models' fields, for docs/site.schema.json."""

from __future__ import annotations

from typing import Any

from django.core.validators import MaxValueValidator, MinValueValidator
from django.db import models

from portal.catalog.documents import FLAVOR_FIELDS, TEMPLATE_FIELDS
from portal.catalog.environments.documents import ABOUT
from portal.catalog.environments.models import PYTHONS, Environment, SourceKind
from portal.catalog.models import LARGEST, Flavor, Template
from portal.catalog.rules import ICONS
from portal.fleet.inventory.locations import FIELDS as LOCATION
from portal.fleet.inventory.models import PlacementPolicy, Pool, RebalancingPolicy
from portal.gpu_checks.settings import NAMES as CHECKS
from portal.people.accounts.models import Team
from portal.quota.ledger.models import Period
from portal.reclaim.engine.week import DAYS
from portal.reclaim.models import ReclaimPolicy
from portal.reclaim.policy_documents import LIMITS, TIMES, WEEK
from portal.workspaces.secrets.models import Secret
from portal.workspaces.secrets.names import NAME_PATTERN
from portal.workspaces.secrets.places import MAX_KEY, MAX_PATH
from provisioning import location
from provisioning.registry import DRIVERS

VERSION = 1
WHOLE = {"type": "integer", "minimum": 0, "maximum": 2**53}
TEXT = {"type": "string"}
NAMES = {"type": "array", "items": TEXT, "uniqueItems": True}
ARGV = {"type": "array", "items": TEXT, "minItems": 1}
VARIABLES = {"type": "object", "additionalProperties": TEXT}
SCALARS = {"type": "object", "additionalProperties": {"type": ["string", "number", "boolean", "null"]}}


def _field_schema(field: models.Field[Any, Any]) -> dict[str, Any]:
    """Return the schema of a model field."""
    if isinstance(field, models.BooleanField):
        return {"type": "boolean"}
    if isinstance(field, models.IntegerField):
        least = [
            validator.limit_value
            for validator in field.validators
            if isinstance(validator, MinValueValidator)
        ]
        most = [
            validator.limit_value
            for validator in field.validators
            if isinstance(validator, MaxValueValidator)
        ]
        minima = [int(limit) for limit in least if not callable(limit)]
        return {
            "type": ["integer", "null"] if field.null else "integer",
            "minimum": max([0, *minima]),
            "maximum": min([LARGEST, *(int(limit) for limit in most if not callable(limit))]),
        }
    if isinstance(field, models.FloatField):
        limits = {
            type(validator): validator.limit_value
            for validator in field.validators
            if hasattr(validator, "limit_value")
        }
        return {
            "type": "number",
            "minimum": limits[MinValueValidator],
            "maximum": limits[MaxValueValidator],
        }
    if field.choices:
        values = [value for value, _label in field.flatchoices]
        return {"enum": [*dict.fromkeys([*([""] if field.blank else []), *values])]}
    schema: dict[str, Any] = {"type": "string"}
    if field.max_length:
        schema["maxLength"] = field.max_length
    return schema


def _fields(model: Any, names: tuple[str, ...], **special: dict[str, Any]) -> dict[str, Any]:
    return {name: special.get(name) or _field_schema(model._meta.get_field(name)) for name in names}


def _object(
    properties: dict[str, Any], required: tuple[str, ...] = (), description: str = ""
) -> dict[str, Any]:
    schema = {"type": "object", "properties": properties, "additionalProperties": False}
    return {
        **schema,
        **({"required": list(required)} if required else {}),
        **({"description": description} if description else {}),
    }


def _map(value: dict[str, Any], pattern: str, description: str) -> dict[str, Any]:
    names = {"pattern": pattern}
    return {
        "type": "object",
        "propertyNames": names,
        "additionalProperties": value,
        "description": description,
    }


def _nullable(value: dict[str, Any]) -> dict[str, Any]:
    return {**value, "type": [value["type"], "null"]}


SLUG = r"^[a-z0-9](?:[a-z0-9-]*[a-z0-9])?$"
TEMPLATE_SLUG = r"^[a-z0-9](?:[a-z0-9-]*[a-z0-9])?(?:_[a-z0-9](?:[a-z0-9-]*[a-z0-9])?)?$"
TARGET = rf"^(?:site|(?:pool|flavor|team):{SLUG[1:-1]}|template:{TEMPLATE_SLUG[1:-1]})$"
TIME = r"^(?:[01][0-9]|2[0-3]):[0-5][0-9]$"
DATE = r"^[0-9]{4}-[0-9]{2}-[0-9]{2}$"
LOCATION_NAME = {"type": "string", "pattern": rf"^(?:{location.PATTERN})?$"}
NODE = rf"^{SLUG[1:-1]}/.+$"
RESOURCE = r"^[a-z][a-z0-9:._+-]*$"


def schema() -> dict[str, Any]:
    """Return the whole schema (JSON Schema 2020-12)."""
    quota = _object(
        {"quota": WHOLE, "borrowing_limit": _nullable(WHOLE), "lending_limit": _nullable(WHOLE)},
        ("quota",),
    )
    quotas = _map(quota, RESOURCE, "Guaranteed amounts by resource, in base units: 4000 is 4 GPUs.")
    weight = {"type": "integer", "minimum": 1, "maximum": LARGEST}
    vault_secret = _object(
        {
            "path": {"type": "string", "minLength": 1, "maxLength": MAX_PATH},
            "key": {"type": "string", "minLength": 1, "maxLength": MAX_KEY},
            **_fields(Secret, ("kind", "description", "everywhere")),
        },
        ("path", "key"),
    )
    vault_secrets = _map(
        vault_secret,
        f"^{NAME_PATTERN}$",
        "Names of secrets, with their paths in Vault. A site file contains no values.",
    )
    team = {
        "name": {"type": "string", "maxLength": 80},
        **_fields(Team, ("egress", "egress_allow", "member_shares")),
        "cohort": {"type": ["string", "null"]},
        "weight_milli": weight,
        "reclaim": {"type": "boolean"},
        "quotas": quotas,
        "member_caps": _map(WHOLE, RESOURCE, "Maximum amounts for each member, by resource, in base units."),
        "ledger": {
            **_object({"quota": WHOLE, "period": {"enum": list(Period.values)}}, ("quota", "period")),
            "type": ["object", "null"],
        },
        "budget": {
            **_object({"amount_cents": WHOLE, "blocks": {"type": "boolean"}}, ("amount_cents", "blocks")),
            "type": ["object", "null"],
        },
        "vault_secrets": vault_secrets,
    }
    where = _object(dict.fromkeys(LOCATION, LOCATION_NAME))
    cohort = {
        "name": {"type": "string", "maxLength": 80},
        "parent": {"type": ["string", "null"]},
        "weight_milli": weight,
        "borrow_first": {"type": "boolean"},
        "preempt_first": {"type": "boolean"},
        "quotas": quotas,
    }
    pool = {
        "driver": {"enum": sorted(DRIVERS)},
        "name": {"type": "string", "maxLength": 80},
        "config": SCALARS,
        "placement_policy": {"enum": list(PlacementPolicy.values)},
        "rebalancing": {"enum": list(RebalancingPolicy.values)},
        "enabled": {"type": "boolean"},
        "retiring": {"type": "boolean"},
        **_fields(Pool, CHECKS),
    }
    entry = {"teams": _nullable(NAMES), "successor": {"type": ["string", "null"]}}
    template = {
        "team": {"type": ["string", "null"]},
        "environment": {"type": ["string", "null"]},
        **_fields(
            Template, TEMPLATE_FIELDS, argv=ARGV, env=VARIABLES, icon={"enum": ["", *ICONS]}, mounts=NAMES
        ),
        "vault_secrets": vault_secrets,
        **entry,
    }
    environment = {
        "team": {"type": ["string", "null"]},
        **_fields(Environment, (*ABOUT, "python")),
        "successor": {"type": ["string", "null"]},
        "source_kind": {"enum": list(SourceKind.values)},
        "source": {**TEXT, "description": "List of packages, one per line, or the contents of the file."},
        "build": {
            "type": "boolean",
            "description": "Whether to build a new version when the source changes. False: only on request.",
        },
    }
    environment["python"] = {"enum": list(PYTHONS)}
    flavor = {
        "pool": {"type": ["string", "null"]},
        **_fields(Flavor, FLAVOR_FIELDS, accelerator_models=NAMES),
        **entry,
    }
    rule = _object(
        {
            "team": {"type": ["string", "null"]},
            "resource": {"type": "string", "pattern": RESOURCE},
            "amount_at_most": WHOLE,
            "hours_at_most": WHOLE,
            "enabled": {"type": "boolean"},
        },
        ("resource", "amount_at_most", "hours_at_most"),
    )
    policy = {
        **_fields(ReclaimPolicy, LIMITS, stop_when_spent={"type": ["boolean", "null"]}),
        **_fields(
            ReclaimPolicy,
            WEEK,
            days={"type": "array", "items": {"enum": list(DAYS)}, "uniqueItems": True},
            holidays={"type": "array", "items": {"type": "string", "pattern": DATE}, "uniqueItems": True},
            **{name: {"type": ["string", "null"], "pattern": TIME} for name in TIMES},
        ),
    }
    provider = _object({"id": TEXT, "name": TEXT, "kind": TEXT, "enabled": {"type": "boolean"}}, ("id",))
    properties = {
        "berth": {"const": VERSION, "description": "Version of the format."},
        "pools": _map(_object(pool), SLUG, "Pools of machines, by slug."),
        "nodes": _map(where, NODE, "Locations of nodes, by pool and name: `pool/name`."),
        "cohorts": _map(_object(cohort), SLUG, "Groups of teams that lend each other unused quota, by slug."),
        "teams": _map(_object(team), SLUG, "Teams with their quotas, GPU-hours and budgets, by slug."),
        "site_limits": _map(
            WHOLE, RESOURCE, "Maximum amounts for all teams together, by resource, in base units."
        ),
        "rates": _map(
            WHOLE, RESOURCE, "Cost of an hour of a whole unit, in thousandths of a GPU-hour, by resource."
        ),
        "environments": _map(_object(environment), SLUG, "Software environments, by slug."),
        "flavors": _map(_object(flavor), SLUG, "Sizes of workspaces."),
        "templates": _map(_object(template), TEMPLATE_SLUG, "Apps of workspaces, by slug."),
        "reclaim_policies": _map(
            _object(policy),
            TARGET,
            "Policies for stopping workspaces, by scope: `site`, or a pool, team, template or flavor.",
        ),
        "rules": {
            "type": "array",
            "items": rule,
            "description": "Rules that approve requests automatically.",
        },
        "sign_in_providers": {
            "type": "array",
            "items": provider,
            "description": "Configuration of the server, without secrets. `apply` does not change it.",
        },
    }
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "Berth site file",
        **_object(properties, ("berth",)),
    }
