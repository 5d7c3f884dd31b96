"""Which software environment a workspace runs in: the one that was named, its template's, or the node's."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from portal.catalog.codes import CatalogCode
from portal.catalog.environments import policies, selectors
from portal.catalog.environments.codes import EnvironmentCode
from portal.catalog.environments.domain_events import VersionReady
from portal.catalog.environments.models import Environment, EnvironmentVersion, Kind, VersionState
from portal.catalog.models import Template
from portal.catalog.rules import why_not_in
from portal.catalog.selectors import installed_programs
from portal.common.domain_events import emit
from portal.common.errors import InvalidInput, NotAllowed, NotFound, PortalError, StateConflict
from portal.common.reasons.reason import Reason
from portal.fleet.inventory.held_environments import need_of
from portal.people.accounts.models import Team, User
from portal.workspaces.codes import WorkspaceCode
from portal.workspaces.domain_events import RequestChanged
from portal.workspaces.models import Workspace


@dataclass(frozen=True, slots=True)
class Software:
    """The environment of a workspace and its version; both None for what each node has by itself."""

    environment: Environment | None = None
    version: EnvironmentVersion | None = None

    @property
    def digest(self) -> str:
        return selectors.digest_for(self.version) if self.version is not None else ""

    @property
    def waits(self) -> bool:
        """Whether it is built because somebody asks for it."""
        return self.version is not None and self.version.state != VersionState.READY


ON_THE_NODE = Software()


def default_of(template: Template, team: Team | None) -> Software:
    """What one gets that names none: its template's where that can be had now, else the node's own."""
    environment = template.environment
    if environment is None or refusal_of(template, team, environment) is not None:
        return ON_THE_NODE
    if environment.current is None and environment.kind == Kind.BUILT:
        # Nobody waits for a build who could begin now with what the nodes have.
        programs = installed_programs()
        if programs is None or template.program in programs:
            return ON_THE_NODE
    return _of(environment)


def chosen(template: Template, team: Team | None, environment: Environment | None) -> Software:
    """What a workspace gets that names this one, or none. Raises `PortalError` where it cannot be had."""
    if environment is None:
        return default_of(template, team)
    reason = refusal_of(template, team, environment)
    if reason is not None:
        raise _refusals[reason.code](reason, code=reason.code, errors={"environment": [reason]})
    return _of(environment)


def refusal_of(
    template: Template,
    team: Team | None,
    environment: Environment,
    coming: selectors.Coming | None = None,
) -> Reason | None:
    """Why a workspace of the template and team cannot have it now, or None; `coming` as for `why_not_in`."""
    if not policies.may_use(environment, team):
        where = {"environment": environment.name, "team": team.name if team is not None else ""}
        return Reason(WorkspaceCode.ENVIRONMENT_NOT_FOR_TEAM, where)
    return why_not_in(template, environment, coming)


def deprecation_of(environment: Environment) -> Reason | None:
    """That another one shall be chosen, and which; None where it is not deprecated."""
    if not environment.deprecated:
        return None
    if environment.successor is not None:
        after = {"name": environment.name, "successor": environment.successor.name}
        return Reason(CatalogCode.ENTRY_HAS_SUCCESSOR, after)
    return Reason(CatalogCode.ENTRY_DEPRECATED, {"name": environment.name})


def again(last: Workspace) -> Environment | None:
    """The environment that a request like this one would name, where it can still be had; else None."""
    version = last.environment_version
    if version is None:
        return None
    environment = version.environment
    return environment if refusal_of(last.template, last.team, environment) is None else None


def named(actor: User, slug: str) -> Environment | None:
    """The environment of that short name, None for an empty one. Raises `InvalidInput`."""
    if not slug:
        return None
    try:
        return selectors.environment_by_slug(actor, slug)
    except NotFound as error:
        raise InvalidInput(error.reason, errors={"environment": [error.reason]}) from error


def with_software(resources: Mapping[str, Any], digest: str) -> dict[str, Any]:
    """A request in its JSON form that needs the environment of this digest on its node, if there is one."""
    if not digest:
        return dict(resources)
    return {**resources, "needs": [*resources.get("needs", ()), need_of(digest)]}


def version_ready(event: VersionReady) -> None:
    """Have what was asked for with an environment before it was there need the version that there is now."""
    version = event.version
    rows = (
        Workspace.objects.live()
        .select_for_update(of=("self",))
        .filter(environment_version__environment=version.environment_id)
        .order_by("pk")
    )
    for row in rows:
        needs = row.resources.get("needs", [])
        coming = [each for each in needs if each.startswith(need_of(selectors.PENDING))]
        if not coming:
            continue
        others = [each for each in needs if each not in coming]
        row.resources = {**row.resources, "needs": [*others, need_of(version.digest)]}
        row.environment_version = version
        row.save(update_fields=["resources", "environment_version"])
        emit(RequestChanged(row))


def _of(environment: Environment) -> Software:
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
