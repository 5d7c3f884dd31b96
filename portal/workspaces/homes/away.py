"""Homes that are put away: archived and then emptied, until they are restored or deleted for good.

An archive that `empties` is made as any other. When it has been read back whole, its node is asked to put an
empty home in the place of the one that was archived, in one rename, and only if nothing in it is newer than
the archive. Until the node has said which of the two is in its place the home is held; from then on
(`away_at`) the archive is the home: nothing starts before it is restored, and only `delete_away` deletes it.
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
    begin_delete,
    begin_restore,
    conflict,
    end,
    locked,
    named,
    notify,
    record,
    require_free,
    soon,
)
from portal.workspaces.homes.codes import ArchiveCode
from portal.workspaces.homes.moves import may_move
from portal.workspaces.lifecycle import State
from portal.workspaces.models import HomeArchive, HomeArchiveState, HomePlace, Workspace
from provisioning.home_messages import ArchiveDo, HomeArchived
from provisioning.version import VERSION, agrees

AGAIN_S = 10
MOST_AGAIN_S = 60
MOST_FAILURES = 20
"""So many commands to empty it without success, and it is left as it is."""
TRIED_AGAIN = timedelta(hours=1)
"""So long after a restore that failed it is begun anew for what waits for it."""
MAX_REASON = 200
AT_ONCE = 50


def held(place: HomePlace) -> HomeArchive | None:
    """What puts the home away just now, or the archive that it is in; None where it lies there as ever."""
    found = HomeArchive.objects.filter(owner=place.owner_id, team=place.team_id, node=place.node_id)
    found = found.select_related("owner", "team", "pool", "node")
    return found.filter(Q(away_at__isnull=False) | Q(empties=True, open=True)).first()


def put_away() -> QuerySet[HomeArchive]:
    """All archives that are all that there is of a home that lies there now."""
    here = HomePlace.objects.filter(owner=OuterRef("owner"), team=OuterRef("team"), node=OuterRef("node"))
    found = HomeArchive.objects.filter(Exists(here), away_at__isnull=False)
    return found.select_related("owner", "team", "pool", "node")


def begin(*, place_id: int) -> HomeArchive:
    """Have the home archived, and emptied after that; in the caller's transaction.

    Raises `NotFound`, and `StateConflict` while anything uses it or goes on with it.
    """
    # Nothing is placed from here on that does not know of it.
    PlacementLock.hold()
    place = _place(place_id)
    if not home_places.are_apart(place.pool):
        raise conflict(ArchiveCode.NOT_HERE)
    require_free(place.owner_id, place.team_id, place.pool, place.node, restores=False)
    machine = machines.by_name(place.pool, place.node.name)
    if machine is not None and not agrees(machine.version):
        # One of an older version would not understand the last step.
        versions = {"theirs": machine.version or "?", "ours": VERSION}
        raise StateConflict(Reason(MachineCode.VERSION_DIFFERS, versions))
    now = timezone.now()
    archive = HomeArchive.objects.create(
        owner=place.owner, team=place.team, pool=place.pool, node=place.node, node_name=place.node.name,
        name=timezone.localtime().strftime("%Y-%m-%d %H:%M"), asked_at=now, next_at=now, job=uuid.uuid4().hex,
        empties=True,
    )  # fmt: skip
    home_use.tell_scheduler(archive.owner_id, archive.team_id)
    soon()
    return archive


@transaction.atomic
def restore(*, actor: User, place_id: int) -> HomeArchive:
    """Have a home restored that was put away. Asked for again meanwhile, it is the same.

    For its user and operators. Raises `NotFound`, which is also said to who may not see it, `NotAllowed`, and
    `StateConflict` where it is not put away, or its machine is gone.
    """
    place = _place(place_id)
    if not (actor.sees_all or may_move(actor, place.owner_id)):
        raise NotFound(Reason(WorkspaceCode.NO_SUCH_HOME))
    if not may_move(actor, place.owner_id):
        raise NotAllowed(Reason(WorkspaceCode.ONLY_ITS_OPERATORS, {"owner": place.owner.username}))
    found = held(place)
    archive = locked(found.pk) if found is not None else None
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
def delete_away(*, actor: User, place_id: int, reason: str) -> None:
    """Delete for good the archive that is all that there is of a home. For administrators; `reason` is kept.

    Raises `NotAllowed`, `NotFound`, and `StateConflict` while something is under way with the home.
    """
    require_administrator(actor)
    place = _place(place_id)
    found = held(place)
    archive = locked(found.pk) if found is not None else None
    if archive is None or archive.away_at is None:
        raise conflict(ArchiveCode.NOT_READY)
    begin_delete(archive)
    why = strip_nul(reason).strip()[:MAX_REASON]
    record(archive, actor, AuditKind.USER_HOME_AWAY_DELETED, f"deletes for good {named(archive)}: {why}")
    title = _("Your archived home folder in %(team)s was deleted") % {"team": archive.team.name}
    text = _("It was not used for long. What you start there begins with an empty one. %(why)s")
    notify(archive, "home.away_deleted", title, text % {"why": why}, url="/homes/")


def keep(*, place_id: int) -> None:
    """Its user needs the home: what puts it away just now is given up; in the caller's transaction."""
    place = _place(place_id)
    HomePlace.objects.filter(pk=place.pk).update(used_at=timezone.now())
    found = held(place)
    archive = locked(found.pk) if found is not None else None
    if archive is not None and archive.empties and archive.active:
        give_up(archive)


def give_up(archive: HomeArchive) -> None:
    """End what is under way with a locked archive: the home is as it was, if it was not replaced before."""
    if archive.state == HomeArchiveState.RESTORING:
        away = Reason(ArchiveCode.RESTORE_CANCELLED) if archive.away_at is not None else None
        end(archive, HomeArchiveState.READY, away)
    elif archive.state == HomeArchiveState.EMPTYING:
        leave(archive, None)
    else:
        end(archive, HomeArchiveState.DELETING, None)


# --- the steps -----------------------------------------------------------------------------------------


def begin_emptying(archive: HomeArchive) -> None:
    """It has been read back whole: the home may go. A new job, so that the node knows it from what was."""
    archive.state, archive.job, archive.left = HomeArchiveState.EMPTYING, uuid.uuid4().hex, False
    archive.bytes_done = archive.failures = archive.restarts = 0
    archive.next_at = timezone.now()
    archive.save()


def leave(archive: HomeArchive, reason: Reason | None) -> None:
    """Have the home left as it is, if it is not empty yet: the node says which. It is held until then."""
    if not archive.left:
        archive.left, archive.failures = True, 0
    archive.reason = reason.as_json() if reason is not None else archive.reason
    archive.next_at = timezone.now()
    archive.save()
    soon()


def answered(archive: HomeArchive, answer: HomeArchived) -> None:
    """What a node has said of a home that is being emptied, or left as it is."""
    if answer.placed:
        _emptied(archive)
    elif answer.refused and answer.do is ArchiveDo.EMPTY:
        code = ArchiveCode.GONE if answer.refused == "not_found" else ArchiveCode.CHANGED
        params = {"node": archive.node_name, "name": strip_nul(answer.about)[:300]}
        leave(archive, Reason(code, params))
    elif answer.failure is not None or answer.refused:
        archive.failures += 1
        failure = answer.failure
        final = failure is not None and not failure.retryable and failure.code != "stale"
        if answer.do is ArchiveDo.EMPTY and (final or archive.failures >= MOST_FAILURES):
            text = strip_nul(failure.message)[:1000] if failure is not None else answer.refused
            leave(archive, Reason(ArchiveCode.REPORTED, {"code": "not_emptied", "text": text}))
            return
        archive.next_at = timezone.now() + timedelta(seconds=min(AGAIN_S * archive.failures, MOST_AGAIN_S))
        archive.save()
    elif answer.done and answer.do is ArchiveDo.LEAVE:
        stayed(archive, Reason.from_json(archive.reason) if archive.reason else None)
    else:
        archive.save()


def _emptied(archive: HomeArchive) -> None:
    """The archive is all that there is of the home from now on; what was in it is being deleted."""
    archive.away_at = timezone.now()
    end(archive, HomeArchiveState.READY, None)
    record(archive, SYSTEM, AuditKind.USER_HOME_PUT_AWAY, f"put the home away in {named(archive)}")
    title = _("Your home folder in %(team)s was archived") % {"team": archive.team.name}
    text = _("It was not used for long. It is restored when you start a workspace there, or by one click.")
    notify(archive, "home.put_away", title, text, url="/homes/")


def stayed(archive: HomeArchive, reason: Reason | None) -> None:
    """The home lies there as it was. What was made of it is an archive as any other."""
    archive.empties = False
    end(archive, HomeArchiveState.READY, None, left=False)
    if reason is not None and reason.code == ArchiveCode.GONE:
        archive.state, archive.reason = HomeArchiveState.FAILED, reason.as_json()
        archive.save()
    record(
        archive,
        SYSTEM,
        AuditKind.USER_HOME_NOT_EMPTIED,
        f"left the home as it was after {named(archive)}",
        reason,
    )


def is_back(archive: HomeArchive) -> None:
    """The home was restored from this archive: it is in none alone any more. The caller saves this one."""
    now = timezone.now()
    archive.away_at = None
    same = {"owner": archive.owner_id, "team": archive.team_id, "node": archive.node_id}
    HomeArchive.objects.filter(**same, away_at__isnull=False).update(away_at=None, empties=False)
    HomePlace.objects.filter(**same).update(used_at=now)


def restore_wanted() -> int:
    """Have homes restored of users whose workspaces wait for them; how many were begun."""
    now = timezone.now()
    waits = Workspace.objects.filter(
        Q(flavor__pool=OuterRef("pool")) | Q(flavor__pool=None),
        owner=OuterRef("owner"),
        team=OuterRef("team"),
        state=State.PENDING,
    )
    tried = Q(reason={}) | Q(next_at__lte=now - TRIED_AGAIN) | Q(next_at__gt=now + TRIED_AGAIN)
    wanted = put_away().filter(Exists(waits), tried, state=HomeArchiveState.READY, open=False)
    return sum(_restore_wanted(pk) for pk in wanted.values_list("pk", flat=True)[:AT_ONCE])


def _restore_wanted(archive_id: UUID) -> bool:
    try:
        with transaction.atomic():
            archive = locked(archive_id)
            if archive is None or archive.away_at is None or archive.state != HomeArchiveState.READY:
                return False
            if archive.open or archive.node is None:
                return False
            require_free(archive.owner_id, archive.team_id, archive.pool, archive.node, restores=True)
            # Its user has asked for it with the start that waits.
            begin_restore(archive, archive.owner)
            return True
    except PortalError:
        return False


def _place(place_id: int) -> HomePlace:
    """Locked, so that neither a move nor another archive begins. Raises `NotFound`."""
    rows = HomePlace.objects.select_for_update(of=("self",))
    place = rows.select_related("owner", "team", "pool", "node").filter(pk=place_id).first()
    if place is None:
        raise NotFound(Reason(WorkspaceCode.NO_SUCH_HOME))
    return place
