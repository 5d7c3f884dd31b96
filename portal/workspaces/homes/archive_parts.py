"""Operations shared by the modules that handle home archives."""

from __future__ import annotations

import uuid
from functools import partial
from typing import Any
from uuid import UUID

from django.db import transaction
from django.utils import timezone

from portal.common.actors import SystemActor
from portal.common.errors import StateConflict
from portal.common.events import services as events
from portal.common.events.kinds import AuditKind
from portal.common.events.models import TargetKind
from portal.common.events.services import Target
from portal.common.reasons.reason import Reason
from portal.fleet.inventory import node_commands
from portal.fleet.inventory.models import Node, Pool
from portal.people.accounts.models import User
from portal.workspaces.homes import use as home_use
from portal.workspaces.homes.codes import ArchiveCode
from portal.workspaces.models import HomeArchive, HomeArchiveState, HomeMove, Workspace
from provisioning.types import home_key


def begin_restore(archive: HomeArchive, actor: User | SystemActor) -> None:
    """Start restoring the home from a locked archive that is ready."""
    archive.state, archive.open, archive.job = HomeArchiveState.RESTORING, True, uuid.uuid4().hex
    archive.bytes_done = archive.failures = archive.restarts = 0
    archive.restored_at, archive.empties = None, False
    archive.reason, archive.next_at = {}, timezone.now()
    archive.save()
    record(
        archive,
        actor,
        AuditKind.USER_HOME_RESTORE_REQUESTED,
        f"requested to restore {archive_label(archive)}",
    )
    home_use.notify_scheduler(archive.owner_id, archive.team_id)
    process_on_commit()


def begin_delete(archive: HomeArchive) -> None:
    """Start deleting a locked archive. Raises `StateConflict` while a job holds the home."""
    archives_of_home = HomeArchive.objects.filter(
        owner=archive.owner_id, team=archive.team_id, pool=archive.pool_id
    )
    if archives_of_home.filter(open=True).exists():
        raise conflict(ArchiveCode.BEING_WORKED_ON)
    archive.state, archive.open, archive.job = HomeArchiveState.DELETING, True, uuid.uuid4().hex
    archive.reason, archive.failures, archive.next_at = {}, 0, timezone.now()
    archive.save()
    process_on_commit()


def close(archive: HomeArchive, state: HomeArchiveState, reason: Reason | None, *, left: bool = True) -> None:
    """End the job and release the home. With `left` the node removes partial or replaced copies."""
    now = timezone.now()
    archive.state, archive.left, archive.open = state, left, left
    archive.reason = reason.as_json() if reason is not None else {}
    archive.next_at, archive.failures, archive.restarts, archive.bytes_done = now, 0, 0, 0
    archive.lease, archive.lease_expires_at = "", None
    archive.save()
    home_use.notify_scheduler(archive.owner_id, archive.team_id)
    if left:
        process_on_commit()


def require_free(owner_id: UUID, team_id: UUID, pool: Pool, node: Node, *, restores: bool) -> None:
    """Raise `StateConflict` if the home on the node cannot be archived or restored now."""
    if node.retired or not home_use.is_node_trusted(pool, node.name):
        raise conflict(ArchiveCode.NODE_GONE, node=node.name)
    home_filter = {"owner": owner_id, "team": team_id, "pool": pool}
    # Also checks jobs for the user's home in other pools.
    home_use.require_not_in_transfer(owner_id, team_id)
    if not restores:
        home_use.require_not_archived(owner_id, team_id, pool, node.name)
    if HomeArchive.objects.filter(**home_filter, open=True).exists():
        raise conflict(ArchiveCode.BEING_WORKED_ON)
    if HomeMove.objects.filter(**home_filter, open=True).exists():
        raise conflict(ArchiveCode.BEING_WORKED_ON)
    if home_use.is_home_in_use(owner_id, team_id, node.pk):
        raise conflict(ArchiveCode.IN_USE)


def conflict(code: ArchiveCode, **params: Any) -> StateConflict:
    return StateConflict(Reason(code, params), code=code)


def lock_archive(archive_id: UUID) -> HomeArchive | None:
    rows = HomeArchive.objects.select_for_update(of=("self",))
    return rows.select_related("owner", "team", "pool", "node").filter(pk=archive_id).first()


def process_on_commit() -> None:
    transaction.on_commit(partial(node_commands.send, "control.archive_homes", "control"))


def home_of(archive: HomeArchive) -> str:
    return home_key(archive.team.slug, archive.owner.username)


def archive_label(archive: HomeArchive) -> str:
    return f"the archive “{archive.name}” of the home folder {home_of(archive)} on {archive.node_name}"


def notify(archive: HomeArchive, kind: str, title: str, text: str, *, url: str = "") -> None:
    """Notify the owner. The default link is the page of the home's archives."""
    if not url:
        used = Workspace.objects.live().filter(owner=archive.owner, team=archive.team)
        newest = used.order_by("-created_at").values_list("pk", flat=True).first()
        url = f"/workspaces/{newest}/files/archives/" if newest is not None else "/homes/"
    events.notify([archive.owner], kind, title, text, url)


def record(
    archive: HomeArchive,
    actor: User | SystemActor,
    kind: AuditKind,
    message: str,
    cause: Reason | None = None,
) -> None:
    events.record(
        actor=actor,
        kind=kind,
        message=message,
        cause=cause.as_json() if cause is not None else None,
        team=archive.team,
        pool=archive.pool,
        targets=[Target(TargetKind.USER, str(archive.owner_id))],
        data={"owner": archive.owner.username, "home": home_of(archive), "node": archive.node_name},
    )
