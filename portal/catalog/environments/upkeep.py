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
    _resolve_wanted(now)
    _distribute(now)
    _note_unused(now)
    waiting = EnvironmentBuild.objects.filter(state=BuildState.QUEUED).values_list("node_id", flat=True)
    for node_id in sorted(set(waiting)):
        builds.send_waiting(node_id)


def _silent_builds(now: datetime) -> list[UUID]:
    late = EnvironmentBuild.objects.filter(state__in=OPEN).filter(
        Q(state=BuildState.BUILDING) | ~Q(lease="") | Q(attempts__gte=builds.MAX_ATTEMPTS)
    )
    late = late.filter(Q(lease_expires_at__isnull=True) | Q(lease_expires_at__lte=now))
    return list(late.values_list("pk", flat=True)[:PER_SWEEP])


def _resolve_wanted(now: datetime) -> None:
    """Queue builds for versions that have none, and for those whose retry is due."""
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
        .exclude(source_kind=SourceKind.FOLDER)  # installed on nodes independently
        .order_by("digest", "ready_at")
        .values_list("pk", "digest", "created_by_id")[: PER_SWEEP * 5]
    )
    by_digest = {digest: (pk, by) for pk, digest, by in reversed(wanted)}
    nodes = list(selectors.building_nodes().filter(in_contact()).order_by("name"))
    open_ones = set(EnvironmentBuild.objects.filter(state__in=OPEN).values_list("version__digest", "node_id"))
    recent = EnvironmentBuild.objects.filter(state=BuildState.FAILED, retry_at__gt=now)
    waits = set(recent.values_list("version__digest", "node_id"))
    count = 0
    for digest, (version_id, by) in by_digest.items():
        for node in nodes:
            if count >= PER_SWEEP:
                return
            if selectors.holds(node, digest) or (digest, node.pk) in open_ones | waits:
                continue
            with transaction.atomic():
                # Locked, so that it cannot be deleted or queued twice meanwhile.
                version = (
                    EnvironmentVersion.objects.select_for_update(of=("self",), no_key=True)
                    .filter(pk=version_id)
                    .first()
                )
                if version is not None:
                    builds.create_build(version, node, priority=builds.BY_ITSELF if by is None else 0)
                    count += 1


def _note_unused(now: datetime) -> None:
    """Mark unused content, and remove it from nodes once it has been unused for long enough."""
    used = set(selectors.versions_in_use().values_list("digest", flat=True))
    used |= set(EnvironmentBuild.objects.filter(state__in=OPEN).values_list("version__digest", flat=True))
    stored = dict(StoredContent.objects.values_list("digest", "unused_since"))
    fresh = [digest for digest, since in stored.items() if since is None and digest not in used]
    again = [digest for digest, since in stored.items() if since is not None and digest in used]
    StoredContent.objects.filter(digest__in=fresh).update(unused_since=now)
    StoredContent.objects.filter(digest__in=again).update(unused_since=None)
    after = timedelta(days=settings.BERTH_ENVIRONMENT_KEEP_DAYS)
    old = {
        digest for digest, since in stored.items() if since and digest not in used and now - since >= after
    }
    if not old:
        return
    for node in selectors.building_nodes().filter(in_contact()):
        for digest in sorted(old & {entry.get("digest", "") for entry in node.environments}):
            command = messages.dump(EnvironmentRemoval(digest))
            builds.send("node.environment_remove", node_commands.queue_of(node.pool, node.name), command)


def prune() -> int:
    """Delete old builds, except the last of each version. Returns how many."""
    before = timezone.now() - timedelta(days=settings.BERTH_ENVIRONMENT_KEEP_DAYS)
    forgotten = 0
    crowded = (
        EnvironmentBuild.objects.exclude(state__in=OPEN)
        .values("version_id")
        .annotate(count=Count("pk"))
        .filter(count__gt=MAX_BUILDS_KEPT)
    )
    for row in crowded:
        ended = EnvironmentBuild.objects.exclude(state__in=OPEN).filter(version=row["version_id"])
        recent_ids = list(ended.order_by("-created_at").values_list("pk", flat=True)[:MAX_BUILDS_KEPT])
        forgotten += ended.exclude(pk__in=recent_ids).filter(ended_at__lt=before).delete()[0]
    return forgotten
