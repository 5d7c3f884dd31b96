"""Requests builds, sends them to nodes, and distributes versions in use to nodes."""

from __future__ import annotations

import logging
import uuid
from datetime import datetime, timedelta
from functools import partial
from typing import Any
from uuid import UUID

from django.conf import settings
from django.db import transaction
from django.db.models import Count, Q
from django.utils import timezone

from portal.catalog.environments import cuda_lines, policies, selectors, sources
from portal.catalog.environments.codes import EnvironmentCode
from portal.catalog.environments.domain_events import BuildsChanged
from portal.catalog.environments.models import (
    OPEN,
    BuildState,
    Environment,
    EnvironmentBuild,
    EnvironmentVersion,
    VersionState,
)
from portal.catalog.environments.models import SourceKind as SourceKindRow
from portal.celery import app
from portal.common.actors import SYSTEM, SystemActor
from portal.common.domain_events import emit
from portal.common.errors import NotFound, StateConflict
from portal.common.events import live
from portal.common.events import services as events
from portal.common.events.kinds import AuditKind
from portal.common.problem_codes import ProblemCode
from portal.common.reasons.reason import Reason
from portal.fleet.inventory import node_commands
from portal.fleet.inventory.contact import in_contact
from portal.fleet.inventory.models import Node
from portal.people.accounts.models import User
from provisioning import messages
from provisioning.environment_messages import EnvironmentBuild as BuildCommand
from provisioning.environment_messages import EnvironmentCancel, SourceKind

log = logging.getLogger(__name__)

BEGIN_WITHIN_S = 30
"""Seconds after which a message to a node expires."""
SILENT_S = 60
"""Seconds without progress after which a build is lost. Builds report every few seconds."""
MAX_ATTEMPTS = 3
FIRST_RETRY_S, LAST_RETRY_S = 60, 6 * 3600
BY_ITSELF, ASKED = -10, 10
"""Priorities: builds of the portal come after builds that users wait for."""
TWIN_FRESH = timedelta(hours=1)
"""How long resolved versions are reused for an equal source."""


# --- requests -----------------------------------------------------------------------------------------


def request_build(actor: User | SystemActor, version: EnvironmentVersion) -> None:
    """Build a version that is not ready; its environment must be locked. Idempotent."""
    if version.state == VersionState.READY:
        return
    if line := cuda_lines.fit_to_oldest_driver(version):
        message = f"set {line} for {_label(version)} to match the drivers of the pools"
        _record(SYSTEM, AuditKind.ENVIRONMENT_CHANGED, version, message, changed=["source"])
    if version.state != VersionState.BUILDING and not waits_for_node(version):
        version.state, version.failure, version.retry_at = VersionState.BUILDING, {}, None
        version.builds_failed = 0
        version.save(update_fields=["state", "failure", "retry_at", "builds_failed"])
        _record(
            actor, AuditKind.ENVIRONMENT_BUILD_REQUESTED, version, f"requested a build of {_label(version)}"
        )
    by_system = isinstance(actor, SystemActor)
    priority = BY_ITSELF if by_system else ASKED
    EnvironmentBuild.objects.filter(version=version, state__in=OPEN, priority__lt=priority).update(
        priority=priority
    )
    queue_or_wait(version, priority=priority, requester=None if by_system else actor)
    emit(BuildsChanged())


def waits_for_node(version: EnvironmentVersion) -> bool:
    """Return whether the build of `version` waits because no node could start it."""
    return (
        version.state == VersionState.FAILED
        and version.failure.get("code") == EnvironmentCode.NO_BUILDING_NODE.value
    )


def queue_or_wait(version: EnvironmentVersion, *, priority: int, requester: Any = None) -> None:
    """Queue the first build of a locked version. Without a node, mark the version as failed, with the reason.

    A failed version keeps its reason until a build is queued. `upkeep.sweep` tries again.
    """
    if queue_first(version, priority=priority, requester=requester) is not None:
        if version.state != VersionState.BUILDING:
            version.state, version.failure, version.retry_at = VersionState.BUILDING, {}, None
            version.save(update_fields=["state", "failure", "retry_at"])
    elif version.state != VersionState.FAILED:
        reason = Reason(EnvironmentCode.NO_BUILDING_NODE, {"environment": version.environment.name})
        version.state, version.failure, version.retry_at = (
            VersionState.FAILED,
            reason.as_json(),
            timezone.now(),
        )
        version.save(update_fields=["state", "failure", "retry_at"])


def queue_first(
    version: EnvironmentVersion, *, priority: int = BY_ITSELF, requester: Any = None
) -> EnvironmentBuild | None:
    """Queue the first build of a version on the least busy node. Returns None without a node.

    Returns an open build unchanged. The version's or its environment's row must be locked.
    """
    open_build = selectors.open_builds([version.pk]).first()
    if open_build is not None:
        return open_build
    waiting = Count("environment_builds", filter=Q(environment_builds__state__in=OPEN))
    building = selectors.building_nodes().filter(in_contact()).annotate(waiting=waiting)
    nodes = building.order_by("waiting", "name")
    if version.source_kind == SourceKindRow.FOLDER:
        # Only a node with the folder can inspect it.
        node = next((node for node in nodes if selectors.holds(node, version.digest)), None)
    else:
        node = nodes.first()
    if node is None:
        return None
    return create_build(version, node, priority=priority, requester=requester)


def create_build(
    version: EnvironmentVersion, node: Node, *, priority: int = BY_ITSELF, requester: Any = None
) -> EnvironmentBuild:
    build, created = EnvironmentBuild.objects.get_or_create(
        version=version, node=node, state__in=OPEN, defaults={"priority": priority, "requester": requester}
    )
    if created:
        transaction.on_commit(partial(send_waiting, node.pk))
    return build


@transaction.atomic
def cancel(*, actor: User | SystemActor, build_id: UUID) -> EnvironmentBuild:
    """Cancel a queued or running build. Raises `NotAllowed`, `NotFound`, `StateConflict`."""
    build, version = locked_build(build_id)
    policies.require_manage(actor, version.environment.team)
    if not build.open:
        raise StateConflict(Reason(EnvironmentCode.NOTHING_TO_CANCEL), code=ProblemCode.NO_BUILD_TO_CANCEL)
    _cancel(actor, build, version)
    return build


def cancel_all(actor: User | SystemActor, environment: Environment) -> None:
    """Cancel all builds of a locked environment that is being deleted."""
    rows = EnvironmentBuild.objects.filter(version__environment=environment, state__in=OPEN)
    for build_id in list(rows.values_list("pk", flat=True)):
        build, version = locked_build(build_id)
        if build.open:
            _cancel(actor, build, version)


def _cancel(actor: User | SystemActor, build: EnvironmentBuild, version: EnvironmentVersion) -> None:
    lease = build.lease
    cancelled = Reason(EnvironmentCode.BUILD_CANCELLED).as_json()
    close(build, BuildState.CANCELLED, failure=cancelled)
    if version.state == VersionState.BUILDING and not selectors.open_builds([version.pk]).exists():
        version.state, version.failure, version.retry_at = VersionState.FAILED, cancelled, None
        version.save(update_fields=["state", "failure", "retry_at"])
    if lease:
        command = messages.dump(EnvironmentCancel(str(build.pk), lease))
        queue = node_commands.queue_of(build.node.pool, build.node.name)
        transaction.on_commit(partial(send, "node.environment_cancel", queue, command))
    _record(
        actor,
        AuditKind.ENVIRONMENT_BUILD_CANCELLED,
        version,
        f"cancelled the build of {_label(version)} on {build.node.name}",
        build,
    )


# --- sending -----------------------------------------------------------------------------------------


@transaction.atomic
def send_waiting(node_id: UUID) -> bool:
    """Send the node its first queued build, unless one is running. Returns whether one was sent.

    Locks the node, then versions, then builds. Rows that refer to them can still be created.
    """
    nodes = Node.objects.select_for_update(of=("self",), no_key=True).select_related("pool")
    node = nodes.filter(pk=node_id).first()
    if node is None:
        return False
    now = timezone.now()
    open_builds = EnvironmentBuild.objects.filter(node=node, state__in=OPEN)
    digests = list(open_builds.values_list("version__source_digest", flat=True))
    # Lock all versions with equal sources, so that one of two concurrent senders sees the other.
    same_source = EnvironmentVersion.objects.filter(source_digest__in=digests).order_by("pk")
    versions = {
        version.pk: version
        for version in same_source.select_for_update(of=("self",), no_key=True).select_related(
            "environment__team"
        )
    }
    builds = list(
        open_builds.select_for_update(of=("self",), no_key=True)
        .defer("log")
        .order_by("-priority", "created_at", "pk")
    )
    if any(build.state == BuildState.BUILDING or is_in_progress(build, now) for build in builds):
        return False
    for build in builds:
        version = versions.get(build.version_id)
        # `sweep` handles builds without attempts left, the next call handles new ones.
        if version is None or build.attempts >= MAX_ATTEMPTS or _leave_to_twin(version, now):
            continue
        _send_build(build, version, node, now)
        return True
    return False


def is_in_progress(build: EnvironmentBuild, now: datetime) -> bool:
    return bool(build.lease) and build.lease_expires_at is not None and build.lease_expires_at > now


def _leave_to_twin(version: EnvironmentVersion, now: datetime) -> bool:
    """Return whether to wait for another version with an equal source. Takes over a recent lock of one.

    Only the first of these versions is resolved. All then share one digest, and a node builds it once.
    """
    if version.lock:
        return False
    twins = EnvironmentVersion.objects.filter(source_digest=version.source_digest).exclude(pk=version.pk)
    twin = (
        twins.filter(state=VersionState.READY, ready_at__gte=now - TWIN_FRESH).order_by("-ready_at").first()
    )
    # Do not reuse the lock for a version created after its twin was ready.
    if twin is not None and twin.ready_at is not None and version.created_at <= twin.ready_at:
        version.lock, version.digest = twin.lock, twin.digest
        version.save(update_fields=["lock", "digest"])
        return False
    return (
        twins.filter(builds__state=BuildState.BUILDING).exists()
        or twins.filter(builds__state=BuildState.QUEUED, builds__lease_expires_at__gt=now)
        .exclude(builds__lease="")
        .exists()
    )


def _send_build(build: EnvironmentBuild, version: EnvironmentVersion, node: Node, now: datetime) -> None:
    build.lease = uuid.uuid4().hex
    build.lease_expires_at = now + timedelta(seconds=BEGIN_WITHIN_S)
    build.attempts += 1
    build.save(update_fields=["lease", "lease_expires_at", "attempts"])
    notebook = version.environment.notebook
    command = BuildCommand(
        build=str(build.pk),
        lease=build.lease,
        python=version.python,
        source_kind=SourceKind(version.source_kind),
        expires_at=build.lease_expires_at.timestamp(),
        deadline_s=settings.BERTH_ENVIRONMENT_BUILD_S,
        disk_limit_mib=settings.BERTH_ENVIRONMENT_MAX_MIB,
        digest=version.digest,
        source=""
        if version.lock
        else sources.source_to_build(version.source_kind, version.source, notebook=notebook),
        lock=version.lock,
    )
    queue = node_commands.queue_of(node.pool, node.name)
    transaction.on_commit(partial(send, "node.environment_build", queue, messages.dump(command)))


def send(task: str, queue: str, command: dict[str, Any]) -> None:
    try:
        app.send_task(task, kwargs={"command": command}, queue=queue, expires=BEGIN_WITHIN_S)
    except Exception as error:
        # The build is sent again once its lease expires.
        log.warning("could not send %s to %s: %s", task, queue, error)


# --- shared within the package ------------------------------------------------------------------------


def locked_build(build_id: UUID) -> tuple[EnvironmentBuild, EnvironmentVersion]:
    """Lock the environment, the version and the build. Returns build and version. Raises `NotFound`."""
    rows = EnvironmentBuild.objects.filter(pk=build_id).values_list("version_id", "version__environment_id")
    row = rows.first()
    if row is None:
        raise NotFound(Reason(EnvironmentCode.NO_SUCH_BUILD))
    build_pk, environment_id = row
    list(Environment.objects.select_for_update(no_key=True).filter(pk=environment_id).values_list("pk"))
    version = (
        EnvironmentVersion.objects.select_for_update(of=("self",), no_key=True)
        .select_related("environment__team")
        .filter(pk=build_pk)
        .first()
    )
    build = (
        EnvironmentBuild.objects.select_for_update(of=("self",), no_key=True)
        .select_related("node__pool")
        .filter(pk=build_id)
        .first()
    )
    if version is None or build is None:
        raise NotFound(Reason(EnvironmentCode.NO_SUCH_BUILD))
    build.version = version
    return build, version


def close(build: EnvironmentBuild, state: BuildState, **fields: Any) -> None:
    """Close a locked build and send the next one to its node."""
    fields |= {"state": state, "ended_at": timezone.now(), "lease": "", "lease_expires_at": None}
    for name, value in fields.items():
        setattr(build, name, value)
    build.save(update_fields=list(fields))
    transaction.on_commit(partial(send_waiting, build.node_id))
    transaction.on_commit(partial(live.publish_build, build.pk))
    emit(BuildsChanged())


def backoff(failures: int) -> timedelta:
    """Return the delay after this many consecutive failures: a minute, doubled up to six hours."""
    return timedelta(seconds=min(FIRST_RETRY_S * 2 ** max(0, failures - 1), LAST_RETRY_S))


def _label(version: EnvironmentVersion) -> str:
    return f"{version.environment.slug} version {version.number}"


def record_of_build(
    kind: AuditKind, version: EnvironmentVersion, build: EnvironmentBuild, message: str, **data: object
) -> None:
    """Write an audit entry of the portal about a build. Appends the build's name to `message`."""
    _record(SYSTEM, kind, version, f"{message} {_label(version)} on {build.node.name}", build, **data)


def _record(
    actor: User | SystemActor,
    kind: AuditKind,
    version: EnvironmentVersion,
    message: str,
    build: EnvironmentBuild | None = None,
    **data: object,
) -> None:
    details: dict[str, object] = {"environment": version.environment.slug, "version": version.number, **data}
    if build is not None:
        details |= {"build": str(build.pk), "node": build.node.name}
    events.record(
        actor=actor,
        kind=kind,
        team=version.environment.team,
        pool=build.node.pool if build is not None else None,
        message=message,
        data=details,
    )
