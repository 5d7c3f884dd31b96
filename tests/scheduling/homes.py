"""Homes of a pool whose machines keep them apart, and the moves between these machines."""

from __future__ import annotations

from django.utils import timezone

from portal.fleet.inventory.models import Node
from portal.workspaces import reconcile
from portal.workspaces.homes import moves as home_moves
from portal.workspaces.lifecycle import State
from portal.workspaces.models import HomeMove, HomePlace, HomeUsage, Workspace
from provisioning import messages
from provisioning.home_messages import HomeMoved, HomeMoveOrder, MoveCommand, MovePhase
from provisioning.types import Failure
from tests.broker import Broker
from tests.snapshots import rows_changed


def put_home(place: HomePlace, node: str, size_mib: int) -> None:
    """The home is on this node and has this size, as measured there."""
    place.node = Node.objects.get(pool=place.pool, name=node)
    place.save(update_fields=["node"])
    measure(place, size_mib)
    rows_changed()


def measure(place: HomePlace, size_mib: int) -> None:
    HomeUsage.objects.update_or_create(
        owner=place.owner,
        team=place.team,
        node=place.node,
        defaults={"used_mib": size_mib, "measured_at": timezone.now()},
    )


def orders(sent: Broker) -> list[HomeMoveOrder]:
    """What nodes are asked about homes now."""
    home_moves.sweep()
    return [messages.load(message.kwargs["order"], HomeMoveOrder) for message in sent.take("node.move_home")]


def answer(given: HomeMoveOrder, *, mib: int = 100, failure: Failure | None = None) -> bool:
    """The node has done at once what it was asked, or could not."""
    fetched = {"phase": MovePhase.PLACED, "bytes_done": mib << 20, "bytes_total": mib << 20}
    said = fetched if given.do is MoveCommand.FETCH and failure is None else {}
    return home_moves.apply(
        HomeMoved(given.move, given.lease, given.do, done=failure is None, failure=failure, **said)
    )


def finish_moves(sent: Broker) -> None:
    """All moves go through to their end, old copies included, and what waited for them starts."""
    while given := orders(sent):
        for order in given:
            answer(order)
    reconcile_waiting()


def reconcile_waiting() -> None:
    """What the sweep does for starts that wait for their home and are due."""
    waiting = Workspace.objects.filter(
        state=State.PROVISIONING, home_move_began_at__isnull=False, home_move_ended_at=None
    )
    for workspace_id in waiting.values_list("pk", flat=True):
        reconcile.reconcile(workspace_id)


def lose_all(sent: Broker) -> None:
    """Nothing that was sent arrives, and the time of all commands is over."""
    sent.take()
    HomeMove.objects.exclude(lease="").update(lease_expires_at=timezone.now(), next_at=timezone.now())
