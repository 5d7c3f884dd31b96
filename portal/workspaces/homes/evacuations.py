"""Evacuations: move all homes of a node to another node, with ordinary home moves.

Only a few moves run at a time, so that owners of the other homes can work meanwhile. A home in use is moved
once nothing uses it. If a move fails or is cancelled, the home stays; a new evacuation retries the move. All
state is in the database, so the next sweep continues after a crash.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any
from uuid import UUID

from django.db import transaction
from django.db.models import Count, Exists, F, OuterRef, Q, QuerySet, Subquery, Sum
from django.db.models.functions import Coalesce
from django.utils import timezone
from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from portal.common.actors import SYSTEM, SystemActor
from portal.common.errors import InvalidInput, NotFound, PortalError, StateConflict
from portal.common.events import services as events
from portal.common.events.kinds import AuditKind
from portal.common.events.models import TargetKind
from portal.common.events.services import Target
from portal.common.reasons.reason import Reason
from portal.common.reasons.wording import sentence_of
from portal.common.texts import strip_nul
from portal.fleet.inventory.codes import InventoryCode
from portal.fleet.inventory.models import Allocation, Node
from portal.fleet.machines.policies import require_see
from portal.people.accounts.models import User
from portal.people.accounts.policies import require_operator
from portal.workspaces.homes import moves as home_moves
from portal.workspaces.homes import use as home_use
from portal.workspaces.homes.codes import HomeMoveCode
from portal.workspaces.homes.places import has_separate_homes
from portal.workspaces.models import (
    ACTIVE_ARCHIVES,
    ACTIVE_MOVES,
    EvacuationState,
    HomeArchive,
    HomeEvacuation,
    HomeMove,
    HomeMoveState,
    HomePlace,
    HomeUsage,
)

AT_ONCE = 2
"""Concurrent moves of one evacuation: one home is copied while the next move is requested."""
RETRY_STEP_S = 10
BATCH = 20
ENDED_ELSEWHERE = (HomeMoveState.FAILED, HomeMoveState.CANCELLED)


@dataclass(frozen=True, slots=True)
class NodeHomeCounts:
    """The homes on a node, by whether they can be moved.

    `used_mib` is the total size of the `measured` homes. `ready` homes can be moved now, and `in_use` homes
    once nothing uses them; `moving` homes are being moved or archived; `kept` homes belong to deleted
    accounts and stay. `targets` are the names of possible target nodes; `refused` is the reason why no home
    can be moved.
    """

    node: Node
    homes: int
    used_mib: int
    measured: int
    ready: int
    in_use: int
    moving: int
    kept: int
    targets: tuple[str, ...]
    refused: Reason | None


def node_by_id(actor: User, node_id: UUID) -> Node:
    """Return a node, for operators and auditors. Raises `NotFound`, `NotAllowed`."""
    require_see(actor)
    node = Node.objects.select_related("pool").filter(pk=node_id).first()
    if node is None:
        raise NotFound(Reason(InventoryCode.NO_SUCH_NODE))
    return node


def homes_on_node(actor: User, node: Node) -> NodeHomeCounts:
    """Count the homes that an evacuation would move, for operators and auditors. Raises `NotAllowed`."""
    require_see(actor)
    alive = Q(owner__deleted_at=None)
    # Aliases must differ from annotations, which would otherwise refer to the counts in this query.
    counts = _places(node).aggregate(
        homes=Count("pk"),
        used=Sum("used_mib"),
        measured=Count("used_mib"),
        staying=Count("pk", filter=alive & Q(in_use=True, moving=False)),
        going=Count("pk", filter=alive & Q(moving=True)),
        kept=Count("pk", filter=~alive),
    )
    busy = counts["staying"] + counts["going"] + counts["kept"]
    targets = tuple(node.name for node in home_moves.target_nodes(node.pool, other_than=node.pk))
    return NodeHomeCounts(
        node=node,
        homes=counts["homes"],
        used_mib=counts["used"] or 0,
        measured=counts["measured"],
        ready=counts["homes"] - busy,
        in_use=counts["staying"],
        moving=counts["going"],
        kept=counts["kept"],
        targets=targets,
        refused=_refusal(node, counts["homes"] - counts["kept"], targets),
    )


def _refusal(node: Node, homes: int, targets: Iterable[str]) -> Reason | None:
    """Return why no home can be moved from the node, or `None`."""
    params = {"node": node.name}
    if not has_separate_homes(node.pool):
        return Reason(HomeMoveCode.HOMES_NOT_APART, {"pool": node.pool.name})
    if node.retired or not home_use.is_node_trusted(node.pool, node.name):
        return Reason(HomeMoveCode.NODE_GONE, params)
    if not homes:
        return Reason(HomeMoveCode.NO_HOMES_THERE, params)
    if not list(targets):
        return Reason(HomeMoveCode.NO_TARGETS, {"pool": node.pool.name, **params})
    return None


def _places(node: Node) -> QuerySet[Any]:
    """Return the homes on the node with `in_use`, `moving` (moved or archived) and `used_mib`."""
    same = {"owner": OuterRef("owner"), "team": OuterRef("team")}
    used = Allocation.objects.filter(
        workspace__owner=OuterRef("owner"), workspace__team=OuterRef("team"), node=node, released_at=None
    )
    moving = HomeMove.objects.filter(**same, pool=OuterRef("pool"), open=True)
    archives = HomeArchive.objects.filter(
        Q(state__in=ACTIVE_ARCHIVES) | Q(node=node, away_at__isnull=False), **same
    )
    usage = HomeUsage.objects.filter(**same, node=node)
    return HomePlace.objects.filter(node=node).annotate(
        in_use=Exists(used),
        moving=Exists(moving) | Exists(archives),
        used_mib=Subquery(usage.values("used_mib")[:1]),
    )


# --- requests --------------------------------------------------------------------------------------------


def visible_evacuations(actor: User) -> QuerySet[HomeEvacuation]:
    """Return all evacuations with their progress for operators and auditors, else none.

    `moved`, `stayed` and `under_way` count homes; `left` counts homes still on the node that will be moved;
    `bytes_done` is the number of bytes copied. `moved` and `bytes_done` include homes that moved meanwhile
    because a workspace started elsewhere.
    """
    rows = HomeEvacuation.objects.select_related("pool", "source", "requester")
    stayed = HomeMove.objects.filter(
        evacuation=OuterRef(OuterRef("pk")),
        owner=OuterRef("owner"),
        team=OuterRef("team"),
        state__in=ENDED_ELSEWHERE,
    )
    homes = (
        HomePlace.objects.filter(~Exists(stayed), node=OuterRef("source"), owner__deleted_at=None)
        .order_by()
        .values("node")
        .annotate(number=Count("pk"))
        .values("number")
    )
    outer_end = Coalesce(OuterRef("ended_at"), timezone.now())
    completed = _completed_moves(OuterRef("pool"), OuterRef("source_name"), OuterRef("asked_at"), outer_end)
    by_source = completed.order_by().values("source_name")
    unfinished = ~Q(moves__state=HomeMoveState.DONE)
    rows = rows.annotate(
        moved=Coalesce(Subquery(by_source.annotate(number=Count("pk")).values("number")), 0),
        stayed=Count("moves", filter=Q(moves__state__in=ENDED_ELSEWHERE)),
        under_way=Count("moves", filter=Q(moves__state__in=ACTIVE_MOVES)),
        bytes_done=Coalesce(Sum("moves__bytes_done", filter=unfinished), 0)
        + Coalesce(Subquery(by_source.annotate(copied=Sum("bytes_done")).values("copied")), 0),
        left=Coalesce(Subquery(homes), 0),
    )
    return rows if actor.sees_all else rows.none()


def evacuation(actor: User, evacuation_id: UUID) -> HomeEvacuation:
    """Return an evacuation with its progress. Raises `NotFound`."""
    evacuation = visible_evacuations(actor).filter(pk=evacuation_id).first()
    if evacuation is None:
        raise NotFound(Reason(HomeMoveCode.NO_SUCH_EVACUATION))
    return evacuation


@transaction.atomic
def evacuate(*, actor: User, node_id: UUID, to: str) -> HomeEvacuation:
    """Request that all homes of the node are moved to the node with this name.

    A repeated request returns the same evacuation. Raises `NotAllowed`, `NotFound`, `InvalidInput` for a node
    that takes no homes, and `StateConflict` if nothing can be moved.
    """
    require_operator(actor)
    node = Node.objects.select_for_update(of=("self",)).select_related("pool").filter(pk=node_id).first()
    if node is None:
        raise NotFound(Reason(InventoryCode.NO_SUCH_NODE))
    going = HomeEvacuation.objects.filter(source=node, state=EvacuationState.GOING).first()
    if going is not None:
        if going.target_name == to:
            return going
        raise _conflict(Reason(HomeMoveCode.ALREADY_EVACUATED, {"node": node.name, "to": going.target_name}))
    counts = homes_on_node(actor, node)
    if counts.refused is not None:
        raise _conflict(counts.refused)
    target = Node.objects.filter(pool=node.pool, name=to).first() if to in counts.targets else None
    if target is None or not home_use.is_node_trusted(node.pool, to):
        reason = Reason(HomeMoveCode.NO_SUCH_TARGET, {"node": strip_nul(to)[:63]})
        raise InvalidInput(reason, errors={"to": [reason]})
    away = HomeEvacuation.objects.filter(source=target, state=EvacuationState.GOING).first()
    if away is not None:
        # Otherwise homes would move back and forth.
        raise _conflict(Reason(HomeMoveCode.ALREADY_EVACUATED, {"node": target.name, "to": away.target_name}))
    now = timezone.now()
    evacuation = HomeEvacuation.objects.create(
        pool=node.pool, source=node, target=target, source_name=node.name, target_name=target.name,
        homes=counts.homes - counts.kept, requester=actor, asked_at=now, next_at=now,
    )  # fmt: skip
    _record(evacuation, actor, AuditKind.NODE_HOMES_MOVE_REQUESTED, f"requested {_label(evacuation)}")
    home_moves.process_on_commit()
    return evacuation


@transaction.atomic
def cancel(*, actor: User, evacuation_id: UUID) -> HomeEvacuation:
    """Cancel an evacuation. Homes that have arrived stay there; all others stay where they were. Idempotent.

    Raises `NotAllowed`, `NotFound`, `StateConflict` for an evacuation that has ended.
    """
    require_operator(actor)
    evacuation = _locked(evacuation_id)
    if evacuation is None:
        raise NotFound(Reason(HomeMoveCode.NO_SUCH_EVACUATION))
    if evacuation.state == EvacuationState.CANCELLED:
        return evacuation
    if not evacuation.is_open:
        raise _conflict(Reason(HomeMoveCode.ENDED))
    evacuation.state, evacuation.ended_at, evacuation.reason = EvacuationState.CANCELLED, timezone.now(), {}
    evacuation.save()
    for pk in evacuation.moves.filter(state__in=ACTIVE_MOVES).values_list("pk", flat=True):
        home_moves.cancel_move(actor=actor, move_id=pk)
    _record(evacuation, actor, AuditKind.NODE_HOMES_MOVE_CANCELLED, f"cancelled {_label(evacuation)}")
    return evacuation


# --- reconciliation --------------------------------------------------------------------------------------


def sweep() -> int:
    """Continue all due evacuations, and return their number."""
    now = timezone.now()
    due_evacuations = HomeEvacuation.objects.filter(state=EvacuationState.GOING, next_at__lte=now)
    rows = list(due_evacuations.order_by("next_at", "pk").values_list("pk", flat=True)[:BATCH])
    for pk in rows:
        _step(pk)
    return len(rows)


@transaction.atomic
def _step(pk: UUID) -> None:
    evacuation = _locked(pk)
    if evacuation is None or not evacuation.is_open:
        return
    for node, name in (
        (evacuation.source, evacuation.source_name),
        (evacuation.target, evacuation.target_name),
    ):
        if node is None or node.retired or not home_use.is_node_trusted(evacuation.pool, name):
            _end(evacuation, Reason(HomeMoveCode.NODE_GONE, {"node": name}))
            return
    assert evacuation.source is not None
    stayed = evacuation.moves.filter(
        owner=OuterRef("owner"), team=OuterRef("team"), state__in=ENDED_ELSEWHERE
    )
    remaining_homes = _places(evacuation.source).filter(~Exists(stayed), owner__deleted_at=None)
    active = evacuation.moves.filter(state__in=ACTIVE_MOVES).count()
    ready = remaining_homes.filter(in_use=False, moving=False).order_by(
        F("used_mib").asc(nulls_last=True), "pk"
    )
    reason: Reason | None = None
    for place in ready[: max(0, AT_ONCE - active)]:
        try:
            home_moves.begin(
                place_id=place.pk, node=evacuation.target_name, actor=SYSTEM, evacuation=evacuation
            )
        except PortalError as error:
            reason = error.reason
            break
        active += 1
    if not active:
        count = remaining_homes.count()
        if not count:
            _end(evacuation, None)
            return
        reason = reason or Reason(HomeMoveCode.HOMES_IN_USE, {"count": count})
    evacuation.reason = reason.as_json() if reason is not None else {}
    evacuation.next_at = timezone.now() + timedelta(seconds=RETRY_STEP_S)
    evacuation.save()


def _end(evacuation: HomeEvacuation, reason: Reason | None) -> None:
    """End the evacuation, and notify its requester."""
    now = timezone.now()
    done = _completed_moves(evacuation.pool, evacuation.source_name, evacuation.asked_at, now)
    counts = {
        "moved": done.count(),
        "stayed": evacuation.moves.filter(state__in=ENDED_ELSEWHERE).count(),
    }
    is_complete = reason is None and not counts["stayed"]
    evacuation.state = EvacuationState.DONE if is_complete else EvacuationState.INCOMPLETE
    evacuation.ended_at, evacuation.reason = now, reason.as_json() if reason is not None else {}
    evacuation.save()
    params = {"from": evacuation.source_name, "to": evacuation.target_name}
    _record(
        evacuation,
        SYSTEM,
        AuditKind.NODE_HOMES_MOVED,
        f"moved home folders from {evacuation.source_name} to {evacuation.target_name}: "
        f"{counts['moved']} moved, {counts['stayed']} not moved",
        reason,
        counts,
    )
    if evacuation.requester is None or evacuation.source is None:
        return
    moved = ngettext(
        "%(count)d home folder was moved.", "%(count)d home folders were moved.", counts["moved"]
    )
    body = [moved % {"count": counts["moved"]}]
    if counts["stayed"]:
        stayed = ngettext(
            "%(count)d not moved. Check the reasons.",
            "%(count)d not moved. Check the reasons.",
            counts["stayed"],
        )
        body.append(stayed % {"count": counts["stayed"]})
    if reason is not None:
        body.append(sentence_of(reason))
    title = (
        _("The home folders of %(from)s are on %(to)s")
        if is_complete
        else _("Some home folders of %(from)s were not moved to %(to)s")
    )
    events.notify(
        [evacuation.requester],
        "node.homes_moved",
        title % params,
        " ".join(body),
        f"/homes/nodes/{evacuation.source.pk}/",
    )


# --- helpers ---------------------------------------------------------------------------------------------


def unsuccessful_moves(evacuation: HomeEvacuation) -> QuerySet[HomeMove]:
    """Return the failed and cancelled moves of an evacuation, ordered by home."""
    rows = evacuation.moves.filter(state__in=ENDED_ELSEWHERE).select_related("owner", "team")
    return rows.order_by("team__slug", "owner__username")


def _completed_moves(pool: Any, source_name: Any, since: Any, until: Any) -> QuerySet[HomeMove]:
    """Return the moves that took homes away from a node in a period. Arguments may be query expressions.

    Includes moves that the evacuation did not request: when a drained workspace starts on another node, its
    home moves too.
    """
    return HomeMove.objects.filter(
        pool=pool,
        source_name=source_name,
        state=HomeMoveState.DONE,
        ended_at__gte=since,
        ended_at__lte=until,
    )


def latest_evacuation(actor: User, node: Node) -> HomeEvacuation | None:
    """Return the latest evacuation of a node with its progress, or `None`."""
    return visible_evacuations(actor).filter(source=node).first()


def _locked(evacuation_id: UUID) -> HomeEvacuation | None:
    rows = HomeEvacuation.objects.select_for_update(of=("self",))
    return rows.select_related("pool", "source", "target", "requester").filter(pk=evacuation_id).first()


def _conflict(reason: Reason) -> StateConflict:
    return StateConflict(reason, code=reason.code)


def _label(evacuation: HomeEvacuation) -> str:
    return f"the move of all home folders from {evacuation.source_name} to {evacuation.target_name}"


def _record(
    evacuation: HomeEvacuation,
    actor: User | SystemActor,
    kind: AuditKind,
    message: str,
    cause: Reason | None = None,
    data: dict[str, Any] | None = None,
) -> None:
    events.record(
        actor=actor,
        kind=kind,
        message=message,
        cause=cause.as_json() if cause is not None else None,
        pool=evacuation.pool,
        targets=[
            Target(TargetKind.NODE, evacuation.source_name),
            Target(TargetKind.NODE, evacuation.target_name),
        ],
        data={
            "from": evacuation.source_name,
            "to": evacuation.target_name,
            "homes": evacuation.homes,
            **(data or {}),
        },
    )
