"""The state of a device: one word for the map, the pages, REST, metrics and counts.

`with_state` is the only definition, as SQL; everything else reads its annotation. A new state is a member
of `DeviceState` (in order of precedence), a line of the ladder in `_state`, and a look in `LOOKS`.
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

from portal.fleet.inventory.models import AllocatedDevice, CordonCause, Device, PoolState
from portal.fleet.inventory.series import FRESH_S
from provisioning.types import WHOLE_DEVICE_MILLI, DeviceKind

IDLE_AFTER_S = 15 * 60
"""An allocated device that did nothing for so long is idle. What was not measured counts as used."""


class DeviceState(StrEnum):
    """The first that is true."""

    OFFLINE = "offline"
    FAILED = "failed"
    CORDONED = "cordoned"
    CHECKING = "checking"
    IDLE = "idle"
    SHARED = "shared"
    ALLOCATED = "allocated"
    FREE = "free"


OUT_OF_SERVICE = frozenset({DeviceState.OFFLINE, DeviceState.FAILED, DeviceState.CORDONED})
"""Nothing is placed there until somebody or something acts. A device under a check is in service."""
BUSY = frozenset({DeviceState.ALLOCATED, DeviceState.SHARED})
"""In use: allocated, wholly or in part, and not known to be idle."""
KNOWN = Q(present=True) | ~Q(kind=DeviceKind.MIG.value)
"""What is counted and shown: a GPU that its node lost is offline, an instance that is absent is dissolved."""


@dataclass(frozen=True, slots=True)
class StateLook:
    """How a state is shown: a word, an icon and a tone for badges, a glyph for the cells of the map."""

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
    DeviceState.CORDONED: StateLook(_("Cordoned"), "lock", "wait", "/"),
    DeviceState.FAILED: StateLook(_("Failed"), "circle-x", "bad", "×"),
    DeviceState.OFFLINE: StateLook(_("Offline"), "plug-connected-x", "bad", "?"),
}

_ACTIVE = AllocatedDevice.objects.filter(device=OuterRef("pk"), active=True)
UNSCRUBBED = Q(unscrubbed=True, mig_mode=False)
"""Nobody gets a part of it until everybody has left it and it was scrubbed (`gpu_checks.preflight`).

Of a GPU in MIG mode its instances are handed out, and each is scrubbed by itself."""
FOUND_BAD = Q(healthy=False) | Q(cordoned=True, cordon_cause__in=(CordonCause.CHECK, CordonCause.SCRUB))


def with_state(devices: QuerySet[Device], now: datetime) -> QuerySet[Any]:
    """These devices with, in the same query:

    - `state`, a value of `DeviceState`. An instance shares its GPU's troubles, a partitioned GPU that has
      none is as its instances are;
    - `used_milli`: how much of 1000 is allocated, None when nothing is;
    - `partitioned`: it has MIG instances. These are what is allocated and counted; the GPU is not;
    - `gpu_out`: it is an instance, and its GPU takes no work;
    - `kept_back`: it waits for everybody to leave it, and for a scrub. What of it is not held is not free.
    """
    its_gpu = Device.objects.filter(uuid=OuterRef("parent_uuid"), node=OuterRef("node"), present=True)
    held = _ACTIVE.order_by().values("device").annotate(milli=Sum("milli")).values("milli")
    trouble = Exists(its_gpu.filter(FOUND_BAD | Q(cordoned=True) | Q(checking=True)))
    return devices.annotate(
        used_milli=Subquery(held, output_field=IntegerField()),
        partitioned=flag(is_partitioned()),
        gpu_out=flag(_is_instance() & Q(trouble)),
        kept_back=flag(UNSCRUBBED),
        state=_state(its_gpu, now),
    )


def _parts() -> QuerySet[Device]:
    """The MIG instances of the GPU that the outer query is about."""
    return Device.objects.filter(parent_uuid=OuterRef("uuid"), node=OuterRef("node"), present=True)


def is_partitioned() -> Q:
    """Whether a device is a GPU with MIG instances."""
    return ~Q(kind=DeviceKind.MIG.value) & Q(Exists(_parts()))


def flag(where: Q) -> Case:
    """A condition as an annotation that is never NULL."""
    return Case(When(where, then=Value(True)), default=Value(False), output_field=BooleanField())


def _is_instance() -> Q:
    return Q(kind=DeviceKind.MIG.value) & ~Q(parent_uuid="")


def is_measured(now: datetime, of: str = "") -> Q:
    """Whether what the device does now is known; `of` is the path to it (`device__`)."""
    return Q(**{f"{of}series__newest_s__gte": int(now.timestamp()) - FRESH_S})


def is_idle(now: datetime, of: str = "") -> Q:
    """Whether it is known to have done nothing for long."""
    return is_measured(now, of) & Q(
        **{f"{of}series__idle_since_s__lte": F(f"{of}series__newest_s") - IDLE_AFTER_S}
    )


def _is_not_idle(now: datetime) -> Q:
    """The opposite, spelled out: in SQL what is not known is neither."""
    return (
        Q(series=None)
        | Q(series__idle_since_s=None)
        | Q(series__newest_s__lt=int(now.timestamp()) - FRESH_S)
        | Q(series__idle_since_s__gt=F("series__newest_s") - IDLE_AFTER_S)
    )


def _ladder(*steps: tuple[Q, DeviceState], default: Case | DeviceState) -> Case:
    """The first that holds. Databases look at the later ones only where they have to."""
    return Case(
        *(When(where, then=Value(state.value)) for where, state in steps),
        default=Value(default.value) if isinstance(default, DeviceState) else default,
        output_field=CharField(),
    )


def _state(its_gpu: QuerySet[Device], now: datetime) -> Case:
    def of_gpu(where: Q) -> Q:
        return _is_instance() & Q(Exists(its_gpu.filter(where)))

    own = _ladder(
        (~Q(Exists(_ACTIVE)) & UNSCRUBBED, DeviceState.CHECKING),
        (~Q(Exists(_ACTIVE)), DeviceState.FREE),
        (is_idle(now), DeviceState.IDLE),
        (Q(used_milli__gte=WHOLE_DEVICE_MILLI), DeviceState.ALLOCATED),
        default=DeviceState.SHARED,
    )
    unreachable = Q(node__pool__enabled=False) | Q(node__pool__state=PoolState.UNREACHABLE)
    return _ladder(
        (Q(present=False) | Q(node__online=False) | unreachable, DeviceState.OFFLINE),
        (FOUND_BAD | of_gpu(FOUND_BAD), DeviceState.FAILED),
        (Q(cordoned=True) | Q(node__cordoned=True) | of_gpu(Q(cordoned=True)), DeviceState.CORDONED),
        (Q(checking=True) | of_gpu(Q(checking=True)), DeviceState.CHECKING),
        default=Case(
            When(is_partitioned(), then=_state_of_parts(now)), default=own, output_field=CharField()
        ),
    )


def _state_of_parts(now: datetime) -> Case:
    """The state of a partitioned GPU without trouble of its own: that of its least available instance."""
    out = FOUND_BAD | Q(cordoned=True) | Q(checking=True)
    unheld = ~Q(Exists(_ACTIVE))

    def some(where: Q) -> Q:
        return Q(Exists(_parts().filter(where)))

    return _ladder(
        (some(~unheld) & some(unheld), DeviceState.SHARED),
        (~some(unheld) & ~some(_is_not_idle(now)), DeviceState.IDLE),
        (~some(unheld), DeviceState.ALLOCATED),
        (some(~out), DeviceState.FREE),
        (some(FOUND_BAD), DeviceState.FAILED),
        (some(Q(cordoned=True)), DeviceState.CORDONED),
        default=DeviceState.CHECKING,
    )
