"""Reads of environments, their versions and builds, by who asks: a team's are for its members alone."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from uuid import UUID

from django.db.models import Exists, OuterRef, Q, QuerySet

from portal.accounts.models import Team, User
from portal.common.errors import NotFound
from portal.common.reasons.codes import EnvironmentCode
from portal.common.reasons.reason import Reason
from portal.common.texts import strip_nul
from portal.environments.models import (
    OPEN,
    Environment,
    EnvironmentBuild,
    EnvironmentVersion,
    Kind,
    VersionState,
)
from portal.inventory.models import Node

LONG = ("source", "lock", "packages", "programs")
"""What of a version is long, and not needed to list it."""
WORKSPACES_OVER = ("terminated",)
"""States of workspaces that need their environment no more, as `portal.workspaces` names them."""


def environments_for(actor: User) -> QuerySet[Environment]:
    """Everybody's, and those of the teams that the actor is in; operators and auditors see all."""
    visible = Q() if actor.sees_all else Q(team=None) | Q(team__memberships__user=actor)
    return (
        Environment.objects.filter(visible)
        .select_related("team", "current", "successor")
        .defer("current__source", "current__lock")
        .order_by("position", "slug")
    )


def search(found: QuerySet[Environment], words: str) -> QuerySet[Environment]:
    """Those in whose name, short name or description every word stands."""
    for word in strip_nul(words).split()[:8]:
        found = found.filter(
            Q(name__icontains=word) | Q(slug__icontains=word) | Q(description__icontains=word)
        )
    return found


def environment_by_slug(actor: User, slug: str) -> Environment:
    """One that the actor may see. Raises `NotFound`."""
    found = environments_for(actor).filter(slug=strip_nul(slug)).first()
    if found is None:
        raise NotFound(Reason(EnvironmentCode.NO_SUCH_ENVIRONMENT))
    return found


def usable_by(actor: User, team: Team | None) -> QuerySet[Environment]:
    """Those in which a workspace of the team could be started, whether they are ready or not."""
    own = Q(team=None) | Q(team=team) if team is not None else Q(team=None)
    return environments_for(actor).filter(own, enabled=True)


def versions_of(environment: Environment) -> QuerySet[EnvironmentVersion]:
    """Newest first, without what is long."""
    return environment.versions.select_related("created_by").defer("source", "lock").order_by("-number")


def version_by_number(environment: Environment, number: int) -> EnvironmentVersion:
    """Raises `NotFound`."""
    found = environment.versions.filter(number=number).first()
    if found is None:
        raise NotFound(Reason(EnvironmentCode.NO_SUCH_VERSION))
    return found


def builds_of(environment: Environment) -> QuerySet[EnvironmentBuild]:
    """All attempts, newest first, without their logs."""
    return (
        EnvironmentBuild.objects.filter(version__environment=environment)
        .select_related("version", "node", "node__pool", "asked_by")
        .defer("log", *(f"version__{name}" for name in LONG))
        .order_by("-created_at", "-pk")
    )


def build_by_id(environment: Environment, build_id: UUID) -> EnvironmentBuild:
    """Raises `NotFound`."""
    found = builds_of(environment).filter(pk=build_id).first()
    if found is None:
        raise NotFound(Reason(EnvironmentCode.NO_SUCH_BUILD))
    return found


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
    """Names of workspaces that are not over and of templates that use it; a few of each are enough."""
    workspaces = (
        EnvironmentVersion.objects.filter(environment=environment, workspaces__isnull=False)
        .exclude(workspaces__state__in=WORKSPACES_OVER)
        .order_by("workspaces__name")
        .values_list("workspaces__name", flat=True)
    )
    templates = Environment.objects.filter(
        pk=environment.pk, templates__isnull=False, templates__deleted_at=None
    )
    return list(workspaces[:50]), list(templates.values_list("templates__name", flat=True)[:50])


def versions_in_use() -> QuerySet[EnvironmentVersion]:
    """Ready ones that nodes shall hold: current ones of what is switched on, and those of workspaces."""
    current = Environment.objects.filter(current=OuterRef("pk"), enabled=True)
    live = EnvironmentVersion.objects.filter(pk=OuterRef("pk"), workspaces__isnull=False).exclude(
        workspaces__state__in=WORKSPACES_OVER
    )
    return EnvironmentVersion.objects.filter(Exists(current) | Exists(live), state=VersionState.READY)


# --- nodes -------------------------------------------------------------------------------------------


def building_nodes() -> QuerySet[Node]:
    """Nodes that can have environments: those of the local driver that are there."""
    return Node.objects.filter(
        pool__enabled=True, pool__simulated=False, pool__driver="local", retired=False
    ).select_related("pool")


@dataclass(frozen=True, slots=True)
class NodeHolding:
    """A node, and whether it holds an environment."""

    node: Node
    holds: bool


def holdings(digest: str) -> list[NodeHolding]:
    """Each node that could hold the digest, and whether it does."""
    nodes = (
        building_nodes().only("name", "online", "environments", "pool__slug", "pool__name").order_by("name")
    )
    return [NodeHolding(node, bool(digest) and holds(node, digest)) for node in nodes]


def holds(node: Node, digest: str) -> bool:
    return any(each.get("digest") == digest for each in node.environments)


# --- what a digest is --------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Content:
    """What an environment brings, which its digest stands for: it never changes."""

    digest: str
    programs: tuple[str, ...]
    cuda: str


@lru_cache(maxsize=1024)
def _content(digest: str) -> Content:
    row = (
        EnvironmentVersion.objects.filter(digest=digest, state=VersionState.READY)
        .values_list("programs", "cuda")
        .first()
    )
    if row is None:
        raise LookupError(digest)
    return Content(digest, tuple(row[0]), row[1])


def content_of(digest: str) -> Content:
    """What is in it. One that is known no more brings nothing of its own. The same is not read twice."""
    try:
        return _content(digest)
    except LookupError:
        return Content(digest, (), "")


@dataclass(frozen=True, slots=True)
class Progress:
    """How far it is that an environment is to be had: `state` of its newest version, and of its build."""

    environment: str
    state: str
    percent: int | None


def progress_of(environment: Environment, version: EnvironmentVersion | None) -> Progress:
    """How far the version is, or its way to the nodes."""
    if version is None:
        return Progress(environment.name, VersionState.NEW.value, None)
    build = open_builds([version.pk]).first()
    state = VersionState.BUILDING if build is not None else VersionState(version.state)
    return Progress(environment.name, state.value, percent_of(build) if build is not None else None)


def progress_of_digest(digest: str) -> Progress | None:
    """How far a digest is on its way to a node, named by the first environment that has it."""
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
"""From and to which percent each stage counts."""


def percent_of(build: EnvironmentBuild) -> int:
    """How far a build is, from 0 to 99: the stages count by what they take in general."""
    first, last = _SHARES.get(build.stage, (0, 0))
    part = min(1.0, build.done / build.total) if build.total else 0.0
    return min(99, round(first + (last - first) * part))


def is_built(environment: Environment) -> bool:
    """Whether it is one that is built, and not what nodes have by themselves."""
    return environment.kind == Kind.BUILT


def newest_states(found: Iterable[Environment]) -> dict[UUID, str]:
    """The state of the newest version of each of the environments."""
    rows = EnvironmentVersion.objects.filter(environment__in=[each.pk for each in found])
    return dict(rows.order_by("number").values_list("environment_id", "state"))
