"""Applies messages from nodes about builds: once, under the current lease, and as requested."""

from __future__ import annotations

import logging
from datetime import datetime, timedelta
from functools import partial
from uuid import UUID

from django.conf import settings
from django.db import transaction
from django.db.models import Q
from django.utils import timezone
from django.utils.translation import gettext as _

from portal.catalog.environments import builds, logs
from portal.catalog.environments.builds import MAX_ATTEMPTS, SILENT_S, close, locked_build
from portal.catalog.environments.codes import EnvironmentCode
from portal.catalog.environments.domain_events import BuildsChanged, VersionReady
from portal.catalog.environments.models import (
    BuildState,
    Environment,
    EnvironmentBuild,
    EnvironmentVersion,
    SourceKind,
    StoredContent,
    VersionState,
)
from portal.common.domain_events import emit
from portal.common.errors import NotFound
from portal.common.events import live
from portal.common.events.kinds import AuditKind
from portal.common.events.services import notify
from portal.common.reasons.reason import Reason
from portal.common.reasons.wording import message_of, sentence_of
from portal.fleet.inventory import held_environments, node_messages
from portal.people.accounts.models import User
from provisioning.environment_messages import BuildFailure, EnvironmentBuilt, EnvironmentProgress
from provisioning.environments.content import digest_of
from provisioning.environments.folders import digest_of_folder
from provisioning.types import HeldEnvironment

log = logging.getLogger(__name__)
FOLD = timedelta(days=1)
CODES = {
    BuildFailure.NO_SUCH_FOLDER: EnvironmentCode.BUILD_NO_SUCH_FOLDER,
    BuildFailure.NO_SUCH_PACKAGE: EnvironmentCode.BUILD_NO_SUCH_PACKAGE,
    BuildFailure.RESOLUTION_FAILED: EnvironmentCode.BUILD_RESOLUTION_FAILED,
    BuildFailure.HASH_MISMATCH: EnvironmentCode.BUILD_HASH_MISMATCH,
    BuildFailure.INDEX_UNREACHABLE: EnvironmentCode.INDEX_UNREACHABLE,
    BuildFailure.DISK_FULL: EnvironmentCode.BUILD_DISK_FULL,
    BuildFailure.TOO_LARGE: EnvironmentCode.BUILD_TOO_LARGE,
    BuildFailure.TIMED_OUT: EnvironmentCode.BUILD_TIMED_OUT,
    BuildFailure.CANCELLED: EnvironmentCode.BUILD_CANCELLED,
    BuildFailure.NO_PYTHON: EnvironmentCode.BUILD_NO_PYTHON,
    BuildFailure.UV_MISSING: EnvironmentCode.BUILD_UV_MISSING,
    BuildFailure.BUILD_FAILED: EnvironmentCode.BUILD_FAILED,
    BuildFailure.UNFORESEEN: EnvironmentCode.BUILD_UNFORESEEN,
}
WITH_SEPARATE_LOG_LINE = frozenset({EnvironmentCode.BUILD_NO_SUCH_PACKAGE})
"""Failures whose text does not include the log line."""
LIST_AT_FAULT = frozenset(
    {
        EnvironmentCode.BUILD_NO_SUCH_PACKAGE,
        EnvironmentCode.BUILD_RESOLUTION_FAILED,
        EnvironmentCode.BUILD_HASH_MISMATCH,
        EnvironmentCode.BUILD_TOO_LARGE,
        EnvironmentCode.BUILD_FAILED,
    }
)
"""Failures that only a changed list can fix."""
FINAL = LIST_AT_FAULT | {EnvironmentCode.BUILD_CANCELLED}
"""Failures without an automatic retry: the list caused them, or a user cancelled the build."""


def is_from_build_node(build: str, lease: str) -> bool:
    """Return whether the message is from the build's node, under the current lease."""
    try:
        rows = EnvironmentBuild.objects.filter(pk=UUID(build), lease=lease).select_related("node__pool")
    except ValueError:
        return False
    row = rows.defer("log").first() if lease else None
    return row is not None and node_messages.is_from_asked_node(row.node.pool, row.node.name)


def apply_progress(progress: EnvironmentProgress) -> bool:
    """Record progress and extend the lease. Returns False for a stale message, which is dropped."""
    now = timezone.now()
    with transaction.atomic():
        build = _leased_build(progress.build, progress.lease)
        if build is None or _exceeds_limit(build, now):
            return False
        fields = ["state", "stage", "done", "total", "lease_expires_at"]
        if build.state == BuildState.QUEUED:
            build.state, build.started_at = BuildState.BUILDING, now
            fields.append("started_at")
        changed = build.stage != progress.stage.value
        build.stage = progress.stage.value
        build.total = min(progress.total, 2**31 - 1)
        build.done = min(progress.done, build.total)
        build.lease_expires_at = now + timedelta(seconds=SILENT_S)
        if progress.log:
            build.log, build.log_dropped, build.log_received = logs.append_text(
                build.log,
                build.log_dropped,
                build.log_received,
                offset=progress.log_offset,
                text=progress.log,
            )
            fields += ["log", "log_dropped", "log_received"]
        build.save(update_fields=fields)
        if changed:
            emit(BuildsChanged())
    live.publish_build(build.pk)
    return True


def _leased_build(build: str, lease: str) -> EnvironmentBuild | None:
    try:
        build_id = UUID(build)
    except ValueError:
        return None
    if not lease:
        return None
    row = EnvironmentBuild.objects.select_for_update(of=("self",)).filter(pk=build_id, lease=lease).first()
    return row if row is not None and row.open else None


def _exceeds_limit(build: EnvironmentBuild, now: datetime) -> bool:
    """Return whether a build exceeds its time limit and has to fail, even if it reports progress."""
    limit = timedelta(seconds=settings.BERTH_ENVIRONMENT_BUILD_S * 1.5 + 120)
    return build.started_at is not None and now - build.started_at > limit


def apply_built(result: EnvironmentBuilt) -> bool:
    """Record the result of a build. Returns False for a stale or invalid message, which is dropped."""
    try:
        build_id = UUID(result.build)
    except ValueError:
        return False
    with transaction.atomic():
        try:
            build, version = locked_build(build_id)
        except NotFound:
            return False
        if not result.lease or build.lease != result.lease or not build.open:
            return False
        _take_log(build, result)
        if result.failure is not None:
            _apply_failure(build, version, _reason_of(result, build, version))
        elif not _is_valid(result, version):
            log.warning("%s reported a build that was not requested", build.node.name)
            _apply_failure(build, version, Reason(EnvironmentCode.BUILD_UNSOUND, {"node": build.node.name}))
        else:
            _apply_success(build, version, result)
    return True


def _take_log(build: EnvironmentBuild, result: EnvironmentBuilt) -> None:
    """Append the end of the log from the result, because later progress messages are dropped."""
    if result.log:
        build.log, build.log_dropped, build.log_received = logs.append_text(
            build.log, build.log_dropped, build.log_received, offset=result.log_offset, text=result.log
        )
        build.save(update_fields=["log", "log_dropped", "log_received"])


def _is_valid(result: EnvironmentBuilt, version: EnvironmentVersion) -> bool:
    """Return whether the digest matches the lock, and both match the request."""
    if version.source_kind == SourceKind.FOLDER:
        return result.digest == version.digest == digest_of_folder(version.source)
    lock = version.lock or result.lock
    if not lock or not result.digest or digest_of(lock, version.python) != result.digest:
        return False
    if result.lock and digest_of(result.lock, version.python) != result.digest:
        return False
    return not version.digest or version.digest == result.digest


def _apply_success(build: EnvironmentBuild, version: EnvironmentVersion, result: EnvironmentBuilt) -> None:
    close(build, BuildState.READY, stage="", failure={}, started_at=build.started_at or timezone.now())
    first = version.state != VersionState.READY
    if first:
        version.lock = version.lock or result.lock
        version.digest = result.digest
        version.packages = [
            {
                "name": logs.clean(package.name),
                "version": logs.clean(package.version),
                "size_kib": package.size_kib,
            }
            for package in sorted(result.packages, key=lambda package: package.name.lower())
        ]
        version.size_mib = result.size_mib
        version.programs = sorted(set(result.programs))
        version.python_version, version.cuda = logs.clean(result.python_version), logs.clean(result.cuda)
        version.state, version.ready_at = VersionState.READY, timezone.now()
        version.failure, version.retry_at, version.builds_failed = {}, None, 0
        version.save()
        if version.source_kind == SourceKind.FOLDER:
            version.python = ".".join(version.python_version.split(".")[:2])
            version.save(update_fields=["python"])
        else:
            StoredContent.objects.update_or_create(digest=result.digest, defaults={"unused_since": None})
        _make_current(version)
        emit(VersionReady(version))
        builds.record_of_build(AuditKind.ENVIRONMENT_BUILT, version, build, "built", digest=result.digest)
    if version.source_kind == SourceKind.FOLDER:
        return  # the node's inventory reports existing folders
    holding = HeldEnvironment(version.digest, result.size_mib or version.size_mib, tuple(version.programs))
    # In a separate transaction: `send_waiting` locks nodes before versions.
    transaction.on_commit(partial(held_environments.add, build.node_id, holding))


def _make_current(version: EnvironmentVersion) -> None:
    """Make the version current, unless a later one is. The environment is locked."""
    environment = (
        Environment.objects.select_related("current").only("current__number").get(pk=version.environment_id)
    )
    if environment.current is None or environment.current.number < version.number:
        Environment.objects.filter(pk=environment.pk).update(current=version)


def _reason_of(result: EnvironmentBuilt, build: EnvironmentBuild, version: EnvironmentVersion) -> Reason:
    assert result.failure is not None
    try:
        code = CODES[BuildFailure(result.failure.code)]
    except ValueError:
        code = EnvironmentCode.BUILD_UNFORESEEN
    line = result.failed_line
    log_line = line.log_line if line is not None and line.log_line else result.failure.message
    return Reason(
        code,
        {
            "node": build.node.name,
            "python": version.python,
            "limit_mib": settings.BERTH_ENVIRONMENT_MAX_MIB,
            "source_line": line.source_line if line is not None else 0,
            "log_line": " ".join(logs.clean(log_line).split())[:300],
        },
    )


def _apply_failure(build: EnvironmentBuild, version: EnvironmentVersion, reason: Reason) -> None:
    """Close a failed build. A version that is ready on other nodes stays ready."""
    now = timezone.now()
    final = reason.code in FINAL
    before = EnvironmentBuild.objects.filter(version=version, node=build.node_id, state=BuildState.FAILED)
    failures = before.filter(created_at__gte=now - timedelta(days=1)).count() + 1
    wait = builds.backoff(failures)
    close(build, BuildState.FAILED, failure=reason.as_json(), retry_at=now + wait)
    if version.state == VersionState.READY:
        _notify_operators(build, version, reason)
        return
    version.builds_failed += 1
    version.state, version.failure = VersionState.FAILED, reason.as_json()
    version.retry_at = None if final else now + builds.backoff(version.builds_failed)
    version.save(update_fields=["state", "failure", "retry_at", "builds_failed"])
    builds.record_of_build(
        AuditKind.ENVIRONMENT_BUILD_FAILED,
        version,
        build,
        f"could not build ({message_of(reason)})",
        code=reason.code.value,
    )
    if final:
        _notify_creator(version, reason)
    else:
        _notify_operators(build, version, reason)


def _notify_creator(version: EnvironmentVersion, reason: Reason) -> None:
    creator = version.created_by
    if creator is not None and reason.code != EnvironmentCode.BUILD_CANCELLED:
        notify(
            [creator],
            "environment.build_failed",
            _("%(name)s: version %(number)s could not be built")
            % {"name": version.environment.name, "number": version.number},
            sentence_of(reason),
            f"/environments/{version.environment.slug}/",
        )


def _notify_operators(build: EnvironmentBuild, version: EnvironmentVersion, reason: Reason) -> None:
    """Notify operators only: users are unaffected, and the build is retried."""
    if reason.code in FINAL and version.state != VersionState.READY:
        return
    notify(
        User.objects.filter(Q(is_operator=True) | Q(is_superuser=True), is_active=True),
        "environment.build_failed",
        _("%(name)s could not be built on %(node)s")
        % {"name": version.environment.name, "node": build.node.name},
        sentence_of(reason),
        f"/environments/{version.environment.slug}/",
        fold=FOLD,
    )


def handle_missing_report(build_id: UUID) -> None:
    """Handle an open build without reports: send it again, or fail it."""
    now = timezone.now()
    with transaction.atomic():
        try:
            build, version = locked_build(build_id)
        except NotFound:
            return
        if not build.open or builds.is_in_progress(build, now):
            return
        if build.attempts < MAX_ATTEMPTS and not _exceeds_limit(build, now):
            # Messages under the old lease are stale now.
            build.state, build.lease, build.lease_expires_at = BuildState.QUEUED, "", None
            build.started_at, build.stage, build.done, build.total = None, "", 0, 0
            # The log of the next attempt starts from 0.
            build.log_received = 0
            build.save(
                update_fields=[
                    *("state", "lease", "lease_expires_at", "started_at", "stage", "done", "total"),
                    "log_received",
                ]
            )
            transaction.on_commit(lambda: builds.send_waiting(build.node_id))
            return
        _apply_failure(build, version, Reason(EnvironmentCode.NODE_DID_NOT_ANSWER, {"node": build.node.name}))
