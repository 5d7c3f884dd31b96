"""State of a device, as used by the map, pages, REST, metrics and counts.

`annotate_state` is the only definition, in SQL; everything else reads its annotation. To add a state, add a
member to `DeviceState` (in order of precedence), a branch in `_state`, and a look in `LOOKS`.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any

from django.db.models import (
    BooleanField,
    Case,
    CharField,
    Exists,
    F,
    IntegerField,
    OuterRef,
    Q,
    QuerySet,
    Subquery,
    Sum,
    Value,
    When,
)
from django.utils.functional import Promise
from django.utils.translation import gettext_lazy as _

from portal.fleet.inventory.contact import in_contact
from portal.fleet.inventory.maintenance_state import is_active
from portal.fleet.inventory.models import AllocatedDevice, CordonCause, Device
from portal.fleet.inventory.series import FRESH_S
from provisioning.types import WHOLE_DEVICE_MILLI, DeviceKind

IDLE_AFTER_S = 15 * 60
"""Seconds without activity after which an allocated device is idle. Unmeasured time counts as use."""


class DeviceState(StrEnum):
    """States in order of precedence: the first that applies.

    Devices of a silent node keep their last known state if they are failed, cordoned or held.
    """

    OFFLINE = "offline"
    FAILED = "failed"
    CORDONED = "cordoned"
    CHECKING = "checking"
    MAINTENANCE = "maintenance"
    IDLE = "idle"
    SHARED = "shared"
    ALLOCATED = "allocated"
    FREE = "free"


OUT_OF_SERVICE = frozenset({DeviceState.OFFLINE, DeviceState.FAILED, DeviceState.CORDONED})
"""States without placement until somebody acts. Devices under check or in maintenance are in service."""
BUSY = frozenset({DeviceState.ALLOCATED, DeviceState.SHARED})
"""In use: allocated, fully or partly, and not known to be idle."""
KNOWN = Q(present=True) | ~Q(kind=DeviceKind.MIG.value)
"""Devices that are counted and shown. A missing GPU is offline, but a missing MIG instance was destroyed."""


@dataclass(frozen=True, slots=True)
class StateLook:
    """How a state is displayed: word, icon and tone for badges, glyph for cells of the map."""

    word: str | Promise
    icon: str
    tone: str
    glyph: str


LOOKS: dict[DeviceState, StateLook] = {
    DeviceState.ALLOCATED: StateLook(_("In use"), "player-play", "busy", "●"),
    DeviceState.IDLE: StateLook(_("Idle"), "player-pause", "wait", "z"),
    DeviceState.SHARED: StateLook(_("Shared"), "circle-half-2", "busy", "◐"),
    DeviceState.FREE: StateLook(_("Free"), "circle-check", "ok", ""),
    DeviceState.CHECKING: StateLook(_("Being checked"), "shield-check", "busy", "✓"),
    DeviceState.MAINTENANCE: StateLook(_("Maintenance"), "settings", "wait", "m"),
    DeviceState.CORDONED: StateLook(_("Cordoned"), "lock", "wait", "/"),
    DeviceState.FAILED: StateLook(_("Failed"), "circle-x", "bad", "×"),
    DeviceState.OFFLINE: StateLook(_("Offline"), "plug-connected-x", "bad", "?"),
}

_ACTIVE = AllocatedDevice.objects.filter(device=OuterRef("pk"), active=True)
UNSCRUBBED = Q(unscrubbed=True, mig_mode=False)
"""Not allocatable until all users have left and it was scrubbed (`gpu_checks.preflight`).

In MIG mode instances are allocated and scrubbed individually.
"""
FOUND_BAD = Q(healthy=False) | Q(cordoned=True, cordon_cause__in=(CordonCause.CHECK, CordonCause.SCRUB))


def annotate_state(devices: QuerySet[Device], now: datetime) -> QuerySet[Any]:
    """Annotate devices, in the same query, with:

    - `state`: a value of `DeviceState`. A MIG instance inherits problems of its GPU. A partitioned GPU
      without problems of its own has the state of its instances;
    - `used_milli`: allocated part of 1000, or None;
    - `heard`: its node and pool report. Otherwise the state is the last known one, and nothing starts there;
    - `partitioned`: it has MIG instances, which are allocated and counted instead of the GPU;
    - `gpu_out`: it is a MIG instance whose GPU takes no work;
    - `closed`: its pool is in maintenance. Its unallocated part is not free;
    - `kept_back`: it waits for all users to leave and for a scrub. Its unallocated part is not free.
    """
    its_gpu = Device.objects.filter(uuid=OuterRef("parent_uuid"), node=OuterRef("node"), present=True)
    allocated = _ACTIVE.order_by().values("device").annotate(milli=Sum("milli")).values("milli")
    gpu_problem = Exists(its_gpu.filter(FOUND_BAD | Q(cordoned=True) | Q(checking=True)))
    return devices.annotate(
        used_milli=Subquery(allocated, output_field=IntegerField()),
        heard=flag(in_contact("node__")),
        partitioned=flag(is_partitioned()),
        gpu_out=flag(_is_instance() & Q(gpu_problem)),
        kept_back=flag(UNSCRUBBED),
        closed=flag(Q(is_active(now, "node__pool"))),
        state=_state(its_gpu, now),
    )


def _instances() -> QuerySet[Device]:
    """Return the MIG instances of the GPU in the outer query."""
    return Device.objects.filter(parent_uuid=OuterRef("uuid"), node=OuterRef("node"), present=True)


def is_partitioned() -> Q:
    """Return the condition that the device is a GPU with MIG instances."""
    return ~Q(kind=DeviceKind.MIG.value) & Q(Exists(_instances()))


def flag(where: Q) -> Case:
    """Return a condition as an annotation that is never NULL."""
    return Case(When(where, then=Value(True)), default=Value(False), output_field=BooleanField())


def _is_instance() -> Q:
    return Q(kind=DeviceKind.MIG.value) & ~Q(parent_uuid="")


def is_measured(now: datetime, of: str = "") -> Q:
    """Return the condition that the device has a recent measurement. `of` is a lookup prefix (`device__`)."""
    return Q(**{f"{of}series__newest_s__gte": int(now.timestamp()) - FRESH_S})


def is_idle(now: datetime, of: str = "") -> Q:
    """Return the condition that measurements show no activity for `IDLE_AFTER_S`."""
    return is_measured(now, of) & Q(
        **{f"{of}series__idle_since_s__lte": F(f"{of}series__newest_s") - IDLE_AFTER_S}
    )


def _is_not_idle(now: datetime) -> Q:
    """Return the negation of `is_idle`, spelled out because NOT NULL is NULL in SQL."""
    return (
        Q(series=None)
        | Q(series__idle_since_s=None)
        | Q(series__newest_s__lt=int(now.timestamp()) - FRESH_S)
        | Q(series__idle_since_s__gt=F("series__newest_s") - IDLE_AFTER_S)
    )


def _ladder(*steps: tuple[Q, Case | DeviceState], default: Case | DeviceState) -> Case:
    """Return the state of the first condition that is true. Later conditions are evaluated only if needed.

    Each condition costs time in Django too, so these expressions are nested and contain each condition only
    once.
    """
    return Case(
        *(When(where, then=_value(state)) for where, state in steps),
        default=_value(default),
        output_field=CharField(),
    )


def _value(state: Case | DeviceState) -> Case | Value:
    return Value(state.value) if isinstance(state, DeviceState) else state


def _state(its_gpu: QuerySet[Device], now: datetime) -> Case:
    def of_gpu(where: Q) -> Q:
        return _is_instance() & Q(Exists(its_gpu.filter(where)))

    closed = Q(is_active(now, "node__pool"))
    in_use = _ladder(
        (is_idle(now), DeviceState.IDLE),
        (Q(used_milli__gte=WHOLE_DEVICE_MILLI), DeviceState.ALLOCATED),
        default=DeviceState.SHARED,
    )
    unused = _ladder(
        (UNSCRUBBED, DeviceState.CHECKING), (closed, DeviceState.MAINTENANCE), default=DeviceState.FREE
    )
    own = _ladder((Q(Exists(_ACTIVE)), in_use), default=unused)
    held = Q(Exists(_ACTIVE)) | Q(Exists(_instances().filter(Exists(_ACTIVE))))
    silent = ~in_contact("node__")
    return _ladder(
        (Q(present=False) | Q(node__pool__enabled=False), DeviceState.OFFLINE),
        (FOUND_BAD | of_gpu(FOUND_BAD), DeviceState.FAILED),
        (Q(cordoned=True) | Q(node__cordoned=True) | of_gpu(Q(cordoned=True)), DeviceState.CORDONED),
        # Allocated devices keep their last known state while there is no contact; all other devices are
        # unusable.
        (silent & ~held, DeviceState.OFFLINE),
        (~silent & (Q(checking=True) | of_gpu(Q(checking=True))), DeviceState.CHECKING),
        (is_partitioned(), _state_of_instances(now)),
        default=own,
    )


def _state_of_instances(now: datetime) -> Case:
    """Return the state of a partitioned GPU without own problems: that of its least available instance."""
    out = FOUND_BAD | Q(cordoned=True) | Q(checking=True)
    unheld = ~Q(Exists(_ACTIVE))

    def any_instance(where: Q) -> Q:
        return Q(Exists(_instances().filter(where)))

    in_use = _ladder((any_instance(_is_not_idle(now)), DeviceState.ALLOCATED), default=DeviceState.IDLE)
    available = _ladder((Q(is_active(now, "node__pool")), DeviceState.MAINTENANCE), default=DeviceState.FREE)
    unused = _ladder(
        (any_instance(~out), available),
        (any_instance(FOUND_BAD), DeviceState.FAILED),
        (any_instance(Q(cordoned=True)), DeviceState.CORDONED),
        default=DeviceState.CHECKING,
    )
    partly_used = _ladder((any_instance(~unheld), DeviceState.SHARED), default=unused)
    return _ladder((any_instance(unheld), partly_used), default=in_use)
