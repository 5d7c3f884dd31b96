"""Chooses a workspace's software environment: the requested one, its template's, or the node's."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from portal.catalog.codes import CatalogCode
from portal.catalog.environments import policies, selectors
from portal.catalog.environments.codes import EnvironmentCode
from portal.catalog.environments.domain_events import VersionReady
from portal.catalog.environments.models import Environment, EnvironmentVersion, Kind, VersionState
from portal.catalog.models import Template
from portal.catalog.rules import environment_problem
from portal.catalog.selectors import node_programs
from portal.common.domain_events import emit
from portal.common.errors import InvalidInput, NotAllowed, NotFound, PortalError, StateConflict
from portal.common.reasons.reason import Reason
from portal.fleet.inventory.held_environments import environment_need
from portal.people.accounts.models import Team, User
from portal.workspaces.codes import WorkspaceCode
from portal.workspaces.domain_events import RequestChanged
from portal.workspaces.models import Workspace


@dataclass(frozen=True, slots=True)
class Software:
    """The environment of a workspace and its version; both `None` for the software of the node."""

    environment: Environment | None = None
    version: EnvironmentVersion | None = None

    @property
    def digest(self) -> str:
        return selectors.digest_for(self.version) if self.version is not None else ""

    @property
    def waits(self) -> bool:
        """Whether the environment has to be built first."""
        return self.version is not None and self.version.state != VersionState.READY


ON_THE_NODE = Software()


def default_of(template: Template, team: Team | None) -> Software:
    """Return the default software: the template's environment if available, else the node's."""
    return defaults_of([template], team)[template.pk]


def defaults_of(templates: Iterable[Template], team: Team | None) -> dict[UUID, Software]:
    """Return the default software of several templates, by primary key, with a fixed number of queries."""
    rows = list(templates)
    own = [template.environment for template in rows if template.environment is not None]
    coming = selectors.pending_versions(own)
    programs = node_programs().installed if coming else None
    defaults = {}
    for template in rows:
        environment = template.environment
        if environment is None:
            defaults[template.pk] = ON_THE_NODE
            continue
        pending = coming.get(environment.pk)
        # No build is needed if the nodes already have the program.
        is_spared = pending is not None and (programs is None or template.program in programs)
        is_refused = refusal_of(template, team, environment, pending) is not None
        version = pending.version if pending is not None else environment.current
        defaults[template.pk] = ON_THE_NODE if is_spared or is_refused else Software(environment, version)
    return defaults


def choose_software(template: Template, team: Team | None, environment: Environment | None) -> Software:
    """Return the software for a requested environment or `None`.

    Raises `PortalError` if it is not available.
    """
    if environment is None:
        return default_of(template, team)
    reason = refusal_of(template, team, environment)
    if reason is not None:
        raise _refusals[reason.code](reason, code=reason.code, errors={"environment": [reason]})
    return _software_of(environment)


def refusal_of(
    template: Template,
    team: Team | None,
    environment: Environment,
    coming: selectors.PendingVersion | None = None,
) -> Reason | None:
    """Return why a workspace of the template and team cannot use the environment now, or `None`.

    `coming` is as in `environment_problem`.
    """
    if not policies.may_use(environment, team):
        where = {"environment": environment.name, "team": team.name if team is not None else ""}
        return Reason(WorkspaceCode.ENVIRONMENT_NOT_FOR_TEAM, where)
    return environment_problem(template, environment, coming)


def deprecation_of(environment: Environment) -> Reason | None:
    """Return a warning with the successor if the environment is deprecated, else `None`."""
    if not environment.deprecated:
        return None
    if environment.successor is not None:
        after = {"name": environment.name, "successor": environment.successor.name}
        return Reason(CatalogCode.ENTRY_HAS_SUCCESSOR, after)
    return Reason(CatalogCode.ENTRY_DEPRECATED, {"name": environment.name})


def environment_to_repeat(last: Workspace) -> Environment | None:
    """Return the environment that a similar request would name, or `None` if it is no longer available."""
    version = last.environment_version
    if version is None:
        return None
    environment = version.environment
    return environment if refusal_of(last.template, last.team, environment) is None else None


def find_environment(actor: User, slug: str) -> Environment | None:
    """Return the environment with this slug, or `None` for an empty one. Raises `InvalidInput`."""
    if not slug:
        return None
    try:
        return selectors.environment_by_slug(actor, slug)
    except NotFound as error:
        raise InvalidInput(error.reason, errors={"environment": [error.reason]}) from error


def add_software_need(resources: Mapping[str, Any], digest: str) -> dict[str, Any]:
    """Return the resources, with the node requirement for this environment unless `digest` is empty."""
    if not digest:
        return dict(resources)
    return {**resources, "needs": [*resources.get("needs", ()), environment_need(digest)]}


def version_ready(event: VersionReady) -> None:
    """Switch workspaces that waited for this environment to its ready version."""
    version = event.version
    rows = (
        Workspace.objects.live()
        .select_for_update(of=("self",))
        .filter(environment_version__environment=version.environment_id)
        .order_by("pk")
    )
    for row in rows:
        needs = row.resources.get("needs", [])
        coming = [need for need in needs if need.startswith(environment_need(selectors.PENDING))]
        if not coming:
            continue
        others = [need for need in needs if need not in coming]
        row.resources = {**row.resources, "needs": [*others, environment_need(version.digest)]}
        row.environment_version = version
        row.save(update_fields=["resources", "environment_version"])
        emit(RequestChanged(row))


def _software_of(environment: Environment) -> Software:
    if environment.current is None and environment.kind == Kind.BUILT:
        return Software(environment, selectors.newest_version(environment))
    return Software(environment, environment.current)


_refusals: dict[Any, type[PortalError]] = {
    WorkspaceCode.ENVIRONMENT_NOT_FOR_TEAM: NotAllowed,
    EnvironmentCode.SWITCHED_OFF: InvalidInput,
    EnvironmentCode.NOT_READY: StateConflict,
    EnvironmentCode.NOT_INSTALLED: StateConflict,
    EnvironmentCode.LACKS_PROGRAM: InvalidInput,
}
