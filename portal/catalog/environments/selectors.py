"""Queries for visible environments, versions and builds. Only members see those of their team."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any
from uuid import UUID

from django.db.models import Exists, OuterRef, Q, QuerySet, Subquery
from django.utils import timezone

from portal.catalog.environments import sources
from portal.catalog.environments.codes import EnvironmentCode
from portal.catalog.environments.models import (
    OPEN,
    BuildState,
    Environment,
    EnvironmentBuild,
    EnvironmentVersion,
    Kind,
    SourceKind,
    VersionState,
)
from portal.common.errors import NotFound
from portal.common.reasons.reason import Reason
from portal.common.texts import strip_nul
from portal.fleet.inventory.models import Node
from portal.people.accounts.models import Team, User
from provisioning.registry import drivers_with
from provisioning.traits import SoftwareSource

LONG = ("source", "lock", "packages", "programs")
"""Large columns of a version that lists do not need."""
HIDDEN_STATES = ("terminated",)
"""States of workspaces that no longer need their environment, as named by `portal.workspaces`."""


def environments_for(actor: User) -> QuerySet[Environment]:
    """Return general environments and those of the actor's teams; all for operators and auditors."""
    visible = Q() if actor.sees_all else Q(team=None) | Q(team__memberships__user=actor)
    return (
        Environment.objects.filter(visible)
        .select_related("team", "current", "successor")
        .defer("current__source", "current__lock")
        .order_by("position", "slug")
    )


def search(queryset: QuerySet[Environment], query: str) -> QuerySet[Environment]:
    """Return the environments with every word in name, slug or description."""
    for term in strip_nul(query).split()[:8]:
        queryset = queryset.filter(
            Q(name__icontains=term) | Q(slug__icontains=term) | Q(description__icontains=term)
        )
    return queryset


def environment_by_slug(actor: User, slug: str) -> Environment:
    """Return a visible environment. Raises `NotFound`."""
    environment = environments_for(actor).filter(slug=strip_nul(slug)).first()
    if environment is None:
        raise NotFound(Reason(EnvironmentCode.NO_SUCH_ENVIRONMENT))
    return environment


def usable_by(actor: User, team: Team | None) -> QuerySet[Environment]:
    """Return environments that the team's workspaces may use, ready or not."""
    own = Q(team=None) | Q(team=team) if team is not None else Q(team=None)
    return environments_for(actor).filter(own, enabled=True)


def versions_of(environment: Environment) -> QuerySet[EnvironmentVersion]:
    """Return the versions, newest first, without large columns."""
    return environment.versions.select_related("created_by").defer("source", "lock").order_by("-number")


def version_by_number(environment: Environment, number: int) -> EnvironmentVersion:
    """Return the version. Raises `NotFound`."""
    version = environment.versions.filter(number=number).first()
    if version is None:
        raise NotFound(Reason(EnvironmentCode.NO_SUCH_VERSION))
    return version


def builds_of(environment: Environment) -> QuerySet[EnvironmentBuild]:
    """Return all builds, newest first, without logs."""
    return (
        EnvironmentBuild.objects.filter(version__environment=environment)
        .select_related("version", "node", "node__pool", "requester")
        .defer("log", *(f"version__{name}" for name in LONG))
        .order_by("-created_at", "-pk")
    )


def build_by_id(environment: Environment, build_id: UUID) -> EnvironmentBuild:
    """Return the build. Raises `NotFound`."""
    build = builds_of(environment).filter(pk=build_id).first()
    if build is None:
        raise NotFound(Reason(EnvironmentCode.NO_SUCH_BUILD))
    return build


def newest_version(environment: Environment) -> EnvironmentVersion | None:
    return environment.versions.order_by("-number").first()


def open_builds(versions: Iterable[UUID]) -> QuerySet[EnvironmentBuild]:
    return (
        EnvironmentBuild.objects.filter(version__in=list(versions), state__in=OPEN)
        .select_related("node")
        .defer("log")
        .order_by("created_at")
    )


def users_of(environment: Environment) -> tuple[list[str], list[str]]:
    """Return names of live workspaces and of templates that use the environment, up to 50 each."""
    workspaces = (
        EnvironmentVersion.objects.filter(environment=environment, workspaces__isnull=False)
        .exclude(workspaces__state__in=HIDDEN_STATES)
        .order_by("workspaces__name")
        .values_list("workspaces__name", flat=True)
    )
    return list(workspaces[:50]), list(templates_of(environment).values_list("name", flat=True)[:50])


def templates_of(environment: Environment) -> QuerySet[Any]:
    """Return the templates that use the environment, through their reverse relation."""
    rows: QuerySet[Any] = environment.templates.filter(deleted_at=None).order_by("name")
    return rows


def versions_in_use() -> QuerySet[EnvironmentVersion]:
    """Return ready versions that nodes keep: those in use, and current ones of enabled environments."""
    current = Environment.objects.filter(current=OuterRef("pk"), enabled=True)
    live = EnvironmentVersion.objects.filter(pk=OuterRef("pk"), workspaces__isnull=False).exclude(
        workspaces__state__in=HIDDEN_STATES
    )
    return EnvironmentVersion.objects.filter(Exists(current) | Exists(live), state=VersionState.READY)


# --- nodes -------------------------------------------------------------------------------------------


def building_nodes() -> QuerySet[Node]:
    """Return nodes that can have environments: active nodes whose software is in folders."""
    drivers = drivers_with(lambda traits: traits.software is SoftwareSource.FOLDERS)
    return Node.objects.filter(pool__enabled=True, pool__driver__in=drivers, retired=False).select_related(
        "pool"
    )


@dataclass(frozen=True, slots=True)
class NodeHolding:
    """A node, and whether it has an environment.

    For an existing folder also its Python, number of packages, and fingerprint.
    """

    node: Node
    holds: bool
    python: str = ""
    package_count: int = 0
    fingerprint: str = ""


@dataclass(frozen=True, slots=True)
class NodeFolder:
    """A folder on nodes that can serve as an environment. `alike`: it is the same on all nodes."""

    path: str
    python: str
    package_count: int
    programs: frozenset[str]
    nodes: tuple[str, ...]
    alike: bool


def existing_folders() -> list[NodeFolder]:
    """Return the existing folders from the nodes' settings, by path."""
    rows_by_path: dict[str, list[tuple[str, dict[str, Any]]]] = {}
    for node in building_nodes().only("name", "environments", "pool__slug").order_by("name"):
        for row in node.environments:
            if path := row.get("folder"):
                rows_by_path.setdefault(str(path), []).append((node.name, row))
    return [
        NodeFolder(
            path,
            str(rows[0][1].get("python", "")),
            int(rows[0][1].get("package_count", 0)),
            frozenset(rows[0][1].get("programs", ())),
            tuple(name for name, _ in rows),
            len({row.get("fingerprint") for _, row in rows}) == 1,
        )
        for path, rows in sorted(rows_by_path.items())
    ]


def holdings(digest: str) -> list[NodeHolding]:
    """Return each node that could have the digest, and whether the node has it."""
    nodes = (
        building_nodes()
        .only(
            "name",
            "online",
            "seen_at",
            "environments",
            "pool__slug",
            "pool__name",
            "pool__state",
            "pool__state_message",
            "pool__inventory_at",
        )
        .order_by("name")
    )
    node_holdings = []
    for node in nodes:
        row = next((entry for entry in node.environments if digest and entry.get("digest") == digest), None)
        entry = row or {}
        node_holdings.append(
            NodeHolding(
                node,
                row is not None,
                str(entry.get("python", "")),
                int(entry.get("package_count", 0)),
                str(entry.get("fingerprint", "")),
            )
        )
    return node_holdings


def holds(node: Node, digest: str) -> bool:
    return any(entry.get("digest") == digest for entry in node.environments)


# --- content of digests --------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Content:
    """An environment's content by digest. Immutable."""

    digest: str
    programs: tuple[str, ...]
    cuda: str


PENDING = "version-"
"""Prefix of the placeholder digest of a pending version, before its id. No node has such a digest."""


def digest_for(version: EnvironmentVersion) -> str:
    """Return the digest that a workspace with this version needs, ready or not."""
    return version.digest if version.state == VersionState.READY else f"{PENDING}{version.pk.hex}"


def not_installed(environment: Environment, version: EnvironmentVersion) -> Reason | None:
    """Return why a pending version will not be built automatically, or None."""
    if version.state != VersionState.FAILED or version.retry_at is not None:
        return None
    return Reason(
        EnvironmentCode.NOT_INSTALLED, {"environment": environment.name, "failure": dict(version.failure)}
    )


def expected_programs(version: EnvironmentVersion) -> frozenset[str]:
    """Return the template programs that a version has or will have."""
    if version.state == VersionState.READY:
        return frozenset(version.programs)
    notebook = version.environment.notebook
    return sources.programs_of(version.source_kind, version.source, notebook=notebook)


def _pending_version(digest: str) -> EnvironmentVersion | None:
    try:
        key = UUID(hex=digest.removeprefix(PENDING))
    except ValueError:
        return None
    return EnvironmentVersion.objects.filter(pk=key).select_related("environment").first()


@lru_cache(maxsize=1024)
def _content(digest: str) -> Content:
    rows = EnvironmentVersion.objects.filter(digest=digest, state=VersionState.READY)
    row = rows.order_by("-ready_at").values_list("programs", "cuda", "source_kind").first()
    # The content of a folder can change under the same digest, so it is not cached.
    if row is None or row[2] == SourceKind.FOLDER:
        raise _NotStored(row)
    return Content(digest, tuple(row[0]), row[1])


class _NotStored(Exception):
    """Carries the row for a result of `_content` that must not be cached; None without a row."""

    def __init__(self, row: tuple[list[str], str, str] | None) -> None:
        super().__init__()
        self.row = row


def content_of(digest: str) -> Content:
    """Return the content of a digest, cached. Content of an unknown digest has no programs."""
    if digest.startswith(PENDING):
        version = _pending_version(digest)
        return Content(digest, tuple(sorted(expected_programs(version))) if version is not None else (), "")
    try:
        return _content(digest)
    except _NotStored as error:
        return Content(digest, *((tuple(error.row[0]), error.row[1]) if error.row else ((), "")))


@dataclass(frozen=True, slots=True)
class Progress:
    """The progress of an environment: `state` of its newest version, and its build."""

    environment: str
    state: str
    percent: int | None
    stage: str = ""
    done: int = 0
    total: int = 0
    left_s: int = 0


def waiting_reason(digest: str) -> Reason | None:
    """Return the reason for a request that waits for this digest; None for an unknown digest."""
    progress = progress_of_digest(digest)
    if progress is None:
        return None
    if not digest.startswith(PENDING):
        folders = EnvironmentVersion.objects.filter(digest=digest, source_kind=SourceKind.FOLDER)
        if (path := folders.values_list("source", flat=True).first()) is not None:
            return Reason(EnvironmentCode.FOLDER_NOT_THERE, {"folder": path, "known": []})
        params = {"environment": progress.environment, "state": progress.state, "percent": progress.percent}
        return Reason(EnvironmentCode.ON_ITS_WAY, params)
    version = _pending_version(digest)
    failed = not_installed(version.environment, version) if version is not None else None
    if failed is not None:
        return failed
    steps = {
        "stage": progress.stage,
        "done": progress.done,
        "total": progress.total,
        "left_s": progress.left_s,
    }
    return Reason(EnvironmentCode.BEING_INSTALLED, {"environment": progress.environment, **steps})


def _left_s(build: EnvironmentBuild, percent: int) -> int:
    """Return the estimated remaining seconds of a build from its progress; 0 if unknown."""
    if build.started_at is None or percent < 5:
        return 0
    took = (timezone.now() - build.started_at).total_seconds()
    return max(1, round(took * (100 - percent) / percent))


def progress_of(environment: Environment, version: EnvironmentVersion | None) -> Progress:
    """Return the progress of the version, or of its distribution to nodes."""
    if version is None:
        return Progress(environment.name, VersionState.NEW.value, None)
    build = open_builds([version.pk]).first()
    if build is None:
        return Progress(environment.name, version.state, None)
    percent = percent_of(build)
    steps = (build.stage, build.done, build.total, _left_s(build, percent))
    return Progress(environment.name, VersionState.BUILDING.value, percent, *steps)


def newest_progress(environments: Iterable[Environment]) -> dict[UUID, Progress]:
    """Return the progress of the newest versions, in two queries. Omits environments without versions."""
    names = {environment.pk: environment.name for environment in environments}
    rows = EnvironmentVersion.objects.filter(environment__in=names).order_by("number")
    newest = {row[0]: row[1:] for row in rows.values_list("environment_id", "pk", "state")}
    opened = {build.version_id: build for build in reversed(open_builds(pk for pk, _ in newest.values()))}
    return {
        environment: Progress(
            names[environment],
            VersionState.BUILDING.value if version in opened else state,
            percent_of(opened[version]) if version in opened else None,
        )
        for environment, (version, state) in newest.items()
    }


@dataclass(frozen=True, slots=True)
class PendingVersion:
    """The newest version of an environment without a ready one, and its progress."""

    version: EnvironmentVersion | None
    progress: Progress


def pending_versions(environments: Iterable[Environment]) -> dict[UUID, PendingVersion]:
    """Return the pending version of each environment that has no ready one, in three queries."""
    rows = {
        environment.pk: environment
        for environment in environments
        if environment.current_id is None and environment.kind == Kind.BUILT
    }
    if not rows:
        return {}
    progress = newest_progress(rows.values())
    newest: dict[UUID, EnvironmentVersion] = {}
    numbers = EnvironmentVersion.objects.filter(environment=OuterRef("environment")).order_by("-number")
    versions = EnvironmentVersion.objects.filter(
        environment__in=list(rows), number=Subquery(numbers.values("number")[:1])
    ).defer("lock", "packages")
    for version in versions:
        # Reuse the loaded row for reads through the version.
        version.environment = rows[version.environment_id]
        newest[version.environment_id] = version
    nothing = VersionState.NEW.value
    return {
        key: PendingVersion(newest.get(key), progress.get(key) or Progress(row.name, nothing, None))
        for key, row in rows.items()
    }


def pending_version(environment: Environment) -> PendingVersion:
    """Return the pending version of one environment."""
    version = newest_version(environment)
    return PendingVersion(version, progress_of(environment, version))


def progress_of_digest(digest: str) -> Progress | None:
    """Return the progress of a digest, with the name of the first environment that has the digest."""
    if digest.startswith(PENDING):
        pending = _pending_version(digest)
        return progress_of(pending.environment, pending) if pending is not None else None
    version = (
        EnvironmentVersion.objects.filter(digest=digest)
        .select_related("environment")
        .defer("source", "lock", "packages")
        .order_by("environment__position", "environment__slug")
        .first()
    )
    return progress_of(version.environment, version) if version is not None else None


_SHARES = {"waiting": (0, 2), "resolving": (2, 10), "downloading": (10, 60), "installing": (60, 85),
           "compiling": (85, 95), "checking": (95, 100)}  # fmt: skip
"""First and last percent of each stage."""


def percent_of(build: EnvironmentBuild) -> int:
    """Return the progress of a build from 0 to 99; stages are weighted by their usual duration."""
    first, last = _SHARES.get(build.stage, (0, 0))
    part = min(1.0, build.done / build.total) if build.total else 0.0
    return min(99, round(first + (last - first) * part))


def is_built(environment: Environment) -> bool:
    """Return whether packages make up the environment, instead of software installed on nodes."""
    return environment.kind == Kind.BUILT


def newest_states(environments: Iterable[Environment]) -> dict[UUID, str]:
    """Return the state of each environment's newest version; `queued` until a node works on its build."""
    rows = EnvironmentVersion.objects.filter(environment__in=[environment.pk for environment in environments])
    running = EnvironmentBuild.objects.filter(version=OuterRef("pk"), state=BuildState.BUILDING)
    rows = rows.annotate(running=Exists(running)).order_by("number")
    return {
        environment: display_state(state, running=running)
        for environment, state, running in rows.values_list("environment_id", "state", "running")
    }


def failed_environments(actor: User) -> list[Environment]:
    """Return the visible environments whose newest version failed to build, by name. One query."""
    newest = EnvironmentVersion.objects.filter(environment=OuterRef("pk")).order_by("-number")
    rows = environments_for(actor).annotate(newest_state=Subquery(newest.values("state")[:1]))
    return list(rows.filter(newest_state=VersionState.FAILED).order_by("name"))


def display_state(state: str, *, running: bool) -> str:
    """Return the state of a version for display: queued until a node works on its build."""
    return BuildState.QUEUED.value if state == VersionState.BUILDING and not running else state
