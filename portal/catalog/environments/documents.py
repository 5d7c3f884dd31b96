"""Environments as JSON documents for the site file."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from django.db import transaction

from portal.catalog.codes import CatalogCode
from portal.catalog.environments import services, sources
from portal.catalog.environments.codes import EnvironmentCode
from portal.catalog.environments.models import Environment, EnvironmentVersion, Kind, SourceKind, VersionState
from portal.common.actors import SystemActor
from portal.common.errors import InvalidInput, NotFound
from portal.common.reasons.reason import Reason
from portal.people.accounts.models import Team, User

ABOUT = ("name", "description", "enabled", "deprecated", "notebook")
OF_SOURCE = ("source_kind", "source", "python")


def documents() -> dict[str, dict[str, Any]]:
    """Return all built environments by slug, in two queries, without software installed on nodes.

    `source_kind`, `source` and `python` are those of the newest version until it is ready, else of the
    current one. So pending and failed builds do not change the document. `build` is whether a build was
    requested.
    """
    rows = Environment.objects.filter(kind=Kind.BUILT).select_related("team", "successor").order_by("slug")
    environments = list(rows)
    newest: dict[Any, EnvironmentVersion] = {}
    current: dict[Any, EnvironmentVersion] = {}
    chosen = {environment.current_id for environment in environments}
    versions = EnvironmentVersion.objects.defer("lock", "packages", "programs").order_by("number")
    for version in versions:
        newest[version.environment_id] = version
        if version.pk in chosen:
            current[version.environment_id] = version
    return {
        environment.slug: _document(
            environment, _exported_version(newest.get(environment.pk), current.get(environment.pk))
        )
        for environment in environments
    }


def _exported_version(
    newest: EnvironmentVersion | None, current: EnvironmentVersion | None
) -> EnvironmentVersion | None:
    if newest is not None and newest.state != VersionState.READY:
        return newest
    return current or newest


def _document(environment: Environment, version: EnvironmentVersion | None) -> dict[str, Any]:
    document: dict[str, Any] = {
        "team": environment.team.slug if environment.team is not None else None,
        **{name: getattr(environment, name) for name in ABOUT},
        "successor": environment.successor.slug if environment.successor is not None else None,
    }
    if version is not None:
        document |= {name: getattr(version, name) for name in OF_SOURCE}
        if version.source_kind == SourceKind.FOLDER:
            del document["python"]  # the folder determines it
        document["build"] = version.state != VersionState.NEW
    return document


def curated_slugs() -> frozenset[str]:
    """Return the environments that come with Berth, which cannot be deleted."""
    return frozenset(Environment.objects.filter(curated=True).values_list("slug", flat=True))


def validate_document(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return a document with normalised texts and source. Raises `InvalidInput`, with line numbers."""
    document = dict(values)
    for name in services.LENGTHS:
        if name in document:
            document[name] = services.normalize_text_field(name, document[name])
    if "python" in document:
        sources.python_of(document["python"])
    if "source" in document:
        source = document.get("source_kind", SourceKind.PACKAGES), document["source"]
        kind, text = sources.validate_source(*source, document.get("python", ""))
        if python := sources.required_python(*source):
            document.setdefault("python", python)
        document["source"] = text
        if "source_kind" in document or kind != SourceKind.PACKAGES:
            document["source_kind"] = kind.value
        if kind == SourceKind.FOLDER:
            document.pop("python", None)
    elif "source_kind" in document:
        raise _needs_source()
    return document


@transaction.atomic
def create(
    *, actor: User | SystemActor, slug: str, team: Team | None, values: Mapping[str, Any]
) -> Environment:
    """Create the environment of a document; `change` sets its successor. Raises like `services.create`."""
    if "source" not in values:
        raise _needs_source()
    environment = services.create(
        actor=actor,
        team=team,
        slug=slug,
        name=values.get("name", slug),
        description=values.get("description", ""),
        source_kind=values.get("source_kind", SourceKind.PACKAGES),
        source=values["source"],
        python=values.get("python", ""),
        notebook=values.get("notebook", True),
        build=values.get("build", True),
        anywhere=True,
    )
    later = {name: values[name] for name in ("enabled", "deprecated") if name in values}
    return services.change(actor=actor, environment=environment, **later) if later else environment


@transaction.atomic
def change(*, actor: User | SystemActor, slug: str, values: Mapping[str, Any]) -> Environment:
    """Apply a document to an environment. A different source or Python creates and builds a version.

    Raises like `services.change` and `services.change_source`, and `NotFound`.
    """
    environment = Environment.objects.filter(slug=slug).select_related("team", "successor").first()
    if environment is None:
        raise NotFound(Reason(EnvironmentCode.NO_SUCH_ENVIRONMENT))
    team = environment.team.slug if environment.team is not None else None
    if "team" in values and values["team"] != team:
        fixed = Reason(CatalogCode.FIELD_FIXED, {"field": "team"})
        raise InvalidInput(fixed, errors={"team": [fixed]})
    description = {name: values[name] for name in ABOUT if name in values}
    if "successor" in values:
        description["successor"] = values["successor"] or ""
    if description:
        environment = services.change(actor=actor, environment=environment, **description)
    present = documents().get(slug, {})
    source_values = {name: values.get(name, present.get(name)) for name in OF_SOURCE}
    if any(name in values for name in OF_SOURCE) and any(
        source_values[name] != present.get(name) for name in OF_SOURCE
    ):
        services.change_source(actor=actor, environment=environment, anywhere=True, **source_values)
    elif values.get("build") and present.get("build") is False:
        services.rebuild(actor=actor, environment=environment)
    return environment


def _needs_source() -> InvalidInput:
    reason = Reason(EnvironmentCode.NOTHING_ASKED_FOR)
    return InvalidInput(reason, errors={"source": [reason]})
