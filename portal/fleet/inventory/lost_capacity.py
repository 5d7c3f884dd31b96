"""Lost capacity that needs a decision: failed or missing GPUs, offline nodes, unreachable pools.

Capacity cordoned by an operator is excluded, because the decision has been made.
"""

from __future__ import annotations

from django.db.models import DateTimeField, Exists, OuterRef, Q, QuerySet, Subquery
from django.db.models.functions import Coalesce

from portal.common.events.kinds import AuditKind
from portal.common.events.models import Event, TargetKind
from portal.fleet.inventory.contact import in_contact
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

_LOSS_EVENTS = (AuditKind.DEVICE_CORDONED, AuditKind.DEVICE_ILL, AuditKind.DEVICE_DISAPPEARED)


def _visible_to(actor: User) -> Q:
    return Q() if actor.operates else Q(pk__in=[])


def lost_devices(actor: User) -> QuerySet[Device]:
    """Return failed or missing devices on online nodes. Empty for users who are not operators.

    MIG instances of a failed GPU are not listed separately.
    """
    is_missing = Q(present=False) & ~Q(kind=DeviceKind.MIG.value)
    is_lost = FOUND_BAD & Q(present=True) | is_missing
    is_decided = Q(cordoned=True, cordon_cause=CordonCause.OPERATOR) | Q(node__cordoned=True)
    its_gpu = Device.objects.filter(FOUND_BAD, uuid=OuterRef("parent_uuid"), node=OuterRef("node"))
    return Device.objects.filter(
        is_lost & ~is_decided & _visible_to(actor), in_contact("node__"), node__pool__enabled=True
    ).exclude(~Q(parent_uuid="") & Q(Exists(its_gpu)))


def devices(actor: User) -> QuerySet[Device]:
    """Return `lost_devices` with `since` (time of detection) and `held` (allocated to a workspace)."""
    entries = Event.objects.filter(
        targets__kind=TargetKind.DEVICE, targets__key=OuterRef("uuid"), kind__in=_LOSS_EVENTS
    )
    return (
        lost_devices(actor)
        .annotate(
            since=Coalesce(
                Subquery(entries.order_by("-id").values("at")[:1]),
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
    """Return offline nodes in reachable pools. Empty for users who are not operators."""
    away = Node.objects.filter(_visible_to(actor), online=False, cordoned=False, pool__enabled=True)
    return away.exclude(pool__state=PoolState.UNREACHABLE)


def nodes(actor: User) -> QuerySet[Node]:
    """Return `lost_nodes` with `since` and `held`, as in `devices`."""
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
    """Return unreachable pools. Empty for users who are not operators."""
    return Pool.objects.filter(_visible_to(actor), enabled=True, state=PoolState.UNREACHABLE)


def pools(actor: User) -> QuerySet[Pool]:
    """Return `lost_pools` with `since` and `held`, as in `devices`."""
    return (
        lost_pools(actor)
        .annotate(
            since=Coalesce("inventory_at", "created_at"),
            held=flag(Q(Exists(Allocation.objects.filter(node__pool=OuterRef("pk"), released_at=None)))),
        )
        .order_by("pk")
    )
