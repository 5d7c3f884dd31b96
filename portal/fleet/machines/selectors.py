"""Queries for machines visible to the actor."""

from __future__ import annotations

from collections.abc import Iterable
from uuid import UUID

from django.conf import settings
from django.db.models import Count, F, IntegerField, OuterRef, QuerySet, Subquery
from django.db.models.functions import Coalesce
from django.http import HttpRequest
from django.utils import timezone

from portal.common.errors import NotFound
from portal.common.reasons.reason import Reason
from portal.fleet.inventory.contact import in_contact
from portal.fleet.inventory.device_states import flag
from portal.fleet.inventory.models import Allocation, Node, Pool
from portal.fleet.machines import door, policies
from portal.fleet.machines.codes import MachineCode
from portal.fleet.machines.models import JoinToken, Machine, MachineState
from portal.people.accounts.models import User

_NODE = Node.objects.filter(pool=OuterRef("pool"), name=OuterRef("name"))
_PLACED = (
    Allocation.objects.filter(
        node__pool=OuterRef("pool"), node__name=OuterRef("name"), released_at__isnull=True
    )
    .order_by()
    .values("node")
    .annotate(count=Count("workspace", distinct=True))
    .values("count")
)


def machines_with_nodes() -> QuerySet[Machine]:
    """Return machines with `node_id`, `online`, `cordoned`, `seen_at` and `placed` of their nodes."""
    return (
        Machine.objects.select_related("pool")
        .annotate(
            node_id=Subquery(_NODE.values("pk")[:1]),
            online=Subquery(_NODE.annotate(heard=flag(in_contact())).values("heard")[:1]),
            cordoned=Subquery(_NODE.values("cordoned")[:1]),
            seen_at=Subquery(_NODE.values("seen_at")[:1]),
            placed=Coalesce(Subquery(_PLACED, output_field=IntegerField()), 0),
        )
        .order_by("name")
    )


def machines(actor: User) -> QuerySet[Machine]:
    """Return all machines with the state of their nodes. Raises `NotAllowed`."""
    policies.require_see(actor)
    return machines_with_nodes()


def machine(actor: User, machine_id: UUID) -> Machine:
    """Return one machine. Raises `NotFound` and `NotAllowed`."""
    row = machines(actor).filter(pk=machine_id).first()
    if row is None:
        raise NotFound(Reason(MachineCode.NO_SUCH_MACHINE))
    return row


def machines_by_node(pool: Pool, names: Iterable[str]) -> dict[str, Machine]:
    """Return the machines of nodes of the pool, by name. Visible to all users."""
    return {machine.name: machine for machine in machines_with_nodes().filter(pool=pool, name__in=names)}


def machine_of_workspace(workspace_id: UUID, pool_id: UUID | None) -> Machine | None:
    """Return the machine on which a workspace is placed, or None for a node that did not join."""
    placed = Allocation.objects.filter(workspace=workspace_id, released_at=None).values("node__name")
    return Machine.objects.filter(pool=pool_id, name__in=placed).first()


def machine_of_node(pool: Pool, node: str) -> Machine | None:
    """Return the machine of a node, or None for a node that did not join."""
    return Machine.objects.filter(pool=pool, name=node).first()


def is_from_revoked_machine(request: HttpRequest) -> bool:
    """Return whether a request through the nodes' door comes from a machine that is no longer trusted."""
    name = requesting_node(request)
    return name is not None and not Machine.objects.filter(name=name, state=MachineState.ACTIVE).exists()


def requesting_node(request: HttpRequest) -> str | None:
    """Return the node that sent a request through the nodes' door, or None for other requests."""
    if not door.is_door_credential(request.headers.get(door.DOOR_HEADER, ""), settings.BERTH_GATEWAY_SECRET):
        return None
    return str(request.headers.get(door.NODE_HEADER, ""))


def waiting_tokens(actor: User, pool: Pool) -> QuerySet[JoinToken]:
    """Return valid, unused join tokens of the pool. Raises `NotAllowed`."""
    policies.require_see(actor)
    waiting = JoinToken.objects.filter(pool=pool, used_at=None, expires_at__gt=timezone.now())
    return waiting.select_related("created_by").order_by(F("created_at").desc(), "pk")
