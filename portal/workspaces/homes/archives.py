"""Creates, restores and deletes home archives on the home's node, for the owner of the home only.

A process in the sandbox of the home's owner creates an archive (`provisioning/drivers/local/home_archives`).
Commands are sent under leases and answered with progress, so a crash costs at most one command. While an
archive is created or restored, workspaces of the owner cannot start there and files of the home cannot
change. A restored home replaces the old one only once it is complete; if the restore fails before that,
nothing changes.

When the home is moved, an archive stays on its node and can be restored only there.
"""

from __future__ import annotations

import uuid
from datetime import timedelta
from functools import partial
from typing import Any
from uuid import UUID

from django.conf import settings
from django.db import transaction
from django.db.models import Q, QuerySet, Sum
from django.utils import timezone
from django.utils.translation import gettext as _

from portal.common.actors import SYSTEM
from portal.common.errors import InvalidInput, NotFound, StateConflict
from portal.common.events.kinds import AuditKind
from portal.common.reasons.reason import Reason
from portal.common.reasons.wording import sentence_of
from portal.common.texts import strip_nul
from portal.fleet.inventory import node_commands
from portal.fleet.inventory.models import Node, Pool
from portal.people.accounts.models import User
from portal.workspaces import policies
from portal.workspaces.home_files.codes import FileCode
from portal.workspaces.homes import away as away_homes
from portal.workspaces.homes import places as home_places
from portal.workspaces.homes import use as home_use
from portal.workspaces.homes.archive_parts import (
    archive_label,
    begin_delete,
    begin_restore,
    close,
    conflict,
    lock_archive,
    notify,
    process_on_commit,
    record,
    require_free,
)
from portal.workspaces.homes.codes import ArchiveCode
from portal.workspaces.models import (
    ACTIVE_ARCHIVES,
    HomeArchive,
    HomeArchiveState,
    HomePlace,
    Workspace,
)
from provisioning import messages
from provisioning.home_messages import ArchiveCommand, HomeArchived, HomeArchiveOrder

LEASE_S = 60
RETRY_STEP_S = 10
LATER_S = 30
MAX_RETRY_S = 600
MAX_FAILURES = 60
"""Consecutive commands without an answer or with a failure, over at least an hour, before the job fails."""
MAX_RESTARTS = 5
"""Maximum number of restarts after the process was killed."""
MAX_NAME = 80
UNLIMITED = 1 << 50
BATCH = 50


def archives_of_home(actor: User, workspace: Workspace) -> QuerySet[HomeArchive]:
    """Return the archives of the workspace's home, newest first. Raises `NotAllowed` for other users."""
    policies.require_home(actor, workspace)
    rows = HomeArchive.objects.select_related("team", "pool", "node", "owner")
    return rows.filter(owner=workspace.owner_id, team=workspace.team_id)


def archive_of_home(actor: User, workspace: Workspace, archive_id: UUID) -> HomeArchive:
    """Return one archive of the workspace's home. Raises `NotAllowed` and `NotFound`."""
    archive = archives_of_home(actor, workspace).filter(pk=archive_id).first()
    if archive is None:
        raise NotFound(Reason(ArchiveCode.NO_SUCH_ARCHIVE))
    return archive


def archiving_obstacle(workspace: Workspace) -> Reason | None:
    """Return why the home cannot be archived or restored now. Does not ask the node."""
    location = home_places.node_of(workspace)
    if location is None:
        return Reason(FileCode.HOME_NOWHERE)
    pool, name = location
    if not home_places.has_separate_homes(pool):
        return Reason(ArchiveCode.NOT_HERE)
    node = Node.objects.filter(pool=pool, name=name).first()
    if node is not None and home_use.is_home_in_use(workspace.owner_id, workspace.team_id, node.pk):
        return Reason(ArchiveCode.IN_USE)
    return None


@transaction.atomic
def create(*, actor: User, workspace: Workspace, name: str = "") -> HomeArchive:
    """Request an archive of the workspace's home.

    Raises `NotAllowed` (not the owner), `InvalidInput` (the name) and `StateConflict`: no home, home in use
    or held by a move or another archive, or limit of archives reached.
    """
    name = strip_nul(name).strip() or _default_name()
    if len(name) > MAX_NAME or not name.isprintable():
        reason = Reason(ArchiveCode.BAD_NAME, {"maximum": MAX_NAME})
        raise InvalidInput(reason, errors={"name": [reason]})
    pool, node = _lock_home(actor, workspace)
    count = _counted_archives(workspace.owner_id, workspace.team_id).count()
    if count >= settings.BERTH_HOME_ARCHIVES:
        raise conflict(ArchiveCode.TOO_MANY, count=count)
    now = timezone.now()
    archive = HomeArchive.objects.create(
        owner=workspace.owner, team=workspace.team, pool=pool, node=node, node_name=node.name, name=name,
        asked_at=now, next_at=now, job=uuid.uuid4().hex,
    )  # fmt: skip
    home_use.notify_scheduler(archive.owner_id, archive.team_id)
    process_on_commit()
    return archive


@transaction.atomic
def restore(*, actor: User, workspace: Workspace, archive_id: UUID) -> HomeArchive:
    """Restore the home from an archive. Its current files are deleted once the new home is complete.

    Raises `NotFound`, and the exceptions of `create`.
    """
    archive = lock_archive(archive_of_home(actor, workspace, archive_id).pk)
    if archive is None:
        raise NotFound(Reason(ArchiveCode.NO_SUCH_ARCHIVE))
    if archive.state == HomeArchiveState.RESTORING:
        return archive
    if archive.state != HomeArchiveState.READY:
        raise conflict(ArchiveCode.NOT_READY)
    _pool, node = _lock_home(actor, workspace, restores=True)
    if archive.node_id != node.pk:
        raise conflict(ArchiveCode.HOME_ELSEWHERE, node=archive.node_name)
    begin_restore(archive, actor)
    return archive


@transaction.atomic
def cancel(*, actor: User, workspace: Workspace, archive_id: UUID) -> None:
    """Cancel the running job. Partial results are removed, and the home is unchanged.

    Raises `NotAllowed`, `NotFound`, and `StateConflict` if no job is running.
    """
    archive = lock_archive(archive_of_home(actor, workspace, archive_id).pk)
    if archive is None or not archive.active:
        raise conflict(ArchiveCode.NOTHING_TO_CANCEL)
    away_homes.cancel_job(archive)


@transaction.atomic
def delete(*, actor: User, workspace: Workspace, archive_id: UUID) -> None:
    """Delete an archive permanently. Idempotent.

    Raises `NotAllowed`, `NotFound`, and `StateConflict` while a job holds the home.
    """
    archive = lock_archive(archive_of_home(actor, workspace, archive_id).pk)
    if archive is None or archive.state == HomeArchiveState.DELETING:
        return
    if archive.away_at is not None:
        raise conflict(ArchiveCode.HOLDS_HOME)
    begin_delete(archive)
    record(archive, actor, AuditKind.USER_HOME_ARCHIVE_DELETED, f"deleted {archive_label(archive)}")


def home_deleted(*, owner_id: UUID, team_id: UUID, node_id: UUID) -> None:
    """Delete the archives of a home that was deleted on a node, in the caller's transaction."""
    HomeArchive.objects.filter(owner=owner_id, team=team_id, node=node_id).delete()


def cancel_all(**homes: Any) -> None:
    """Cancel running jobs for homes of a deleted account or team (`owner` or `team`), in the transaction."""
    for pk in HomeArchive.objects.filter(**homes, state__in=ACTIVE_ARCHIVES).values_list("pk", flat=True):
        archive = lock_archive(pk)
        if archive is not None and archive.active:
            away_homes.cancel_job(archive)


def _lock_home(actor: User, workspace: Workspace, *, restores: bool = False) -> tuple[Pool, Node]:
    """Return the home's pool and node, locked against new moves and archives. Raises the errors of `create`.

    If the only copy of the home is an archive, the home can only be restored.
    """
    policies.require_home(actor, workspace)
    location = home_places.node_of(workspace)
    if location is None:
        raise StateConflict(Reason(FileCode.HOME_NOWHERE), code=FileCode.HOME_NOWHERE)
    pool, name = location
    if not home_places.has_separate_homes(pool):
        raise conflict(ArchiveCode.NOT_HERE)
    home_filter = {"owner": workspace.owner_id, "team": workspace.team_id, "pool": pool}
    place = (
        HomePlace.objects.select_for_update(of=("self",)).select_related("node").filter(**home_filter).first()
    )
    node = place.node if place is not None else Node.objects.filter(pool=pool, name=name).first()
    if node is None:
        raise conflict(ArchiveCode.NODE_GONE, node=name)
    require_free(workspace.owner_id, workspace.team_id, pool, node, restores=restores)
    return pool, node


def _counted_archives(owner_id: UUID, team_id: UUID) -> QuerySet[HomeArchive]:
    """Return the archives that count towards the limits of number and size."""
    excluded = Q(state=HomeArchiveState.FAILED) | Q(node=None) | Q(node__retired=True)
    excluded |= Q(empties=True) | Q(away_at__isnull=False)  # archives that replace the home do not count
    return HomeArchive.objects.filter(owner=owner_id, team=team_id).exclude(excluded)


def room_bytes(archive: HomeArchive) -> int:
    """Return the maximum size of this archive in bytes: all archives together may be as large as one home."""
    if not settings.BERTH_HOME_LIMIT_MIB or archive.empties:
        return UNLIMITED
    others = _counted_archives(archive.owner_id, archive.team_id).exclude(pk=archive.pk)
    used: int = others.aggregate(all=Sum("size_bytes"))["all"] or 0
    return max(0, (int(settings.BERTH_HOME_LIMIT_MIB) << 20) - used)


def _default_name() -> str:
    return timezone.localtime().strftime("%Y-%m-%d %H:%M")


# --- reconciliation --------------------------------------------------------------------------------------


def due_archives() -> QuerySet[HomeArchive]:
    """Return the archives with a step that is due, oldest first."""
    now = timezone.now()
    free = Q(lease="") | Q(lease_expires_at__lte=now)
    return HomeArchive.objects.filter(free, open=True, next_at__lte=now).order_by("asked_at", "pk")


def sweep() -> int:
    """Send a command for each due archive. At most one archive per node is active at a time."""
    away_homes.restore_awaited_homes()
    now = timezone.now()
    working = HomeArchive.objects.filter(open=True, state__in=ACTIVE_ARCHIVES, lease_expires_at__gt=now)
    busy = set(working.exclude(lease="").values_list("node", flat=True))
    rows = list(due_archives().values_list("pk", "node", "state")[:BATCH])
    for pk, node, state in rows:
        if state in ACTIVE_ARCHIVES:
            if node in busy:
                continue
            busy.add(node)
        _step(pk)
    return len(rows)


@transaction.atomic
def _step(pk: UUID) -> None:
    archive = lock_archive(pk)
    if archive is None or not due_archives().filter(pk=pk).exists():
        return
    node = archive.node
    if node is None or node.retired or not home_use.is_node_trusted(archive.pool, node.name):
        _without_node(archive)
        return
    if archive.lease:
        archive.failures += 1
        archive.reason = Reason(ArchiveCode.NODE_SILENT, {"node": archive.node_name}).as_json()
        if archive.active and archive.failures >= MAX_FAILURES:
            _fail(archive, Reason.from_json(archive.reason))
            return
    in_use = archive.active and home_use.is_home_in_use(archive.owner_id, archive.team_id, node.pk)
    if in_use and archive.empties:
        away_homes.cancel_job(archive)
        return
    if in_use:
        # A workspace was placed after the request. Wait until it stops before anything is read.
        archive.reason = Reason(ArchiveCode.IN_USE).as_json()
        archive.next_at = timezone.now() + timedelta(seconds=LATER_S)
        archive.lease, archive.lease_expires_at = "", None
        archive.save()
        return
    _send_command(archive, node)


def _send_command(archive: HomeArchive, node: Node) -> None:
    """Take the lease, and send one command after the transaction commits."""
    now = timezone.now()
    if archive.state == HomeArchiveState.RESTORING:
        do = ArchiveCommand.RESTORE
    elif archive.state == HomeArchiveState.EMPTYING:
        do = ArchiveCommand.LEAVE if archive.left else ArchiveCommand.EMPTY
    elif archive.active:
        do = ArchiveCommand.MAKE
    else:
        do = ArchiveCommand.DELETE if archive.state == HomeArchiveState.DELETING else ArchiveCommand.CLEAR
    archive.lease, archive.lease_expires_at = uuid.uuid4().hex, now + timedelta(seconds=LEASE_S)
    archive.next_at = archive.lease_expires_at
    archive.save()
    order = HomeArchiveOrder(
        archive=archive.pk.hex,
        job=archive.job,
        lease=archive.lease,
        do=do,
        pool=node_commands.config_of(archive.pool),
        team=archive.team.slug,
        owner=archive.owner.username,
        expires_at=(now + timedelta(seconds=settings.NODE_LEASE_S)).timestamp(),
        most_bytes=room_bytes(archive) if do is ArchiveCommand.MAKE else 0,
        empties=archive.empties,
    )
    queue = node_commands.queue_of(archive.pool, node.name)
    transaction.on_commit(partial(node_commands.send, "node.archive_home", queue, order=messages.dump(order)))


def apply(answer: HomeArchived) -> bool:
    """Apply a node's answer. Returns `False` if it is stale and was dropped."""
    try:
        key = UUID(answer.archive)
    except ValueError:
        return False
    with transaction.atomic():
        archive = lock_archive(key)
        if archive is None or not answer.lease or archive.lease != answer.lease:
            return False
        archive.lease, archive.lease_expires_at, archive.next_at = "", None, timezone.now()
        if not archive.active:
            _apply_cleanup(archive, answer)
        elif archive.state == HomeArchiveState.EMPTYING:
            away_homes.apply_emptying_answer(archive, answer)
        elif answer.refused:
            _fail(archive, _refusal(archive, answer))
        elif answer.failure is not None:
            _record_failure(archive, answer)
        elif answer.done:
            archive.failures, archive.reason = 0, {}
            _finish_restoring(archive) if answer.do is ArchiveCommand.RESTORE else _finish_making(
                archive, answer
            )
        else:
            _record_progress(archive, answer)
        if archive.open:
            process_on_commit()
    return True


def _record_progress(archive: HomeArchive, answer: HomeArchived) -> None:
    """Record progress. Less progress than before means that the process was killed and has restarted."""
    previous = (archive.state == HomeArchiveState.CHECKING, archive.bytes_done)
    archive.failures, archive.reason = 0, {}
    if archive.state != HomeArchiveState.RESTORING:
        archive.state = HomeArchiveState.CHECKING if answer.checking else HomeArchiveState.MAKING
        archive.stream_bytes = max(archive.stream_bytes, answer.bytes_done)
    archive.bytes_done = answer.bytes_done
    if (answer.checking, answer.bytes_done) < previous:
        archive.restarts += 1
        if archive.restarts >= MAX_RESTARTS:
            _fail(archive, Reason(ArchiveCode.KEEPS_ENDING, {"node": archive.node_name}))
            return
    archive.save()


def _finish_making(archive: HomeArchive, answer: HomeArchived) -> None:
    archive.size_bytes, archive.home_bytes = answer.size_bytes, answer.home_bytes
    archive.entries, archive.left_out, archive.stream_bytes = (
        answer.entries,
        answer.left_out,
        answer.bytes_done,
    )
    archive.made_at = timezone.now()
    if archive.empties:
        away_homes.begin_emptying(archive)
        return
    close(archive, HomeArchiveState.READY, None, left=False)
    record(archive, archive.owner, AuditKind.USER_HOME_ARCHIVED, f"created {archive_label(archive)}")
    title = _("The archive “%(name)s” of your home folder is ready") % {"name": archive.name}
    notify(archive, "home.archived", title, _("You can restore it on the Archives page of a workspace."))


def _finish_restoring(archive: HomeArchive) -> None:
    close(archive, HomeArchiveState.READY, None)
    _note_restored(archive)
    archive.save()
    home_use.notify_scheduler(archive.owner_id, archive.team_id)


def _note_restored(archive: HomeArchive) -> None:
    archive.restored_at, archive.reason = timezone.now(), {}
    away_homes.record_restored(archive)
    record(archive, archive.owner, AuditKind.USER_HOME_RESTORED, f"restored {archive_label(archive)}")
    title = _("Your home folder is restored from “%(name)s”") % {"name": archive.name}
    notify(archive, "home.restored", title, _("The previous contents were replaced."))


def _refusal(archive: HomeArchive, answer: HomeArchived) -> Reason:
    """Return the reason why the node refused the command."""
    node = {"node": archive.node_name}
    match answer.refused:
        case "disk_full":
            return Reason(ArchiveCode.DISK_FULL, {**node, "free_mib": answer.free >> 20})
        case "archives_full":
            return Reason(ArchiveCode.FULL, {"limit_mib": int(settings.BERTH_HOME_LIMIT_MIB)})
        case "unreadable":
            return Reason(ArchiveCode.UNREADABLE, {"name": strip_nul(answer.about)[:300]})
        case "bad_stream":
            return Reason(ArchiveCode.DAMAGED)
        case "not_found":
            return Reason(ArchiveCode.GONE, node)
    return Reason(ArchiveCode.REPORTED, {"code": answer.refused, "text": answer.refused})


def _record_failure(archive: HomeArchive, answer: HomeArchived) -> None:
    failure = answer.failure
    assert failure is not None
    reason = Reason(ArchiveCode.REPORTED, {"code": failure.code, "text": strip_nul(failure.message)[:1000]})
    archive.failures += 1
    if (not failure.retryable and failure.code != "stale") or archive.failures >= MAX_FAILURES:
        _fail(archive, reason)
        return
    if archive.failures > 1:
        archive.reason = reason.as_json()
        archive.next_at = timezone.now() + timedelta(seconds=min(RETRY_STEP_S * archive.failures, 60))
    archive.save()


def _fail(archive: HomeArchive, reason: Reason) -> None:
    """Mark the job as failed; the home is unchanged."""
    if archive.state == HomeArchiveState.EMPTYING:
        away_homes.leave_home(archive, reason)
        return
    restoring = archive.state == HomeArchiveState.RESTORING
    close(archive, HomeArchiveState.READY if restoring else HomeArchiveState.FAILED, reason)
    verb = "restore" if restoring else "create"
    record(
        archive,
        SYSTEM,
        AuditKind.USER_HOME_ARCHIVE_FAILED,
        f"could not {verb} {archive_label(archive)}",
        reason,
    )
    title = _("Your home folder was not restored") if restoring else _("Your home folder was not archived")
    notify(archive, "home.archive_failed", title, sentence_of(reason))


def _apply_cleanup(archive: HomeArchive, answer: HomeArchived) -> None:
    """Apply the answer to a cleanup command."""
    ready = archive.state == HomeArchiveState.READY and not archive.empties
    if answer.placed and archive.restored_at is None and ready:
        # The restored home was already in place when the restore was cancelled.
        _note_restored(archive)
        home_use.notify_scheduler(archive.owner_id, archive.team_id)
    if answer.failure is not None or answer.refused:
        archive.failures += 1
        wait_s = min(RETRY_STEP_S * 2 ** min(archive.failures, 10), MAX_RETRY_S)
        archive.next_at = timezone.now() + timedelta(seconds=wait_s)
    elif answer.done and answer.do is ArchiveCommand.DELETE and archive.state == HomeArchiveState.DELETING:
        archive.delete()
        archive.open = False
        return
    elif answer.done and answer.do is ArchiveCommand.CLEAR:
        archive.left = archive.open = False
    archive.save()


def _without_node(archive: HomeArchive) -> None:
    """End the job, because the node has left or is no longer trusted."""
    if archive.state == HomeArchiveState.EMPTYING:
        away_homes.end_unchanged(archive, Reason(ArchiveCode.NODE_GONE, {"node": archive.node_name}))
    elif archive.active:
        _fail(archive, Reason(ArchiveCode.NODE_GONE, {"node": archive.node_name}))
    elif archive.state == HomeArchiveState.DELETING:
        archive.delete()
    else:
        archive.left = archive.open = False
        archive.save()
