"""Capacity that is lost until an operator decides: GPUs that are bad or gone, nodes and pools that are away.

What an operator has cordoned is decided, and no trouble any more.
"""

from __future__ import annotations

from django.db.models import DateTimeField, Exists, OuterRef, Q, QuerySet, Subquery
from django.db.models.functions import Coalesce

from portal.common.events.kinds import AuditKind
from portal.common.events.models import Event, TargetKind
from portal.fleet.inventory.device_states import FOUND_BAD, flag
from portal.fleet.inventory.models import (
    AllocatedDevice,
    Allocation,
    CordonCause,
    Device,
    Node,
    Pool,
    PoolState,
)
from portal.people.accounts.models import User
from provisioning.types import DeviceKind

_DEVICE_TROUBLES = (AuditKind.DEVICE_CORDONED, AuditKind.DEVICE_ILL, AuditKind.DEVICE_DISAPPEARED)


def _seen_by(actor: User) -> Q:
    return Q() if actor.operates else Q(pk__in=[])


def lost_devices(actor: User) -> QuerySet[Device]:
    """GPUs and instances in trouble, on nodes that are online; nothing for who runs no pools.

    An instance of such a GPU is not named.
    """
    gone = Q(present=False) & ~Q(kind=DeviceKind.MIG.value)
    trouble = FOUND_BAD & Q(present=True) | gone
    decided = Q(cordoned=True, cordon_cause=CordonCause.OPERATOR) | Q(node__cordoned=True)
    its_gpu = Device.objects.filter(FOUND_BAD, uuid=OuterRef("parent_uuid"), node=OuterRef("node"))
    return (
        Device.objects.filter(
            trouble & ~decided & _seen_by(actor),
            node__online=True,
            node__pool__enabled=True,
        )
        .exclude(node__pool__state=PoolState.UNREACHABLE)
        .exclude(~Q(parent_uuid="") & Q(Exists(its_gpu)))
    )


def devices(actor: User) -> QuerySet[Device]:
    """The `lost_devices`, with `since` (when it was found) and `held` (a workspace has it)."""
    found = Event.objects.filter(
        targets__kind=TargetKind.DEVICE, targets__key=OuterRef("uuid"), kind__in=_DEVICE_TROUBLES
    )
    return (
        lost_devices(actor)
        .annotate(
            since=Coalesce(
                Subquery(found.order_by("-id").values("at")[:1]),
                "node__seen_at",
                "node__pool__created_at",
                output_field=DateTimeField(),
            ),
            held=flag(Q(Exists(AllocatedDevice.objects.filter(device=OuterRef("pk"), active=True)))),
        )
        .select_related("node", "node__pool")
        .order_by("pk")
    )


def lost_nodes(actor: User) -> QuerySet[Node]:
    """Nodes that are offline in pools that answer; nothing for who runs no pools."""
    away = Node.objects.filter(_seen_by(actor), online=False, cordoned=False, pool__enabled=True)
    return away.exclude(pool__state=PoolState.UNREACHABLE)


def nodes(actor: User) -> QuerySet[Node]:
    """The `lost_nodes`, with `since` and `held` as `devices` has them."""
    return (
        lost_nodes(actor)
        .annotate(
            since=Coalesce("seen_at", "pool__created_at"),
            held=flag(Q(Exists(Allocation.objects.filter(node=OuterRef("pk"), released_at=None)))),
        )
        .select_related("pool")
        .order_by("pk")
    )


def lost_pools(actor: User) -> QuerySet[Pool]:
    """Pools whose driver does not answer; nothing for who runs no pools."""
    return Pool.objects.filter(_seen_by(actor), enabled=True, state=PoolState.UNREACHABLE)


def pools(actor: User) -> QuerySet[Pool]:
    """The `lost_pools`, with `since` and `held` as `devices` has them."""
    return (
        lost_pools(actor)
        .annotate(
            since=Coalesce("inventory_at", "created_at"),
            held=flag(Q(Exists(Allocation.objects.filter(node__pool=OuterRef("pk"), released_at=None)))),
        )
        .order_by("pk")
    )
