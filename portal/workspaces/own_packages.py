"""Packages that users install on top of a workspace's environment.

The packages are stored in the user's home, by environment name and Python version. All workspaces of the user
in the team with this environment share them. Only that user can see and change them.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from uuid import UUID

from django.db import transaction
from packaging.utils import canonicalize_name

from portal.catalog.environments import services as environments
from portal.catalog.environments import sources
from portal.catalog.environments.models import PYTHONS, Environment, EnvironmentVersion, SourceKind
from portal.common.errors import StateConflict, Unavailable
from portal.common.events import services as events
from portal.common.events.kinds import AuditKind
from portal.common.problem_codes import ProblemCode
from portal.common.reasons.reason import Reason
from portal.fleet.inventory import node_commands
from portal.people.accounts.models import Team, User
from portal.workspaces import dispatch, node_rpc, policies
from portal.workspaces.codes import WorkspaceCode
from portal.workspaces.homes import places as home_places
from portal.workspaces.lifecycle import State
from portal.workspaces.models import Workspace, WorkspaceQuerySet
from portal.workspaces.transitions import lock_workspace
from provisioning import messages
from provisioning.environment_messages import OwnPackagesRequest

MAX_PACKAGES = 2000
_PINNED = re.compile(r"([A-Za-z0-9][A-Za-z0-9._-]*)==([A-Za-z0-9][A-Za-z0-9._!+-]*)")


@dataclass(frozen=True, slots=True)
class OwnPackage:
    """A package of the user, and the environment's version that it overrides, if any."""

    name: str
    version: str
    instead_of: str = ""


@dataclass(frozen=True, slots=True)
class OwnPackages:
    """The user's packages by name, and their Python version; empty if unknown."""

    packages: tuple[OwnPackage, ...] = ()
    python: str = ""


def read(*, actor: User, workspace: Workspace) -> OwnPackages:
    """Return the user's packages from the node. The workspace may be stopped.

    Empty before the user's first start. Raises `NotAllowed`, `StateConflict` (simulated) and `Unavailable`
    (the node does not answer or cannot read them).
    """
    policies.require_home(actor, workspace)
    place = home_places.node_of(workspace)
    if place is None:
        return OwnPackages()
    pool, node = place
    asked_for = OwnPackagesRequest(
        team=workspace.team.slug,
        owner=workspace.owner.username,
        environment=dispatch.digest_of(workspace),
        environment_name=dispatch.environment_name_of(workspace),
    )
    arguments = {"of": messages.dump(asked_for), "pool": messages.dump(node_commands.config_of(pool))}
    body = node_rpc.call("node.read_overlay", arguments, pool=pool, node=node, about="packages")
    if "error" in body:
        params = {"message": str(body["error"])[:500]}
        raise Unavailable(Reason(WorkspaceCode.PACKAGES_NOT_READ, params))
    return _parse_answer(body, _versions_of(workspace.environment_version))


def _parse_answer(body: dict[str, object], base: dict[str, str]) -> OwnPackages:
    """Parse a node's answer. Ignores everything except names and versions."""
    lines, python = body.get("packages"), body.get("python")
    packages = []
    for line in lines[:MAX_PACKAGES] if isinstance(lines, list) else ():
        if match := _PINNED.fullmatch(str(line)):
            name, version = match.groups()
            instead = base.get(canonicalize_name(name), "")
            packages.append(OwnPackage(name, version, instead if instead != version else ""))
    return OwnPackages(tuple(packages), python if isinstance(python, str) and python in PYTHONS else "")


def _versions_of(version: EnvironmentVersion | None) -> dict[str, str]:
    packages = version.packages if version is not None else []
    return {canonicalize_name(package["name"]): str(package["version"]) for package in packages}


def sharing(workspace: Workspace) -> WorkspaceQuerySet:
    """Return the owner's other workspaces with the same packages: same team and environment."""
    others = Workspace.objects.live().filter(owner=workspace.owner_id, team=workspace.team_id)
    version = workspace.environment_version
    if version is None:
        others = others.filter(environment_version=None)
    else:
        others = others.filter(environment_version__environment=version.environment_id)
    return others.exclude(pk=workspace.pk).order_by("name")


@transaction.atomic
def reset(*, actor: User, workspace_id: UUID) -> Workspace:
    """Remove the user's packages at the next start. Idempotent.

    Raises `NotAllowed`, and `StateConflict` if the workspace is simulated or cannot start again.
    """
    workspace = lock_workspace(workspace_id)
    policies.require_home(actor, workspace)
    if workspace.state in {State.TERMINATED, State.TERMINATING}:
        params = {"name": workspace.name, "state": workspace.state}
        raise StateConflict(Reason(WorkspaceCode.NOT_STARTABLE, params), state=workspace.state)
    if workspace.packages_reset_after != workspace.generation:
        _set(workspace, workspace.generation)
        events.record(
            actor=actor,
            kind=AuditKind.WORKSPACE_PACKAGES_RESET_REQUESTED,
            workspace=workspace,
            message="requested that the next start removes the extra packages",
        )
    return workspace


@transaction.atomic
def cancel_reset(*, actor: User, workspace_id: UUID) -> Workspace:
    """Cancel a reset of the packages. Idempotent.

    Raises `NotAllowed`, and `StateConflict` if the start that removes them is already placed.
    """
    workspace = lock_workspace(workspace_id)
    policies.require_home(actor, workspace)
    if workspace.packages_reset_after is None:
        return workspace
    if dispatch.resets_packages(workspace):
        params = {"state": workspace.state}
        raise StateConflict(Reason(WorkspaceCode.NOT_POSSIBLE_NOW, params), state=workspace.state)
    _set(workspace, None)
    events.record(
        actor=actor,
        kind=AuditKind.WORKSPACE_PACKAGES_KEPT,
        workspace=workspace,
        message="cancelled the removal of the extra packages",
    )
    return workspace


def reset_waits(workspace: Workspace) -> bool:
    """Return whether a reset is pending and can still be cancelled."""
    return workspace.packages_reset_after is not None and not dispatch.resets_packages(workspace)


def _set(workspace: Workspace, after: int | None) -> None:
    Workspace.objects.filter(pk=workspace.pk).update(packages_reset_after=after)
    workspace.packages_reset_after = after


def requirements(workspace: Workspace, own: OwnPackages) -> str:
    """Return a requirements list with the environment's versions and the user's packages."""
    version = workspace.environment_version
    return sources.pinned_requirements(
        version.source_kind if version is not None else SourceKind.PACKAGES,
        version.source if version is not None else "",
        have=_versions_of(version),
        more=[(package.name, package.version) for package in own.packages],
    )


def save(
    *,
    actor: User,
    workspace: Workspace,
    own: OwnPackages,
    team: Team | None,
    name: str,
    slug: str = "",
    description: str = "",
    source: str = "",
) -> Environment:
    """Create an environment from the packages of `read` for a team or all teams, and queue its build.

    `source` replaces the generated list. Raises the exceptions of
    `portal.catalog.environments.services.create`, and `StateConflict` if nothing is installed.
    """
    policies.require_home(actor, workspace)
    if not own.packages and not source.strip():
        params = {"name": workspace.name}
        raise StateConflict(
            Reason(WorkspaceCode.NOTHING_INSTALLED, params), code=ProblemCode.NOTHING_INSTALLED
        )
    version = workspace.environment_version
    return environments.create(
        actor=actor,
        team=team,
        name=name,
        slug=slug,
        description=description,
        source_kind=SourceKind.REQUIREMENTS,
        source=source.strip() or requirements(workspace, own),
        python=version.python if version is not None else own.python,
        notebook=version.environment.notebook if version is not None else True,
    )
