"""Records items without an owner that nodes report, and removes them.

Ownership is checked when an orphan is reported, when its removal is requested, and again by the node before
removal. Items with an owner are never listed or removed.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime, timedelta
from functools import partial
from uuid import UUID

from django.conf import settings
from django.db import transaction
from django.db.models import Q
from django.utils import timezone

from portal.common.actors import SYSTEM, SystemActor, label_of
from portal.common.errors import InvalidInput, NotFound, StateConflict
from portal.common.events import services as events
from portal.common.events.kinds import AuditKind
from portal.common.events.models import TargetKind
from portal.common.events.services import Target
from portal.common.formatting import format_memory
from portal.common.problem_codes import ProblemCode
from portal.common.reasons.reason import Reason
from portal.common.texts import strip_nul
from portal.fleet.inventory import node_commands
from portal.fleet.inventory.contact import in_contact
from portal.fleet.inventory.models import Node, Pool
from portal.people.accounts.models import User
from portal.people.accounts.policies import require_operator
from portal.workspaces.domain_events import HomesMeasured, UnknownWorkspacesReported
from portal.workspaces.homes import places as home_places
from portal.workspaces.orphans.codes import OrphanCode
from portal.workspaces.orphans.models import THERE, Orphan, OrphanKind, OrphanState
from portal.workspaces.orphans.ownership import EntryKey, owned
from portal.workspaces.orphans.selectors import automatic_removal_at, key_of
from provisioning import messages
from provisioning.types import Leftover, LeftoverKind, LeftoverRemoval, LeftoverRemoved

log = logging.getLogger(__name__)
LISTED = (OrphanKind.PROCESS, OrphanKind.CONTROL_GROUP, OrphanKind.FOLDER)
"""Kinds for which a node's listing is complete."""
UNSEEN_AFTER = timedelta(minutes=15)
"""If a reporting node has not listed a home for this long, the home no longer exists."""
UNSEEN_SWEEPS = 3
"""Number of sweeps without a report after which an unknown workspace counts as ended."""
MAX_NODES = 200


def request_listings() -> None:
    """Ask every node for its listing."""
    for pool in Pool.objects.filter(enabled=True, deleted_at=None):
        if pool.runs_on_node:
            for node in node_commands.nodes_to_ask(pool)[:MAX_NODES]:
                ask(pool, node)


def ask(pool: Pool, node: str) -> None:
    node_commands.send(
        "node.list_leftovers",
        node_commands.queue_of(pool, node),
        pool=messages.dump(node_commands.config_of(pool)),
        node=node,
    )


def request_inventories(*, actor: User) -> None:
    """Ask all nodes for their listings now, at the request of an operator."""
    require_operator(actor)
    request_listings()


@transaction.atomic
def apply_listing(*, pool: Pool, node: str, leftovers: Sequence[Leftover]) -> None:
    """Apply a node's listing of everything except homes.

    The node has already removed entries with `removed_at`.
    """
    now = timezone.now()
    listed_kinds = [leftover for leftover in leftovers if OrphanKind(leftover.kind.value) in LISTED]
    present = [leftover for leftover in listed_kinds if not leftover.removed_at]
    _note(pool, node, present, now)
    listed = {(leftover.kind.value, leftover.name) for leftover in present}
    for row in Orphan.objects.select_for_update().filter(
        pool=pool, node=node, kind__in=LISTED, state__in=THERE, seen_at__lt=now
    ):
        if (row.kind, row.name) not in listed:
            _end(row, OrphanState.GONE, now)
    _note_removed(pool, node, [leftover for leftover in listed_kinds if leftover.removed_at])


def _note(pool: Pool, node: str, leftovers: Sequence[Leftover], now: datetime) -> None:
    """Create or update the rows of entries without an owner, and close those of entries that have one now."""
    names = [EntryKey(pool.pk, node, leftover.kind.value, leftover.name) for leftover in leftovers]
    owned_keys = {(leftover.kind, leftover.name) for leftover in owned(names)}
    rows = {
        (row.kind, row.name): row
        for row in Orphan.objects.select_for_update().filter(pool=pool, node=node, state__in=THERE)
    }
    for key in owned_keys & set(rows):
        _end(rows[key], OrphanState.GONE, now)
    for leftover in leftovers:
        key = (leftover.kind.value, leftover.name)
        if key in owned_keys:
            continue
        row = rows.get(key)
        if row is None:
            rows[key] = Orphan.objects.create(
                pool=pool,
                node=node,
                kind=leftover.kind.value,
                name=leftover.name,
                detail=leftover.detail,
                size_mib=leftover.size_mib,
                first_seen_at=now,
                seen_at=now,
            )
        else:
            row.seen_at, row.detail, row.size_mib = now, leftover.detail, leftover.size_mib
            row.save(update_fields=["seen_at", "detail", "size_mib"])


def _note_removed(pool: Pool, node: str, deleted: Sequence[Leftover]) -> None:
    """Record once each entry that a node has removed by itself; nodes report the removal repeatedly."""
    known_keys = set(
        Orphan.objects.filter(pool=pool, node=node, state=OrphanState.REMOVED, kind__in=LISTED).values_list(
            "kind", "name"
        )
    )
    since = timezone.now() - timedelta(days=settings.BERTH_ORPHAN_KEEP_DAYS)
    for leftover in deleted:
        at = min(datetime.fromtimestamp(leftover.removed_at, UTC), timezone.now())
        if (leftover.kind.value, leftover.name) not in known_keys and at > since:
            Orphan.objects.create(
                pool=pool,
                node=node,
                kind=leftover.kind.value,
                name=leftover.name,
                detail=leftover.detail,
                size_mib=leftover.size_mib,
                state=OrphanState.REMOVED,
                first_seen_at=at,
                seen_at=at,
                ended_at=at,
                removed_by=node,
            )
            known_keys.add((leftover.kind.value, leftover.name))


@transaction.atomic
def homes_measured(event: HomesMeasured) -> None:
    """Record homes without an owner on a node. Pools with shared homes get one row per home."""
    pool, node = event.node.pool, event.node.name
    if not home_places.has_separate_homes(pool):
        first = Orphan.objects.filter(pool=pool, kind=OrphanKind.HOME, state__in=THERE).order_by("pk").first()
        node = first.node if first else node
    leftovers = [Leftover(LeftoverKind.HOME, home.home, "", home.used_mib) for home in event.homes]
    _note(pool, node, leftovers, timezone.now())


@transaction.atomic
def unknown_workspaces_reported(event: UnknownWorkspacesReported) -> None:
    """Record unknown workspaces on a node. The node is already ending them."""
    leftovers = [Leftover(LeftoverKind.WORKSPACE, name, "being stopped by its node") for name in event.names]
    _note(event.pool, event.node, leftovers, timezone.now())


@transaction.atomic
def remove(*, actor: User | SystemActor, orphan_id: UUID, confirm: str = "") -> Orphan:
    """Ask the node to remove an orphan. For a home, `confirm` must be its name, as removal is permanent.

    Raises `NotAllowed`, `NotFound`, `InvalidInput`, and `StateConflict` if it has an owner now or no longer
    exists. Idempotent while the removal is in progress.
    """
    require_operator(actor)
    row = Orphan.objects.select_for_update(of=("self",)).select_related("pool").filter(pk=orphan_id).first()
    if row is None:
        raise NotFound(Reason(OrphanCode.NO_SUCH_ORPHAN))
    if row.state == OrphanState.REMOVING:
        return row
    if row.state != OrphanState.FOUND:
        raise StateConflict(Reason(OrphanCode.GONE_ALREADY, {"name": row.name}), code=ProblemCode.GONE)
    if row.kind == OrphanKind.WORKSPACE:
        raise StateConflict(
            Reason(OrphanCode.ENDS_BY_ITSELF, {"name": row.name}), code=ProblemCode.ENDS_BY_ITSELF
        )
    if row.kind == OrphanKind.HOME and confirm.strip() != row.name:
        reason = Reason(OrphanCode.NAME_NOT_TYPED, {"name": row.name})
        raise InvalidInput(reason, errors={"confirm": [reason]})
    if owned([key_of(row)]):
        raise StateConflict(Reason(OrphanCode.HAS_OWNER, {"name": row.name}), code=ProblemCode.HAS_OWNER)
    row.state, row.removed_by, row.problem = OrphanState.REMOVING, label_of(actor), ""
    _send_order(row)
    _record(actor, AuditKind.ORPHAN_REMOVAL_REQUESTED, row, f"requested the removal of {_label(row)}")
    return row


def _send_order(row: Orphan) -> None:
    """Send the node a removal command under a new lease, after the transaction commits."""
    now = timezone.now()
    row.lease = uuid.uuid4().hex
    row.lease_expires_at = now + timedelta(seconds=settings.NODE_LEASE_S)
    row.save(update_fields=["state", "removed_by", "problem", "lease", "lease_expires_at"])
    order = LeftoverRemoval(
        orphan=str(row.pk),
        lease=row.lease,
        pool=node_commands.config_of(row.pool),
        kind=LeftoverKind(row.kind),
        name=row.name,
        expires_at=row.lease_expires_at.timestamp(),
    )
    queue = node_commands.queue_of(row.pool, row.node)
    transaction.on_commit(
        partial(node_commands.send, "node.remove_leftover", queue, order=messages.dump(order))
    )


def row_of(answer: LeftoverRemoved) -> Orphan | None:
    """Return the row for the answer if its lease matches, else `None`."""
    try:
        key = UUID(answer.orphan)
    except ValueError:
        return None
    if not answer.lease:
        return None
    return Orphan.objects.filter(pk=key, lease=answer.lease).select_related("pool").first()


@transaction.atomic
def apply_removed(answer: LeftoverRemoved) -> bool:
    """Apply a node's answer. Returns `False` if it is stale and was dropped."""
    removed = row_of(answer)
    if removed is None:
        return False
    row = Orphan.objects.select_for_update(of=("self",)).select_related("pool").get(pk=removed.pk)
    if row.lease != answer.lease or row.state != OrphanState.REMOVING:
        return False
    if answer.failure is not None:
        row.state, row.lease, row.lease_expires_at = OrphanState.FOUND, "", None
        row.problem = strip_nul(answer.failure.message)[:1000]
        row.save(update_fields=["state", "lease", "lease_expires_at", "problem"])
        _record(SYSTEM, AuditKind.ORPHAN_NOT_REMOVED, row, f"could not remove {_label(row)}: {row.problem}")
    elif not answer.done:
        _send_next_order(row)
    else:
        _end(row, OrphanState.REMOVED, timezone.now())
        _record(SYSTEM, AuditKind.ORPHAN_REMOVED, row, f"removed {_label(row)}")
    return True


def _send_next_order(row: Orphan) -> None:
    """Send the next removal command, unless the orphan has an owner now."""
    if owned([key_of(row)]):
        _end(row, OrphanState.GONE, timezone.now())
    else:
        _send_order(row)


def _end(row: Orphan, state: OrphanState, now: datetime) -> None:
    row.state, row.ended_at, row.lease, row.lease_expires_at = state, now, "", None
    row.save(update_fields=["state", "ended_at", "lease", "lease_expires_at"])


def sweep() -> None:
    """Apply the removal policy, repeat unanswered commands, and close or delete old rows."""
    now = timezone.now()
    late = Orphan.objects.filter(state=OrphanState.REMOVING, lease_expires_at__lte=now)
    due = Orphan.objects.filter(state=OrphanState.FOUND, kind__in=LISTED, problem="")
    for pk in _keys(late):
        _retry(pk, now)
    for row in due.select_related("pool").order_by("first_seen_at")[:500]:
        at = automatic_removal_at(row)
        if at is not None and at <= now:
            _remove_by_policy(row.pk)
    _forget_unseen(now)
    old = now - timedelta(days=settings.BERTH_ORPHAN_KEEP_DAYS)
    Orphan.objects.exclude(state__in=THERE).filter(ended_at__lt=old).delete()


def _keys(rows: Iterable[Orphan]) -> list[UUID]:
    return [row.pk for row in rows][:500]


@transaction.atomic
def _retry(pk: UUID, now: datetime) -> None:
    row = (
        Orphan.objects.select_for_update(of=("self",))
        .select_related("pool")
        .filter(pk=pk, state=OrphanState.REMOVING, lease_expires_at__lte=now)
        .first()
    )
    if row is not None:
        _send_next_order(row)


def _remove_by_policy(pk: UUID) -> None:
    try:
        remove(actor=SYSTEM, orphan_id=pk)
    except (StateConflict, NotFound) as error:
        log.info("did not remove leftover: %s", error)


@transaction.atomic
def _forget_unseen(now: datetime) -> None:
    """Close the rows of homes and workspaces that a reporting node no longer lists."""
    ended = now - timedelta(seconds=UNSEEN_SWEEPS * settings.ORPHAN_SWEEP_INTERVAL_S)
    unseen = list(
        Orphan.objects.select_for_update().filter(
            Q(kind=OrphanKind.HOME, seen_at__lt=now - UNSEEN_AFTER)
            | Q(kind=OrphanKind.WORKSPACE, seen_at__lt=ended),
            state=OrphanState.FOUND,
        )
    )
    if not unseen:
        return
    reporting = set(Node.objects.filter(in_contact(), retired=False).values_list("pool_id", "name"))
    for row in unseen:
        if (row.pool_id, row.node) not in reporting:
            continue
        if row.kind == OrphanKind.WORKSPACE:
            Orphan.objects.filter(pk=row.pk).update(removed_by=SYSTEM.label)
            _end(row, OrphanState.REMOVED, now)
        else:
            _end(row, OrphanState.GONE, now)


def _label(row: Orphan) -> str:
    size = f" ({format_memory(row.size_mib)})" if row.size_mib is not None else ""
    return f"the {row.get_kind_display().lower()} {row.name} on {row.node}{size}, which no workspace owns"


def _record(actor: User | SystemActor, kind: AuditKind, row: Orphan, message: str) -> None:
    events.record(
        actor=actor,
        kind=kind,
        message=message[:1000],
        pool=row.pool,
        targets=[Target(TargetKind.NODE, row.node)],
        data={"kind": row.kind, "name": row.name, "size_mib": row.size_mib},
    )
