"""Homes whose only copy is an archive: the home is archived and emptied, and can later be restored.

An archive that `empties` is created like any other. When it has been verified, the node replaces the home by
an empty one in a single rename, but only if nothing in the home is newer than the archive. The home is locked
until the node reports which of the two homes is in place. From then on (`away_at`) the archive is the only
copy: no workspace starts before the home is restored, and only `delete_only_copy` deletes the archive.
"""

from __future__ import annotations

import uuid
from datetime import timedelta
from uuid import UUID

from django.db import transaction
from django.db.models import Exists, OuterRef, Q, QuerySet
from django.utils import timezone
from django.utils.translation import gettext as _

from portal.common.actors import SYSTEM
from portal.common.errors import NotAllowed, NotFound, PortalError, StateConflict
from portal.common.events.kinds import AuditKind
from portal.common.reasons.reason import Reason
from portal.common.texts import strip_nul
from portal.fleet.inventory.models import PlacementLock
from portal.fleet.machines import selectors as machines
from portal.fleet.machines.codes import MachineCode
from portal.people.accounts.models import User
from portal.people.accounts.policies import require_administrator
from portal.workspaces.codes import WorkspaceCode
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
from portal.workspaces.homes.moves import may_move
from portal.workspaces.lifecycle import State
from portal.workspaces.models import HomeArchive, HomeArchiveState, HomePlace, Workspace
from provisioning.home_messages import ArchiveCommand, HomeArchived
from provisioning.version import VERSION, is_compatible

RETRY_STEP_S = 10
MAX_RETRY_S = 60
MAX_FAILURES = 20
"""Failed commands to empty the home before the job ends with the home unchanged."""
RETRY_AFTER = timedelta(hours=1)
"""Delay before a failed restore is retried for a waiting workspace."""
MAX_REASON = 200
AT_ONCE = 50


def archive_holding_home(place: HomePlace) -> HomeArchive | None:
    """Return the archive that empties the home or holds its only copy, or `None` for an ordinary home."""
    rows = HomeArchive.objects.filter(owner=place.owner_id, team=place.team_id, node=place.node_id)
    rows = rows.select_related("owner", "team", "pool", "node")
    return rows.filter(Q(away_at__isnull=False) | Q(empties=True, open=True)).first()


def archives_with_only_copy() -> QuerySet[HomeArchive]:
    """Return all archives that are the only copy of a home."""
    places = HomePlace.objects.filter(owner=OuterRef("owner"), team=OuterRef("team"), node=OuterRef("node"))
    rows = HomeArchive.objects.filter(Exists(places), away_at__isnull=False)
    return rows.select_related("owner", "team", "pool", "node")


def begin(*, place_id: int) -> HomeArchive:
    """Request an archive that empties the home afterwards, in the caller's transaction.

    Raises `NotFound`, and `StateConflict` while the home is in use or a job holds it.
    """
    # Placements see the archive from here on.
    PlacementLock.hold()
    place = _place(place_id)
    if not home_places.has_separate_homes(place.pool):
        raise conflict(ArchiveCode.NOT_HERE)
    require_free(place.owner_id, place.team_id, place.pool, place.node, restores=False)
    machine = machines.machine_of_node(place.pool, place.node.name)
    if machine is not None and not is_compatible(machine.version):
        # A node of an older version does not support the last step.
        versions = {"theirs": machine.version or "?", "ours": VERSION}
        raise StateConflict(Reason(MachineCode.VERSION_DIFFERS, versions))
    now = timezone.now()
    archive = HomeArchive.objects.create(
        owner=place.owner, team=place.team, pool=place.pool, node=place.node, node_name=place.node.name,
        name=timezone.localtime().strftime("%Y-%m-%d %H:%M"), asked_at=now, next_at=now, job=uuid.uuid4().hex,
        empties=True,
    )  # fmt: skip
    home_use.notify_scheduler(archive.owner_id, archive.team_id)
    process_on_commit()
    return archive


@transaction.atomic
def restore(*, actor: User, place_id: int) -> HomeArchive:
    """Restore a home that is archived away. A repeated request returns the same archive.

    For the owner and operators. Raises `NotFound` (also if the actor may not see the home), `NotAllowed`, and
    `StateConflict` if the home is not archived away or its node is gone.
    """
    place = _place(place_id)
    if not (actor.sees_all or may_move(actor, place.owner_id)):
        raise NotFound(Reason(WorkspaceCode.NO_SUCH_HOME))
    if not may_move(actor, place.owner_id):
        raise NotAllowed(Reason(WorkspaceCode.ONLY_ITS_OPERATORS, {"owner": place.owner.username}))
    candidate = archive_holding_home(place)
    archive = lock_archive(candidate.pk) if candidate is not None else None
    if archive is None or archive.away_at is None:
        raise conflict(ArchiveCode.NOT_READY)
    if archive.state == HomeArchiveState.RESTORING:
        return archive
    if archive.state != HomeArchiveState.READY:
        raise conflict(ArchiveCode.NOT_READY)
    require_free(place.owner_id, place.team_id, place.pool, place.node, restores=True)
    begin_restore(archive, actor)
    return archive


@transaction.atomic
def delete_only_copy(*, actor: User, place_id: int, reason: str) -> None:
    """Permanently delete an archive that is the only copy of a home; `reason` goes to the audit log.

    For administrators. Raises `NotAllowed`, `NotFound`, and `StateConflict` while a job holds the home.
    """
    require_administrator(actor)
    place = _place(place_id)
    candidate = archive_holding_home(place)
    archive = lock_archive(candidate.pk) if candidate is not None else None
    if archive is None or archive.away_at is None:
        raise conflict(ArchiveCode.NOT_READY)
    begin_delete(archive)
    reason_text = strip_nul(reason).strip()[:MAX_REASON]
    record(
        archive,
        actor,
        AuditKind.USER_HOME_AWAY_DELETED,
        f"permanently deleted {archive_label(archive)}: {reason_text}",
    )
    title = _("Your archived home folder in %(team)s was deleted") % {"team": archive.team.name}
    text = _("It was unused for a long time. New workspaces start with an empty home folder. %(why)s")
    notify(archive, "home.away_deleted", title, text % {"why": reason_text}, url="/homes/")


def keep_home(*, place_id: int) -> None:
    """Record that the owner needs the home, and cancel a job that empties it, in the caller's transaction."""
    place = _place(place_id)
    HomePlace.objects.filter(pk=place.pk).update(used_at=timezone.now())
    candidate = archive_holding_home(place)
    archive = lock_archive(candidate.pk) if candidate is not None else None
    if archive is not None and archive.empties and archive.active:
        cancel_job(archive)


def cancel_job(archive: HomeArchive) -> None:
    """Cancel the job of a locked archive. The home stays as it was, unless it was already replaced."""
    if archive.state == HomeArchiveState.RESTORING:
        away = Reason(ArchiveCode.RESTORE_CANCELLED) if archive.away_at is not None else None
        close(archive, HomeArchiveState.READY, away)
    elif archive.state == HomeArchiveState.EMPTYING:
        leave_home(archive, None)
    else:
        close(archive, HomeArchiveState.DELETING, None)


# --- reconciliation --------------------------------------------------------------------------------------


def begin_emptying(archive: HomeArchive) -> None:
    """Start emptying the home after its archive was verified, as a new job for the node."""
    archive.state, archive.job, archive.left = HomeArchiveState.EMPTYING, uuid.uuid4().hex, False
    archive.bytes_done = archive.failures = archive.restarts = 0
    archive.next_at = timezone.now()
    archive.save()


def leave_home(archive: HomeArchive, reason: Reason | None) -> None:
    """Ask the node to leave a home that it has not emptied yet. Locks the home until the node answers."""
    if not archive.left:
        archive.left, archive.failures = True, 0
    archive.reason = reason.as_json() if reason is not None else archive.reason
    archive.next_at = timezone.now()
    archive.save()
    process_on_commit()


def apply_emptying_answer(archive: HomeArchive, answer: HomeArchived) -> None:
    """Apply the answer to a command that empties a home or leaves it unchanged."""
    if answer.placed:
        _record_emptied(archive)
    elif answer.refused and answer.do is ArchiveCommand.EMPTY:
        code = ArchiveCode.GONE if answer.refused == "not_found" else ArchiveCode.CHANGED
        params = {"node": archive.node_name, "name": strip_nul(answer.about)[:300]}
        leave_home(archive, Reason(code, params))
    elif answer.failure is not None or answer.refused:
        archive.failures += 1
        failure = answer.failure
        final = failure is not None and not failure.retryable and failure.code != "stale"
        if answer.do is ArchiveCommand.EMPTY and (final or archive.failures >= MAX_FAILURES):
            text = strip_nul(failure.message)[:1000] if failure is not None else answer.refused
            leave_home(archive, Reason(ArchiveCode.REPORTED, {"code": "not_emptied", "text": text}))
            return
        archive.next_at = timezone.now() + timedelta(
            seconds=min(RETRY_STEP_S * archive.failures, MAX_RETRY_S)
        )
        archive.save()
    elif answer.done and answer.do is ArchiveCommand.LEAVE:
        end_unchanged(archive, Reason.from_json(archive.reason) if archive.reason else None)
    else:
        archive.save()


def _record_emptied(archive: HomeArchive) -> None:
    """Record that the archive is now the only copy of the home."""
    archive.away_at = timezone.now()
    close(archive, HomeArchiveState.READY, None)
    record(
        archive, SYSTEM, AuditKind.USER_HOME_PUT_AWAY, f"moved the home folder to {archive_label(archive)}"
    )
    title = _("Your home folder in %(team)s was archived") % {"team": archive.team.name}
    text = _("It was unused for a long time. To restore it, start a workspace there or open Home folders.")
    notify(archive, "home.put_away", title, text, url="/homes/")


def end_unchanged(archive: HomeArchive, reason: Reason | None) -> None:
    """End the job with the home unchanged. The archive becomes an ordinary one."""
    archive.empties = False
    close(archive, HomeArchiveState.READY, None, left=False)
    if reason is not None and reason.code == ArchiveCode.GONE:
        archive.state, archive.reason = HomeArchiveState.FAILED, reason.as_json()
        archive.save()
    record(
        archive,
        SYSTEM,
        AuditKind.USER_HOME_NOT_EMPTIED,
        f"kept the home folder unchanged after {archive_label(archive)}",
        reason,
    )


def record_restored(archive: HomeArchive) -> None:
    """Record that the home was restored from this archive. The caller saves the archive."""
    now = timezone.now()
    archive.away_at = None
    same = {"owner": archive.owner_id, "team": archive.team_id, "node": archive.node_id}
    HomeArchive.objects.filter(**same, away_at__isnull=False).update(away_at=None, empties=False)
    HomePlace.objects.filter(**same).update(used_at=now)


def restore_awaited_homes() -> int:
    """Restore homes that pending workspaces wait for, and return how many restores were started."""
    now = timezone.now()
    waits = Workspace.objects.filter(
        Q(flavor__pool=OuterRef("pool")) | Q(flavor__pool=None),
        owner=OuterRef("owner"),
        team=OuterRef("team"),
        state=State.PENDING,
    )
    tried = Q(reason={}) | Q(next_at__lte=now - RETRY_AFTER) | Q(next_at__gt=now + RETRY_AFTER)
    needed = archives_with_only_copy().filter(Exists(waits), tried, state=HomeArchiveState.READY, open=False)
    return sum(_restore_needed(pk) for pk in needed.values_list("pk", flat=True)[:AT_ONCE])


def _restore_needed(archive_id: UUID) -> bool:
    try:
        with transaction.atomic():
            archive = lock_archive(archive_id)
            if archive is None or archive.away_at is None or archive.state != HomeArchiveState.READY:
                return False
            if archive.open or archive.node is None:
                return False
            require_free(archive.owner_id, archive.team_id, archive.pool, archive.node, restores=True)
            # The owner requested the restore when they started a workspace.
            begin_restore(archive, archive.owner)
            return True
    except PortalError:
        return False


def _place(place_id: int) -> HomePlace:
    """Return the place, locked against new moves and archives. Raises `NotFound`."""
    rows = HomePlace.objects.select_for_update(of=("self",))
    place = rows.select_related("owner", "team", "pool", "node").filter(pk=place_id).first()
    if place is None:
        raise NotFound(Reason(WorkspaceCode.NO_SUCH_HOME))
    return place
