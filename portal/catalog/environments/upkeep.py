"""Periodic tasks: lost builds, retries, distribution to nodes, and removal of unused content."""

from __future__ import annotations

from datetime import datetime, timedelta
from uuid import UUID

from django.conf import settings
from django.db import transaction
from django.db.models import Count, Q
from django.utils import timezone

from portal.catalog.environments import builds, results, selectors
from portal.catalog.environments.models import (
    OPEN,
    BuildState,
    EnvironmentBuild,
    EnvironmentVersion,
    SourceKind,
    StoredContent,
    VersionState,
)
from portal.fleet.inventory import node_commands
from portal.fleet.inventory.contact import in_contact
from provisioning import messages
from provisioning.environment_messages import EnvironmentRemoval

MAX_BUILDS_KEPT = 50
PER_SWEEP = 200


def sweep() -> None:
    """Handle lost builds, retry failed ones that are due, and distribute versions in use to nodes."""
    now = timezone.now()
    for build_id in _silent_builds(now):
        results.handle_missing_report(build_id)
    _queue_requested(now)
    _distribute(now)
    _mark_unused(now)
    waiting = EnvironmentBuild.objects.filter(state=BuildState.QUEUED).values_list("node_id", flat=True)
    for node_id in sorted(set(waiting)):
        builds.send_waiting(node_id)


def _silent_builds(now: datetime) -> list[UUID]:
    builds_due = EnvironmentBuild.objects.filter(state__in=OPEN).filter(
        Q(state=BuildState.BUILDING) | ~Q(lease="") | Q(attempts__gte=builds.MAX_ATTEMPTS)
    )
    builds_due = builds_due.filter(Q(lease_expires_at__isnull=True) | Q(lease_expires_at__lte=now))
    return list(builds_due.values_list("pk", flat=True)[:PER_SWEEP])


def _queue_requested(now: datetime) -> None:
    """Queue builds for requested versions without a build, and for failed ones whose retry is due."""
    due = EnvironmentVersion.objects.filter(
        Q(state=VersionState.BUILDING) | Q(state=VersionState.FAILED, retry_at__lte=now)
    ).exclude(builds__state__in=OPEN)
    for version_id, by in due.order_by("created_at").values_list("pk", "created_by_id")[:PER_SWEEP]:
        with transaction.atomic():
            version = EnvironmentVersion.objects.select_for_update(of=("self",), no_key=True).get(
                pk=version_id
            )
            if version.state == VersionState.READY or version.state == VersionState.NEW:
                continue
            builds.queue_or_wait(version, priority=builds.BY_ITSELF if by is None else builds.ASKED)


def _distribute(now: datetime) -> None:
    """Queue a build for each node that lacks a version in use, from the existing lock."""
    wanted = list(
        selectors.versions_in_use()
        .exclude(source_kind=SourceKind.FOLDER)  # operators install folders on nodes
        .order_by("digest", "ready_at")
        .values_list("pk", "digest", "created_by_id")[: PER_SWEEP * 5]
    )
    by_digest = {digest: (pk, by) for pk, digest, by in reversed(wanted)}
    nodes = list(selectors.building_nodes().filter(in_contact()).order_by("name"))
    open_builds = set(
        EnvironmentBuild.objects.filter(state__in=OPEN).values_list("version__digest", "node_id")
    )
    recent = EnvironmentBuild.objects.filter(state=BuildState.FAILED, retry_at__gt=now)
    postponed_builds = set(recent.values_list("version__digest", "node_id"))
    count = 0
    for digest, (version_id, by) in by_digest.items():
        for node in nodes:
            if count >= PER_SWEEP:
                return
            if selectors.holds(node, digest) or (digest, node.pk) in open_builds | postponed_builds:
                continue
            with transaction.atomic():
                # Lock the version, so that it cannot be deleted or queued twice meanwhile.
                version = (
                    EnvironmentVersion.objects.select_for_update(of=("self",), no_key=True)
                    .filter(pk=version_id)
                    .first()
                )
                if version is not None:
                    builds.create_build(version, node, priority=builds.BY_ITSELF if by is None else 0)
                    count += 1


def _mark_unused(now: datetime) -> None:
    """Mark unused content, and ask nodes to remove content that has been unused for long enough."""
    used = set(selectors.versions_in_use().values_list("digest", flat=True))
    used |= set(EnvironmentBuild.objects.filter(state__in=OPEN).values_list("version__digest", flat=True))
    stored = dict(StoredContent.objects.values_list("digest", "unused_since"))
    unused_digests = [digest for digest, since in stored.items() if since is None and digest not in used]
    reused_digests = [digest for digest, since in stored.items() if since is not None and digest in used]
    StoredContent.objects.filter(digest__in=unused_digests).update(unused_since=now)
    StoredContent.objects.filter(digest__in=reused_digests).update(unused_since=None)
    after = timedelta(days=settings.BERTH_ENVIRONMENT_KEEP_DAYS)
    expired_digests = {
        digest for digest, since in stored.items() if since and digest not in used and now - since >= after
    }
    if not expired_digests:
        return
    for node in selectors.building_nodes().filter(in_contact()):
        for digest in sorted(expired_digests & {entry.get("digest", "") for entry in node.environments}):
            command = messages.dump(EnvironmentRemoval(digest))
            builds.send("node.environment_remove", node_commands.queue_of(node.pool, node.name), command)


def prune() -> int:
    """Delete old builds, except the latest ones of each version. Returns the number deleted."""
    before = timezone.now() - timedelta(days=settings.BERTH_ENVIRONMENT_KEEP_DAYS)
    count = 0
    versions = (
        EnvironmentBuild.objects.exclude(state__in=OPEN)
        .values("version_id")
        .annotate(count=Count("pk"))
        .filter(count__gt=MAX_BUILDS_KEPT)
    )
    for row in versions:
        ended = EnvironmentBuild.objects.exclude(state__in=OPEN).filter(version=row["version_id"])
        recent_ids = list(ended.order_by("-created_at").values_list("pk", flat=True)[:MAX_BUILDS_KEPT])
        count += ended.exclude(pk__in=recent_ids).filter(ended_at__lt=before).delete()[0]
    return count
