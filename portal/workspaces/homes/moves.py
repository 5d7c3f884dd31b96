"""Moves homes between the nodes of a pool, step by step.

The old node serves the home to the holder of a ticket. The new node copies it in slices of a few seconds and
reports progress (`provisioning.node.home_moves`). Commands are sent under leases, so a crash costs at most
one command. Once the new node has a complete, verified copy, one transaction changes the home's node; then
the old node deletes its copy. Until that transaction, workspaces that use the home cannot start, and a move
that fails or is cancelled leaves the home on the old node.
"""

from __future__ import annotations

import logging
import uuid
from datetime import timedelta
from functools import partial
from typing import Any
from uuid import UUID

from django.conf import settings
from django.db import transaction
from django.db.models import Q, QuerySet
from django.utils import timezone
from django.utils.translation import gettext as _

from portal.common.actors import SYSTEM, SystemActor
from portal.common.domain_events import emit
from portal.common.errors import InvalidInput, NotAllowed, NotFound, StateConflict
from portal.common.events import services as events
from portal.common.events.kinds import AuditKind
from portal.common.reasons.reason import Reason
from portal.common.reasons.wording import sentence_of
from portal.common.texts import strip_nul
from portal.fleet.inventory import node_commands
from portal.fleet.inventory.contact import in_contact
from portal.fleet.inventory.models import Node, Pool
from portal.people.accounts.models import Team, User
from portal.workspaces.codes import WorkspaceCode
from portal.workspaces.domain_events import HomeMoveEnded, HomesChanged
from portal.workspaces.gateway import file_tickets
from portal.workspaces.homes import move_records as records
from portal.workspaces.homes import move_tickets
from portal.workspaces.homes import use as home_use
from portal.workspaces.homes.codes import HomeMoveCode
from portal.workspaces.homes.places import has_separate_homes
from portal.workspaces.lifecycle import State
from portal.workspaces.models import (
    ACTIVE_MOVES,
    HomeEvacuation,
    HomeMove,
    HomeMoveState,
    HomePlace,
    HomeUsage,
    Workspace,
)
from provisioning import messages
from provisioning.home_messages import HomeMoved, HomeMoveOrder, MoveCommand, MovePhase

log = logging.getLogger(__name__)
LEASE_S = 60
"""Seconds; longer than a step, which takes about 10 seconds on a node."""
OFFER_S = 3600
RETRY_STEP_S = 10
LATER_S = 30
MAX_RETRY_S = 600
MAX_FAILURES = 60
"""Consecutive commands without an answer or with a failure, over at least an hour, before the move fails."""
BATCH = 50


def visible_moves(actor: User) -> QuerySet[HomeMove]:
    """Return the actor's own moves, or all for operators and auditors."""
    moves = HomeMove.objects.select_related("owner", "team", "pool", "requester")
    return moves if actor.sees_all else moves.filter(owner=actor)


def may_move(actor: User, owner_id: UUID) -> bool:
    """Return whether the actor may decide where the home of this user is stored."""
    return actor.pk == owner_id or actor.operates


def takes_homes() -> Q:
    """Return the condition for nodes that homes can be moved to."""
    return in_contact() & Q(cordoned=False, retired=False)


def target_nodes(pool: Pool, *, other_than: UUID | None = None) -> list[Node]:
    """Return the nodes of the pool, except `other_than`, that a home can be moved to, by name."""
    if not has_separate_homes(pool):
        return []
    nodes = Node.objects.filter(takes_homes(), pool=pool)
    if other_than is not None:
        nodes = nodes.exclude(pk=other_than)
    return list(nodes.order_by("name"))


@transaction.atomic
def move_home(*, actor: User, owner: User, team: Team, pool: Pool, node: str) -> HomeMove:
    """Request a move of a home to the node with this name. A repeated request returns the same move.

    For the owner and operators. Raises `NotFound` (also if the actor may not see the home), `NotAllowed`,
    `InvalidInput` for a node that takes no homes, and `StateConflict` while workspaces use the home.
    """
    if not (actor.sees_all or may_move(actor, owner.pk)):
        raise NotFound(Reason(WorkspaceCode.NO_SUCH_HOME))
    if not may_move(actor, owner.pk):
        raise NotAllowed(Reason(WorkspaceCode.ONLY_ITS_OPERATORS, {"owner": owner.username}))
    place = HomePlace.objects.filter(owner=owner, team=team, pool=pool).first()
    if place is None:
        raise NotFound(Reason(WorkspaceCode.NO_SUCH_HOME))
    return begin(place_id=place.pk, node=node, actor=actor)


@transaction.atomic
def begin(
    *,
    place_id: int,
    node: str,
    actor: User | SystemActor,
    evacuation: HomeEvacuation | None = None,
    workspace: Workspace | None = None,
) -> HomeMove:
    """Start a single move or a move of an evacuation, without a permission check.

    Moves of an evacuation have the same requester. `workspace` is the workspace that waits for the home.
    """
    rows = HomePlace.objects.select_for_update(of=("self",))
    place = rows.select_related("owner", "team", "node", "pool").filter(pk=place_id).first()
    if place is None:
        raise NotFound(Reason(WorkspaceCode.NO_SUCH_HOME))
    owner, team, pool = place.owner, place.team, place.pool
    under_way = HomeMove.objects.filter(owner=owner, team=team, pool=pool, open=True).first()
    if under_way is not None:
        if under_way.active and under_way.target_name == node and workspace is None:
            return under_way
        reason = Reason(HomeMoveCode.ALREADY_MOVING, {"node": under_way.target_name})
        raise StateConflict(reason, code=reason.code)
    if place.node.name == node:
        reason = Reason(HomeMoveCode.ALREADY_THERE, {"node": node})
        raise StateConflict(reason, code=reason.code)
    target = next(
        (candidate for candidate in target_nodes(pool, other_than=place.node_id) if candidate.name == node),
        None,
    )
    if target is None or not home_use.is_node_trusted(pool, node):
        reason = Reason(HomeMoveCode.NO_SUCH_TARGET, {"node": strip_nul(node)[:63]})
        raise InvalidInput(reason, errors={"node": [reason]})
    home_use.require_not_in_transfer(owner.pk, team.pk)
    home_use.require_not_archived(owner.pk, team.pk, pool, place.node.name)
    if home_use.is_home_in_use(owner.pk, team.pk, place.node_id):
        reason = Reason(HomeMoveCode.IN_USE)
        raise StateConflict(reason, code=reason.code)
    requester = evacuation.requester if evacuation is not None else actor
    now = timezone.now()
    used = HomeUsage.objects.filter(owner=owner, team=team, node=place.node).first()
    move = HomeMove.objects.create(
        owner=owner, team=team, pool=pool, source=place.node, target=target, source_name=place.node.name,
        target_name=target.name, evacuation=evacuation, workspace=workspace, asked_at=now, next_at=now,
        requester=None if isinstance(requester, SystemActor) else requester,
        bytes_total=used.used_mib << 20 if used is not None else 0,
    )  # fmt: skip
    records.record(move, actor, AuditKind.USER_HOME_MOVE_REQUESTED, f"requested {records.label_of(move)}")
    home_use.notify_scheduler(move.owner_id, move.team_id)
    process_on_commit()
    return move


@transaction.atomic
def cancel_move(*, actor: User, move_id: UUID) -> HomeMove:
    """Cancel a move; the home stays where it was. Idempotent.

    For the owner and operators. Raises `NotFound`, `NotAllowed`, and `StateConflict` for a move that has
    ended.
    """
    move = _locked(move_id)
    if move is None or not (actor.sees_all or may_move(actor, move.owner_id)):
        raise NotFound(Reason(HomeMoveCode.NO_SUCH_MOVE))
    if not may_move(actor, move.owner_id):
        raise NotAllowed(Reason(WorkspaceCode.ONLY_ITS_OPERATORS, {"owner": move.owner.username}))
    if move.state == HomeMoveState.CANCELLED:
        return move
    if not move.active:
        raise StateConflict(Reason(HomeMoveCode.ENDED), code=HomeMoveCode.ENDED)
    _give_up(move, HomeMoveState.CANCELLED, actor, None)
    return move


def withdraw(move_id: UUID) -> None:
    """Cancel an active move, because the workspace that waited for the home no longer starts."""
    move = _locked(move_id)
    if move is None or not move.active:
        return
    move.reason = Reason(HomeMoveCode.START_ENDED).as_json()
    _end(move, HomeMoveState.CANCELLED, left="target" if move.started_at else "")
    records.record(move, SYSTEM, AuditKind.USER_HOME_MOVE_CANCELLED, f"cancelled {records.label_of(move)}")


def cancel_all(**homes: Any) -> None:
    """Cancel the home moves of a deleted account or team (`owner` or `team`), in the caller's transaction."""
    for pk in HomeMove.objects.filter(**homes, state__in=ACTIVE_MOVES).values_list("pk", flat=True):
        move = _locked(pk)
        if move is not None and move.active:
            _give_up(move, HomeMoveState.CANCELLED, SYSTEM, None)


# --- reconciliation --------------------------------------------------------------------------------------


def due_moves() -> QuerySet[HomeMove]:
    """Return the moves with a step that is due, oldest first."""
    now = timezone.now()
    free = Q(lease="") | Q(lease_expires_at__lte=now)
    return HomeMove.objects.filter(free, open=True, next_at__lte=now).order_by("asked_at", "pk")


def sweep() -> int:
    """Send a command for each due move. At most one active move uses a source or target node."""
    now = timezone.now()
    working = HomeMove.objects.filter(open=True, state__in=ACTIVE_MOVES, lease_expires_at__gt=now)
    busy = {node for pair in working.exclude(lease="").values_list("source", "target") for node in pair}
    rows = list(due_moves().values_list("pk", "source", "target", "state")[:BATCH])
    for pk, source, target, state in rows:
        if state in ACTIVE_MOVES:
            if busy & {source, target}:
                continue
            busy |= {source, target}
        _step(pk)
    return len(rows)


@transaction.atomic
def _step(pk: UUID) -> None:
    move = _locked(pk)
    if move is None or not due_moves().filter(pk=pk).exists():
        return
    if not move.active:
        _clean(move)
        return
    if move.workspace_id is not None and not _is_awaited(move.workspace_id):
        withdraw(pk)
        return
    for node in (move.source, move.target):
        name = move.source_name if node is move.source else move.target_name
        if node is None or node.retired or not home_use.is_node_trusted(move.pool, node.name):
            reason = Reason(HomeMoveCode.NODE_GONE, {"node": name})
            _give_up(move, HomeMoveState.FAILED, SYSTEM, reason)
            return
    silent = bool(move.lease)
    if silent:
        offered = move.state == HomeMoveState.ASKED
        code = HomeMoveCode.OLD_SILENT if offered else HomeMoveCode.NEW_SILENT
        move.failures += 1
        move.reason = Reason(code, {"node": move.source_name if offered else move.target_name}).as_json()
        if move.failures >= MAX_FAILURES:
            _give_up(move, HomeMoveState.FAILED, SYSTEM, Reason.from_json(move.reason))
            return
    if move.source is None or home_use.is_home_in_use(move.owner_id, move.team_id, move.source.pk):
        # A workspace was placed after the request. Wait until it stops before anything is copied.
        move.reason = Reason(HomeMoveCode.IN_USE).as_json()
        move.next_at = timezone.now() + timedelta(seconds=LATER_S)
        move.lease, move.lease_expires_at = "", None
        move.save()
        return
    if move.state == HomeMoveState.ASKED:
        move.offer += 1
        _send_command(move, MoveCommand.OFFER)
    else:
        _send_command(move, MoveCommand.FETCH)


def _is_awaited(workspace_id: UUID) -> bool:
    """Return whether the workspace still waits for its home to move."""
    placed = Workspace.objects.filter(pk=workspace_id, state=State.PROVISIONING)
    return placed.filter(home_move_began_at__isnull=False, home_move_ended_at=None).exists()


def _send_command(move: HomeMove, do: MoveCommand) -> None:
    """Take the lease, and send one command after the transaction commits."""
    now = timezone.now()
    node = move.source if do in (MoveCommand.OFFER, MoveCommand.REMOVE) else move.target
    assert node is not None
    move.lease, move.lease_expires_at = uuid.uuid4().hex, now + timedelta(seconds=LEASE_S)
    move.next_at = move.lease_expires_at
    move.save()
    ticket = move_tickets.ticket_of(move)
    order = HomeMoveOrder(
        move=str(move.pk),
        lease=move.lease,
        do=do,
        pool=node_commands.config_of(move.pool),
        team=move.team.slug,
        owner=move.owner.username,
        expires_at=(now + timedelta(seconds=settings.NODE_LEASE_S)).timestamp(),
        digest=file_tickets.digest_of(ticket) if do is MoveCommand.OFFER else "",
        lifetime_s=OFFER_S if do is MoveCommand.OFFER else 0.0,
        ticket=ticket if do is MoveCommand.FETCH else "",
        host=f"{move_tickets.name_of(move)}.{settings.BERTH_DOMAIN}" if do is MoveCommand.FETCH else "",
    )
    queue = node_commands.queue_of(move.pool, node.name)
    transaction.on_commit(partial(node_commands.send, "node.move_home", queue, order=messages.dump(order)))


def apply(answer: HomeMoved) -> bool:
    """Apply a node's answer. Returns `False` if it is stale and was dropped."""
    try:
        with transaction.atomic():
            move = _locked(UUID(answer.move))
            if move is None or not answer.lease or move.lease != answer.lease:
                return False
            move.lease, move.lease_expires_at, move.next_at = "", None, timezone.now()
            if not move.active:
                _apply_cleanup(move, answer)
            elif answer.failure is not None:
                _apply_failure(move, answer)
            elif answer.do is MoveCommand.OFFER:
                _publish_ticket(move)
            elif answer.do is MoveCommand.FETCH:
                _apply_fetch(move, answer)
            else:
                move.save()
            if move.open:
                process_on_commit()
    except ValueError:
        return False
    return True


def _publish_ticket(move: HomeMove) -> None:
    """Publish the ticket to the front door, once the old node serves the home."""
    if move_tickets.publish(move, lifetime_s=OFFER_S):
        move.state = HomeMoveState.COPYING
        move.started_at = move.started_at or timezone.now()
    else:
        move.next_at = timezone.now() + timedelta(seconds=RETRY_STEP_S)
    move.save()


def _apply_fetch(move: HomeMove, answer: HomeMoved) -> None:
    move.failures, move.reason = 0, {}
    if answer.bytes_total or answer.done:
        move.bytes_done, move.bytes_total = answer.bytes_done, answer.bytes_total
        move.left_out = answer.left_out
    move.state = HomeMoveState.CHECKING if answer.phase is MovePhase.CHECKING else HomeMoveState.COPYING
    if answer.done:
        _change_place(move)
    else:
        move.save()


def _change_place(move: HomeMove) -> None:
    """Change the place of the home, once the new node holds a complete copy."""
    if (
        move.source is None
        or move.target is None
        or home_use.is_home_in_use(move.owner_id, move.team_id, move.source.pk)
    ):
        _give_up(move, HomeMoveState.FAILED, SYSTEM, Reason(HomeMoveCode.IN_USE))
        return
    moved = HomePlace.objects.filter(
        owner=move.owner_id, team=move.team_id, pool=move.pool_id, node=move.source
    ).update(node=move.target, since=timezone.now())
    if not moved:
        reason = Reason(HomeMoveCode.NODE_GONE, {"node": move.source_name})
        _give_up(move, HomeMoveState.FAILED, SYSTEM, reason)
        return
    HomeUsage.objects.filter(owner=move.owner_id, team=move.team_id, node=move.source).delete()
    emit(HomesChanged((move.source.pk, move.target.pk)))
    _end(move, HomeMoveState.DONE, left="source")
    records.record(
        move, SYSTEM, AuditKind.USER_HOME_MOVED, f"moved {records.home_of(move)} to {move.target_name}"
    )
    if move.workspace_id is not None:
        # The owner waits for the start, and sees the node on the workspace's page.
        return
    events.notify(
        [move.owner],
        "home.moved",
        _("Your home folder in %(team)s has been moved") % {"team": move.team.name},
        _("It is now on %(node)s. New workspaces start there.") % {"node": move.target_name},
        "/homes/",
    )


def _apply_failure(move: HomeMove, answer: HomeMoved) -> None:
    failure = answer.failure
    assert failure is not None
    params = {"node": move.target_name}
    if failure.code == "no_room_for_home":
        params |= {"needed_mib": answer.needed >> 20, "free_mib": answer.free >> 20}  # type: ignore[dict-item]
        reason = Reason(HomeMoveCode.NO_ROOM, params)
    else:
        text = {"code": failure.code, "text": strip_nul(failure.message)[:1000]}
        reason = Reason(HomeMoveCode.REPORTED, text)
    move.failures += 1
    if not failure.retryable or move.failures >= MAX_FAILURES:
        _give_up(move, HomeMoveState.FAILED, SYSTEM, reason)
        return
    if answer.do is MoveCommand.FETCH and failure.code == "offer_gone":
        move.state = HomeMoveState.ASKED
    if move.failures > 1:
        move.reason = reason.as_json()
        move.next_at = timezone.now() + timedelta(seconds=min(RETRY_STEP_S * move.failures, 60))
    move.save()


def _give_up(move: HomeMove, state: HomeMoveState, actor: User | SystemActor, reason: Reason | None) -> None:
    """End the move without success. The home stays where it was, and the new node removes its copy."""
    move.reason = reason.as_json() if reason is not None else {}
    _end(move, state, left="target" if move.started_at else "")
    if reason is None:
        message = f"cancelled {records.label_of(move)}"
        records.record(move, actor, AuditKind.USER_HOME_MOVE_CANCELLED, message)
        return
    records.record(
        move, actor, AuditKind.USER_HOME_MOVE_FAILED, f"could not move {records.home_of(move)}", reason
    )
    # The requester of an evacuation is notified once, at its end.
    requester = move.requester if move.evacuation_id is None else None
    events.notify(
        {user.pk: user for user in (move.owner, requester) if user is not None}.values(),
        "home.move_failed",
        _("The home folder %(home)s was not moved") % {"home": records.home_of(move)},
        sentence_of(reason),
        "/homes/",
    )


def _end(move: HomeMove, state: HomeMoveState, *, left: str) -> None:
    now = timezone.now()
    move.state, move.left, move.open = state, left, bool(left)
    move.ended_at, move.next_at, move.failures = now, now, 0
    move.lease, move.lease_expires_at = "", None
    move.save()
    home_use.notify_scheduler(move.owner_id, move.team_id)
    if move.workspace_id is not None:
        emit(HomeMoveEnded(move.workspace_id))
    transaction.on_commit(partial(move_tickets.forget, move_tickets.ticket_of(move)))
    if left:
        process_on_commit()


def _clean(move: HomeMove) -> None:
    """Have a node remove its superseded copy, unless the node is gone."""
    node, name = (move.source, move.source_name) if move.left == "source" else (move.target, move.target_name)
    if node is None or not home_use.is_node_trusted(move.pool, name):
        move.open = False
        move.save()
        return
    if (
        move.left == "source"
        and HomePlace.objects.filter(
            owner=move.owner_id, team=move.team_id, pool=move.pool_id, node=node
        ).exists()
    ):  # pragma: no branch
        log.error("home of move %s is on %s; removing nothing there", move.pk, name)
        move.open = False
        move.save()
        return
    _send_command(move, MoveCommand.REMOVE if move.left == "source" else MoveCommand.DISCARD)


def _apply_cleanup(move: HomeMove, answer: HomeMoved) -> None:
    if answer.failure is not None:
        move.failures += 1
        wait_s = min(RETRY_STEP_S * 2 ** min(move.failures, 10), MAX_RETRY_S)
        move.next_at = timezone.now() + timedelta(seconds=wait_s)
    elif answer.done and answer.do is (MoveCommand.REMOVE if move.left == "source" else MoveCommand.DISCARD):
        move.left, move.open = "", False
        # From now on a start may move the home again.
        home_use.notify_scheduler(move.owner_id, move.team_id)
    move.save()


# --- helpers ---------------------------------------------------------------------------------------------


def _locked(move_id: UUID) -> HomeMove | None:
    rows = HomeMove.objects.select_for_update(of=("self",))
    return (
        rows.select_related("owner", "team", "pool", "source", "target", "requester")
        .filter(pk=move_id)
        .first()
    )


def process_on_commit() -> None:
    """Process due moves after the transaction commits."""
    transaction.on_commit(partial(node_commands.send, "control.move_homes", "control"))
