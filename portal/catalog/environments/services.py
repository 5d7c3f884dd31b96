"""Services that change environments. See `builds` for builds and `results` for nodes' answers."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from django.core.exceptions import ValidationError
from django.db import IntegrityError, transaction
from django.utils import timezone

from portal.catalog.environments import builds, policies, selectors, sources
from portal.catalog.environments.codes import EnvironmentCode
from portal.catalog.environments.models import (
    Environment,
    EnvironmentVersion,
    Kind,
    SourceKind,
    VersionState,
    source_digest_of,
)
from portal.common.actors import SystemActor, label_of
from portal.common.constraints import violates
from portal.common.errors import InvalidInput, NotFound, StateConflict
from portal.common.etags import ANY, require_expected
from portal.common.events import services as events
from portal.common.events.kinds import AuditKind
from portal.common.names import slug_of
from portal.common.problem_codes import ProblemCode
from portal.common.reasons.reason import Reason
from portal.common.texts import strip_nul
from portal.people.accounts import policies as accounts
from portal.people.accounts.models import Team, User
from provisioning.environments.content import digest_of
from provisioning.environments.folders import digest_of_folder

MAX_OF_TEAM = 100
MAX_OF_SITE = 1000
LENGTHS = {"name": 80, "description": 200}
"""Maximum length by field."""


@transaction.atomic
def create(
    *,
    actor: User | SystemActor,
    team: Team | None,
    name: str,
    source_kind: str,
    source: str,
    slug: str = "",
    description: str = "",
    python: str = "",
    notebook: bool = True,
    build: bool = True,
    anywhere: bool = False,
) -> Environment:
    """Create an environment for a team, or for all teams without one, and build its first version.

    Without `python`, the portal's own version is used. Without `build`, it is built on demand. Only operators
    can select a folder on nodes, which must exist on a node unless `anywhere` is set. Raises `InvalidInput`,
    `NotAllowed` and `StateConflict` (the slug is taken, or there are too many).
    """
    policies.require_manage(actor, team)
    kind, text = sources.validate_source(source_kind, source, python)
    python = python or sources.required_python(source_kind, source)
    if kind == SourceKind.FOLDER:
        python = _python_of_folder(actor, text, anywhere=anywhere) or python
    python = sources.python_of(python or sources.own_python())
    if team is not None:
        # Serialise concurrent creations, so that together they cannot exceed the limit.
        Team.objects.select_for_update().get(pk=team.pk)
    if slug == "new":
        # Reserved for the page that creates an environment.
        taken = Reason(EnvironmentCode.NAME_TAKEN, {"slug": "new"})
        raise InvalidInput(Reason(EnvironmentCode.NOT_VALID), errors={"slug": [taken]})
    limit = MAX_OF_TEAM if team is not None else MAX_OF_SITE
    if Environment.objects.filter(team=team).count() >= limit:
        raise StateConflict(
            Reason(EnvironmentCode.TOO_MANY, {"limit": limit}), code=ProblemCode.TOO_MANY_ENVIRONMENTS
        )
    environment = Environment(
        team=team,
        slug=slug or _slug_of(name),
        name=normalize_text_field("name", name),
        description=normalize_text_field("description", description),
        python=python,
        notebook=notebook,
        created_by=None if isinstance(actor, SystemActor) else actor,
        updated_at=timezone.now(),
        updated_by=label_of(actor),
    )
    _check(environment)
    try:
        with transaction.atomic():
            environment.save(force_insert=True)
    except IntegrityError as error:
        if not violates(error, Environment, "slug"):
            raise
        taken = Reason(EnvironmentCode.NAME_TAKEN, {"slug": environment.slug})
        raise StateConflict(taken, code=ProblemCode.NAME_TAKEN, errors={"slug": [taken]}) from error
    _record(actor, AuditKind.ENVIRONMENT_CREATED, environment, f"created the environment {environment.slug}")
    make_version(actor, environment, kind, text, build=build)
    return environment


@transaction.atomic
def change(
    *,
    actor: User | SystemActor,
    environment: Environment,
    expected: Collection[str] = ANY,
    name: str | None = None,
    description: str | None = None,
    enabled: bool | None = None,
    deprecated: bool | None = None,
    successor: str | None = None,
    notebook: bool | None = None,
) -> Environment:
    """Change the given fields. `successor` is a slug, empty for none. Existing builds stay.

    Raises `NotAllowed`, `InvalidInput`, and `PreconditionFailed` if the version is not in `expected`.
    """
    environment = lock_environment(environment)
    policies.require_manage(actor, environment.team)
    _require_current(expected, environment)
    new_values: dict[str, Any] = {}
    if name is not None:
        new_values["name"] = normalize_text_field("name", name)
    if description is not None:
        new_values["description"] = normalize_text_field("description", description)
    for field, value in (("enabled", enabled), ("deprecated", deprecated), ("notebook", notebook)):
        if value is not None:
            new_values[field] = value
    if successor is not None:
        new_values["successor"] = _successor(environment, successor)
    changed = sorted(field for field, value in new_values.items() if getattr(environment, field) != value)
    for field, value in new_values.items():
        setattr(environment, field, value)
    if changed:
        _check(environment)
        _touch(actor, environment)
        environment.save()
        _record(
            actor,
            AuditKind.ENVIRONMENT_CHANGED,
            environment,
            f"changed the environment {environment.slug}",
            changed=changed,
        )
    return environment


@transaction.atomic
def change_source(
    *,
    actor: User | SystemActor,
    environment: Environment,
    source_kind: str,
    source: str,
    python: str = "",
    expected: Collection[str] = ANY,
    anywhere: bool = False,
) -> EnvironmentVersion:
    """Create and build a version of this source; it becomes current once it is ready.

    If source and Python equal the newest version's, it is built again with newly resolved versions.
    """
    environment = lock_environment(environment)
    policies.require_manage(actor, environment.team)
    _require_current(expected, environment)
    require_built(environment)
    kind, text = sources.validate_source(source_kind, source, python)
    python = python or sources.required_python(source_kind, source)
    if kind == SourceKind.FOLDER:
        python = _python_of_folder(actor, text, anywhere=anywhere) or python
    python = sources.python_of(python) if python else environment.python
    newest = selectors.newest_version(environment)
    if newest is not None and (
        newest.state in (VersionState.NEW, VersionState.BUILDING) or builds.waits_for_node(newest)
    ):
        same = newest.source_digest == _source_digest(environment, kind, python, text)
    else:
        same = False
    if newest is not None and same:
        # Concurrent equal requests are built once.
        builds.request_build(actor, newest)
        return newest
    environment.python = python
    _touch(actor, environment)
    environment.save(update_fields=["python", "updated_at", "updated_by"])
    return make_version(actor, environment, kind, text, build=True)


@transaction.atomic
def rebuild(*, actor: User | SystemActor, environment: Environment) -> EnvironmentVersion:
    """Build the newest version or, if that is ready, another version of the same source.

    Returns the version of a build in progress unchanged.
    """
    environment = lock_environment(environment)
    policies.require_manage(actor, environment.team)
    require_built(environment)
    newest = selectors.newest_version(environment)
    if newest is None:
        raise NotFound(Reason(EnvironmentCode.NO_SUCH_VERSION))
    if newest.state != VersionState.READY:
        builds.request_build(actor, newest)
        return newest
    return make_version(actor, environment, SourceKind(newest.source_kind), newest.source, build=True)


@transaction.atomic
def build_for_request(*, actor: User, environment: Environment) -> EnvironmentVersion:
    """Build an environment for a requested workspace. Returns the version for the workspace. Idempotent.

    Requires no permission: the site allows it with `BERTH_BUILD_WHEN_ASKED`. Raises `StateConflict` if the
    environment cannot be built.
    """
    environment = lock_environment(environment)
    if environment.current_id is not None:
        return environment.versions.get(pk=environment.current_id)
    version = selectors.newest_version(environment)
    if version is None or not policies.built_when_asked(environment):
        waits = {"environment": environment.name, "state": "", "percent": None}
        raise StateConflict(Reason(EnvironmentCode.NOT_READY, waits), code=ProblemCode.ENVIRONMENT_NOT_READY)
    if (refusal := selectors.not_installed(environment, version)) is not None:
        raise StateConflict(refusal, code=ProblemCode.ENVIRONMENT_NOT_INSTALLED)
    builds.request_build(actor, version)
    return version


@transaction.atomic
def restore(
    *, actor: User | SystemActor, environment: Environment, number: int, expected: Collection[str] = ANY
) -> Environment:
    """Make a ready version the current one. Idempotent."""
    environment = lock_environment(environment)
    policies.require_manage(actor, environment.team)
    _require_current(expected, environment)
    version = selectors.version_by_number(environment, number)
    if version.state != VersionState.READY:
        raise StateConflict(
            Reason(EnvironmentCode.VERSION_NOT_READY, {"number": number}), code=ProblemCode.VERSION_NOT_READY
        )
    if environment.current_id != version.pk:
        environment.current = version
        _touch(actor, environment)
        environment.save(update_fields=["current", "updated_at", "updated_by"])
        _record(
            actor,
            AuditKind.ENVIRONMENT_VERSION_CHOSEN,
            environment,
            f"made version {number} of {environment.slug} the current one",
            version=number,
        )
    return environment


@transaction.atomic
def delete(*, actor: User | SystemActor, environment: Environment, expected: Collection[str] = ANY) -> None:
    """Delete an environment with its versions. Nodes remove unused content after a while.

    Raises `StateConflict` while a workspace or template uses the environment, and for curated environments.
    """
    environment = lock_environment(environment)
    policies.require_manage(actor, environment.team)
    _require_current(expected, environment)
    if environment.curated:
        reason = Reason(EnvironmentCode.CURATED_KEPT, {"name": environment.name})
        raise StateConflict(reason, code=ProblemCode.CURATED_ENVIRONMENT_KEPT)
    workspaces, templates = selectors.users_of(environment)
    if workspaces or templates:
        used = {"name": environment.name, "workspaces": workspaces, "templates": templates}
        raise StateConflict(
            Reason(EnvironmentCode.ENVIRONMENT_IN_USE, used), code=ProblemCode.ENVIRONMENT_IN_USE
        )
    builds.cancel_all(actor, environment)
    _record(actor, AuditKind.ENVIRONMENT_DELETED, environment, f"deleted the environment {environment.slug}")
    environment.delete()


# --- shared within the package -------------------------------------------------------------------------


def make_version(
    actor: User | SystemActor, environment: Environment, kind: SourceKind, text: str, *, build: bool
) -> EnvironmentVersion:
    """Create the next version of a locked environment from a checked source."""
    newest = selectors.newest_version(environment)
    lock = text if kind == SourceKind.LOCK else ""
    version = EnvironmentVersion.objects.create(
        environment=environment,
        number=newest.number + 1 if newest is not None else 1,
        source_kind=kind,
        source=text,
        source_digest=_source_digest(environment, kind, environment.python, text),
        python=environment.python,
        lock=lock,
        digest=digest_of_folder(text)
        if kind == SourceKind.FOLDER
        else digest_of(lock, environment.python)
        if lock
        else "",
        state=VersionState.NEW,
        created_by=None if isinstance(actor, SystemActor) else actor,
    )
    _record(
        actor,
        AuditKind.ENVIRONMENT_VERSION_CREATED,
        environment,
        f"created version {version.number} of {environment.slug}",
        version=version.number,
    )
    if build:
        builds.request_build(actor, version)
    return version


def lock_environment(environment: Environment) -> Environment:
    """Lock and return the row. Raises `NotFound` if it has been deleted."""
    row = (
        Environment.objects.select_for_update(of=("self",), no_key=True)
        .select_related("team", "successor")
        .filter(pk=environment.pk)
        .first()
    )
    if row is None:
        raise NotFound(Reason(EnvironmentCode.NO_SUCH_ENVIRONMENT))
    return row


def _python_of_folder(actor: User | SystemActor, path: str, *, anywhere: bool) -> str:
    """Return the Python version of a folder on nodes, such as 3.11. Raises `InvalidInput`.

    With `anywhere`, empty if no node has the folder.
    """
    try:
        return ".".join(usable_folder(actor, path).python.split(".")[:2])
    except InvalidInput:
        if anywhere:
            return ""
        raise


def usable_folder(actor: User | SystemActor, path: str) -> selectors.NodeFolder:
    """Return a usable folder on nodes. Raises `NotAllowed`, and `InvalidInput` with the existing folders."""
    accounts.require_operator(actor)
    folders = selectors.existing_folders()
    folder = next((folder for folder in folders if folder.path == path), None)
    if folder is None:
        paths = [folder.path for folder in folders[:10]]
        reason = Reason(EnvironmentCode.FOLDER_NOT_THERE, {"folder": path, "known": paths})
        raise InvalidInput(reason, errors={"source": [reason]})
    return folder


def _source_digest(environment: Environment, kind: SourceKind, python: str, text: str) -> str:
    return source_digest_of(kind, python, sources.source_to_build(kind, text, notebook=environment.notebook))


def _require_current(expected: Collection[str], environment: Environment) -> None:
    require_expected(expected, environment, name=environment.name, by=environment.updated_by)


def require_built(environment: Environment) -> None:
    """Raise `StateConflict` for software installed on nodes."""
    if environment.kind != Kind.BUILT:
        reason = Reason(EnvironmentCode.INSTALLED_ON_NODES, {"name": environment.name})
        raise StateConflict(reason, code=ProblemCode.INSTALLED_ON_NODES)


def _touch(actor: User | SystemActor, environment: Environment) -> None:
    environment.updated_at = timezone.now()
    environment.updated_by = label_of(actor)


def _successor(environment: Environment, slug: str) -> Environment | None:
    """Return a successor that all users of the environment may use.

    Raises `InvalidInput` for an unknown slug or a cycle.
    """
    if not slug:
        return None
    refusal = Reason(EnvironmentCode.SUCCESSOR_NOT_VALID, {"successor": strip_nul(slug)[:40]})
    successor = Environment.objects.filter(slug=strip_nul(slug)).first()
    if successor is None or (successor.team_id is not None and successor.team_id != environment.team_id):
        raise InvalidInput(Reason(EnvironmentCode.NOT_VALID), errors={"successor": [refusal]})
    after: Environment | None = successor
    for _ in range(20):
        if after is None:
            return successor
        if after.pk == environment.pk:
            break
        after = after.successor
    raise InvalidInput(Reason(EnvironmentCode.NOT_VALID), errors={"successor": [refusal]})


def _check(environment: Environment) -> None:
    try:
        environment.clean_fields(exclude=["team", "current", "successor", "created_by"])
    except ValidationError as error:
        raise InvalidInput(Reason(EnvironmentCode.NOT_VALID), errors=error.message_dict) from error


def normalize_text_field(field: str, text: str) -> str:
    """Return a `name` or `description` in stored form: one line, truncated to its column."""
    return " ".join(strip_nul(text).split())[: LENGTHS[field]]


def _slug_of(name: str) -> str:
    slug = slug_of(name, 40)
    return "new-environment" if slug == "new" else slug


def _record(
    actor: User | SystemActor, kind: AuditKind, environment: Environment, message: str, **data: object
) -> None:
    events.record(
        actor=actor,
        kind=kind,
        team=environment.team,
        message=message,
        data={"environment": environment.slug, **data},
    )
