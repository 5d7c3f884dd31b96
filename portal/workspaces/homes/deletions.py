"""Deletes the home folders of deleted teams and, if requested, of deleted accounts.

A home belongs to a user in a team and exists on every node that ran one of the user's workspaces in the team.
A `HomeDeletion` exists until its node confirms the deletion. Commands are sent under leases and repeated with
backoff, at least once an hour. Nothing is sent while a deleted user still has workspaces, or a home's owner
still has workspaces in the deleted team.
"""

from __future__ import annotations

import logging
import uuid
from datetime import datetime, timedelta
from functools import partial
from typing import Any
from uuid import UUID

from django.conf import settings
from django.db import transaction
from django.db.models import Exists, F, OuterRef, Q, QuerySet
from django.urls import reverse
from django.utils import timezone
from django.utils.translation import gettext as _

from portal.common.actors import SYSTEM
from portal.common.domain_events import emit
from portal.common.events import services as events
from portal.common.events.kinds import AuditKind
from portal.common.events.models import TargetKind
from portal.common.events.services import Target
from portal.common.reasons.reason import Reason
from portal.common.reasons.wording import message_of
from portal.common.texts import strip_nul
from portal.fleet.inventory import node_commands
from portal.fleet.inventory.models import Node
from portal.people.accounts.domain_events import TeamDeleted, TeamDeletionStarted, UserDeleted
from portal.people.accounts.models import AccountState, Team, User
from portal.workspaces.codes import WorkspaceCode
from portal.workspaces.domain_events import HomesChanged
from portal.workspaces.homes import archives as home_archives
from portal.workspaces.homes import moves as home_moves
from portal.workspaces.models import HomeArchive, HomeDeletion, HomePlace, HomeUsage, LostHome, Workspace
from provisioning import messages
from provisioning.types import Failure, HomeDeleted, home_key
from provisioning.types import HomeDeletion as Order

log = logging.getLogger(__name__)
MAX_BACKOFF_S = 3600
NOTIFY_AFTER = 8
"""Failed commands, over about 2 hours, before administrators are notified."""
BATCH = 50


def account_deleted(event: UserDeleted) -> None:
    """Record homes that are kept, or request their deletion, in the transaction that deletes the account."""
    home_moves.cancel_all(owner=event.user)
    home_archives.cancel_all(owner=event.user)
    homes = _homes_of(event.user)
    if not homes:
        return
    names = [f"{home_key(row['team__slug'], event.user.username)} on {row['node']}" for row in homes]
    data = {"owner": event.user.username, "homes": names}
    if not event.delete_homes:
        kind, message = AuditKind.USER_HOMES_KEPT, f"kept the home folders of {event.user.username}"
    else:
        kind = AuditKind.USER_HOMES_DELETE_REQUESTED
        message = f"requested the deletion of the home folders of {event.user.username}"
        now = timezone.now()
        HomeDeletion.objects.bulk_create(
            HomeDeletion(
                owner=event.user, team_id=row["team_id"], node_id=row["node_id"], asked_at=now, next_at=now
            )
            for row in homes
        )
        _send_due_on_commit()
    events.record(
        actor=event.actor,
        kind=kind,
        message=f"{message}: {', '.join(names)}"[:1000],
        targets=_about(event.user),
        data=data,
    )


def _homes_of(user: User) -> list[dict[str, Any]]:
    """Return the user's homes on nodes where workspaces ran or to which the homes were moved."""
    homes = list(Workspace.objects.filter(owner=user).homes())
    keys = {(row["team_id"], row["node_id"]) for row in homes}
    places = HomePlace.objects.filter(owner=user).values(
        "team_id", "node_id", "team__slug", node_name=F("node__name")
    )
    for row in places:
        if (row["team_id"], row["node_id"]) not in keys:
            homes.append({**row, "node": row["node_name"]})
    return homes


def homes_of_team(team: Team) -> set[tuple[UUID, UUID]]:
    """Return the owner and node of each home and archive in the team; empty for a deleted team.

    Omits removed nodes.
    """
    if team.deleted_at is not None:
        return set()
    used = Workspace.objects.filter(team=team, allocations__isnull=False)
    placed = used.order_by().values_list("owner_id", "allocations__node_id").distinct()
    homes: set[tuple[UUID, UUID]] = set(placed)
    homes |= set(HomePlace.objects.filter(team=team).values_list("owner_id", "node_id"))
    archived = HomeArchive.objects.filter(team=team, node__isnull=False)
    homes |= {(owner, node) for owner, node in archived.values_list("owner_id", "node_id") if node}
    removed = Node.objects.filter(pk__in={node for _owner, node in homes}, retired=True)
    deleted_nodes = set(removed.values_list("pk", flat=True))
    return {(owner, node) for owner, node in homes if node not in deleted_nodes}


def team_deletion_started(event: TeamDeletionStarted) -> None:
    """Request the deletion of the team's homes, in the transaction that starts its deletion."""
    team = event.team
    home_moves.cancel_all(team=team)
    home_archives.cancel_all(team=team)
    now = timezone.now()
    HomeDeletion.objects.bulk_create(
        [
            HomeDeletion(owner_id=owner, team=team, node_id=node, asked_at=now, next_at=now)
            for owner, node in sorted(homes_of_team(team), key=str)
        ],
        ignore_conflicts=True,
    )
    places = HomePlace.objects.filter(team=team)
    emit(HomesChanged(tuple(places.values_list("node_id", flat=True).distinct())))
    places.delete()
    LostHome.objects.filter(team=team).delete()
    _send_due_on_commit()


def team_deleted(event: TeamDeleted) -> None:
    """Delete the records about homes of a deleted team."""
    for model in (HomePlace, LostHome, HomeUsage, HomeArchive, HomeDeletion):
        model._default_manager.filter(team=event.team).delete()


def waiting(**of: Any) -> QuerySet[HomeDeletion]:
    """Return the pending deletions, except those on removed nodes, which cannot answer."""
    return HomeDeletion.objects.filter(**of, node__retired=False)


def due_deletions(now: datetime) -> QuerySet[HomeDeletion]:
    """Return the deletions with a command due, except for homes that workspaces may still use."""
    free = Q(lease="") | Q(lease_expires_at__isnull=True) | Q(lease_expires_at__lte=now)
    live = Workspace.objects.live().filter(owner=OuterRef("owner"))
    of_account = Q(owner__deleted_at__isnull=False) & ~Exists(live)
    of_team = Q(team__deletion_started_at__isnull=False) & ~Exists(live.filter(team=OuterRef("team")))
    return HomeDeletion.objects.filter(free, of_account | of_team, next_at__lte=now).order_by("next_at", "pk")


def sweep() -> int:
    """Send a command for each due deletion, and return their number."""
    now = timezone.now()
    # Usually nothing is due, so first check that with a cheaper query.
    if not HomeDeletion.objects.filter(next_at__lte=now).exists():
        return 0
    rows = list(due_deletions(now).values_list("pk", flat=True)[:BATCH])
    for pk in rows:
        _send(pk)
    return len(rows)


@transaction.atomic
def _send(pk: int) -> None:
    """Take the lease if the deletion is still due, and send one command after the transaction commits."""
    now = timezone.now()
    row = (
        due_deletions(now)
        .filter(pk=pk)
        .select_for_update(of=("self",))
        .select_related("node__pool", "team", "owner")
    )
    deletion = row.first()
    if deletion is None:
        return
    deletion.lease = uuid.uuid4().hex
    deletion.lease_expires_at = now + timedelta(seconds=settings.NODE_LEASE_S)
    deletion.attempts += 1
    deletion.next_at = max(deletion.lease_expires_at, now + backoff(deletion.attempts))
    deletion.save(update_fields=["lease", "lease_expires_at", "attempts", "next_at"])
    order = Order(
        deletion=str(deletion.pk),
        lease=deletion.lease,
        pool=node_commands.config_of(deletion.node.pool),
        team=deletion.team.slug,
        owner=deletion.owner.username,
        expires_at=deletion.lease_expires_at.timestamp(),
    )
    queue = node_commands.queue_of(deletion.node.pool, deletion.node.name)
    transaction.on_commit(partial(node_commands.send, "node.delete_home", queue, order=messages.dump(order)))
    if deletion.attempts > NOTIFY_AFTER and not deletion.problem:
        _report_failure(deletion, Reason(WorkspaceCode.NODE_SILENT))


def backoff(attempts: int) -> timedelta:
    """Return the delay after this number of attempts: 40 s, 80 s, … up to 1 hour."""
    return timedelta(seconds=min(20 * 2 ** min(attempts, 10), MAX_BACKOFF_S))


@transaction.atomic
def apply(answer: HomeDeleted) -> bool:
    """Apply a node's answer. Returns `False` if it is stale and was dropped."""
    if not answer.lease or not answer.deletion.isdecimal():
        return False
    deletion = (
        HomeDeletion.objects.filter(pk=int(answer.deletion), lease=answer.lease)
        .select_for_update(of=("self",))
        .select_related("node__pool", "team", "owner")
        .first()
    )
    if deletion is None:
        return False
    deletion.lease, deletion.lease_expires_at = "", None
    if answer.failure is not None:
        deletion.save(update_fields=["lease", "lease_expires_at"])
        _apply_failure(deletion, answer.failure)
    elif answer.done:
        _finish(deletion)
    else:
        # The node deleted a part of the home: continue at once.
        deletion.attempts, deletion.next_at = 0, timezone.now()
        deletion.save(update_fields=["lease", "lease_expires_at", "attempts", "next_at"])
        _send_due_on_commit()
    return True


def _finish(deletion: HomeDeletion) -> None:
    events.record(
        actor=SYSTEM,
        kind=AuditKind.USER_HOME_DELETED,
        message=f"deleted the home folder {_name(deletion)}",
        team=deletion.team,
        pool=deletion.node.pool,
        targets=_about(deletion.owner),
        data=_data(deletion),
    )
    home_archives.home_deleted(owner_id=deletion.owner_id, team_id=deletion.team_id, node_id=deletion.node_id)
    deletion.delete()
    if deletion.team.deletion_started_at is not None:
        _send_due_on_commit()


def _apply_failure(deletion: HomeDeletion, failure: Failure) -> None:
    reason = Reason(WorkspaceCode.REPORTED, {"code": failure.code, "text": strip_nul(failure.message)})
    if not failure.retryable and failure.code != "stale":
        # A person has to solve the problem: retry in an hour, and notify once.
        deletion.attempts = max(deletion.attempts, NOTIFY_AFTER)
        deletion.next_at = timezone.now() + timedelta(seconds=MAX_BACKOFF_S)
        deletion.save(update_fields=["attempts", "next_at"])
    if deletion.attempts >= NOTIFY_AFTER and not deletion.problem:
        _report_failure(deletion, reason)


def _report_failure(deletion: HomeDeletion, reason: Reason) -> None:
    """Report once, in the audit log and to the administrators, that a home still exists."""
    text = message_of(reason)
    deletion.problem = text
    deletion.save(update_fields=["problem"])
    events.record(
        actor=SYSTEM,
        kind=AuditKind.USER_HOME_NOT_DELETED,
        message=f"could not delete the home folder {_name(deletion)} yet",
        cause=reason.as_json(),
        team=deletion.team,
        pool=deletion.node.pool,
        targets=_about(deletion.owner),
        data=_data(deletion),
    )
    administrators = User.objects.with_state(AccountState.ACTIVE).filter(is_superuser=True)
    events.notify(
        administrators,
        "user.home_not_deleted",
        _("Home folder %(home)s was not deleted") % {"home": _name(deletion)},
        _("%(problem)s The portal retries every hour.") % {"problem": text},
        f"{reverse('events:audit')}?action={AuditKind.USER_HOME_NOT_DELETED}",
    )


def _send_due_on_commit() -> None:
    """Send the due commands once the transaction commits."""
    transaction.on_commit(partial(node_commands.send, "control.delete_homes", "control"))


def _name(deletion: HomeDeletion) -> str:
    return f"{home_key(deletion.team.slug, deletion.owner.username)} on {deletion.node.name}"


def _data(deletion: HomeDeletion) -> dict[str, str]:
    return {
        "owner": deletion.owner.username,
        "home": home_key(deletion.team.slug, deletion.owner.username),
        "node": deletion.node.name,
    }


def _about(user: User) -> list[Target]:
    return [Target(TargetKind.USER, str(user.pk))]
