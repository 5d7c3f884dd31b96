"""Homes in a pool with separate homes per machine, and moves between its machines."""

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
    """Put the home on this node with this measured size."""
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
    """Return the current home commands for nodes."""
    home_moves.sweep()
    return [messages.load(message.kwargs["order"], HomeMoveOrder) for message in sent.take("node.move_home")]


def answer(command: HomeMoveOrder, *, mib: int = 100, failure: Failure | None = None) -> bool:
    """Answer a command as completed at once, or as failed."""
    fetched = {"phase": MovePhase.PLACED, "bytes_done": mib << 20, "bytes_total": mib << 20}
    details = fetched if command.do is MoveCommand.FETCH and failure is None else {}
    return home_moves.apply(
        HomeMoved(command.move, command.lease, command.do, done=failure is None, failure=failure, **details)
    )


def finish_moves(sent: Broker) -> None:
    """Complete all moves, including removal of old copies, and start what waited for them."""
    while commands := orders(sent):
        for order in commands:
            answer(order)
    reconcile_waiting()


def reconcile_waiting() -> None:
    """Run the sweep for starts that wait for their home and are due."""
    waiting = Workspace.objects.filter(
        state=State.PROVISIONING, home_move_began_at__isnull=False, home_move_ended_at=None
    )
    for workspace_id in waiting.values_list("pk", flat=True):
        reconcile.reconcile(workspace_id)


def lose_all(sent: Broker) -> None:
    """Lose all sent messages and let all commands expire."""
    sent.take()
    HomeMove.objects.exclude(lease="").update(lease_expires_at=timezone.now(), next_at=timezone.now())
