"""What state a device is in, in one word each: the map, the device's page and the API say the same."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from enum import StrEnum

from portal.inventory.models import CordonCause
from provisioning.types import WHOLE_DEVICE_MILLI

IDLE_AFTER_S = 15 * 60
"""A held device that did nothing for so long is idle. What was not measured counts as used."""


class DeviceState(StrEnum):
    """The worst thing that can be said of it comes first."""

    GONE = "gone"
    FAILED = "failed"
    CORDONED = "cordoned"
    CHECKING = "checking"
    IDLE = "idle"
    SHARED = "shared"
    ALLOCATED = "allocated"
    FREE = "free"


OUT = frozenset({DeviceState.GONE, DeviceState.FAILED, DeviceState.CORDONED, DeviceState.CHECKING})
HELD = frozenset({DeviceState.IDLE, DeviceState.SHARED, DeviceState.ALLOCATED})


@dataclass(frozen=True, slots=True)
class StateLook:
    """How a state is shown: a word, an icon and a tone for badges, a glyph for the cells of the map."""

    word: str
    icon: str
    tone: str
    glyph: str


LOOKS: dict[DeviceState, StateLook] = {
    DeviceState.ALLOCATED: StateLook("In use", "player-play", "busy", "●"),
    DeviceState.IDLE: StateLook("Held, idle", "player-pause", "wait", "z"),
    DeviceState.SHARED: StateLook("Shared", "circle-half-2", "busy", "◐"),
    DeviceState.FREE: StateLook("Free", "circle-check", "ok", ""),
    DeviceState.CHECKING: StateLook("Being checked", "shield-check", "busy", "✓"),
    DeviceState.CORDONED: StateLook("Cordoned", "lock", "wait", "/"),
    DeviceState.FAILED: StateLook("Failed", "circle-x", "bad", "×"),
    DeviceState.GONE: StateLook("Gone", "plug-connected-x", "bad", "?"),
}


def with_its_gpu(state: DeviceState, gpu: DeviceState) -> DeviceState:
    """The state of an instance, whose GPU's troubles are its own."""
    if gpu not in (DeviceState.FAILED, DeviceState.CORDONED):
        return state
    return min(state, gpu, key=list(DeviceState).index)


def together(parts: Collection[DeviceState]) -> DeviceState:
    """The state of a split GPU that works, by those of its instances (at least one)."""
    held = [state for state in parts if state in HELD]
    if not held:
        first = next(iter(parts))
        return first if set(parts) == {first} else DeviceState.FREE
    if len(held) < len(parts):
        return DeviceState.SHARED
    return DeviceState.IDLE if set(held) == {DeviceState.IDLE} else DeviceState.ALLOCATED


def state_of(
    *,
    present: bool,
    online: bool,
    healthy: bool,
    cordoned: bool,
    cordon_cause: str,
    node_cordoned: bool,
    checking: bool,
    taken_milli: int,
    idle_s: int,
) -> DeviceState:
    """The state of one device; `taken_milli` of 1000 are held, `idle_s` is how long nothing used it."""
    if not present or not online:
        return DeviceState.GONE
    if not healthy or (cordoned and cordon_cause in (CordonCause.CHECK, CordonCause.SCRUB)):
        return DeviceState.FAILED
    if cordoned or node_cordoned:
        return DeviceState.CORDONED
    if checking:
        return DeviceState.CHECKING
    if not taken_milli:
        return DeviceState.FREE
    if idle_s >= IDLE_AFTER_S:
        return DeviceState.IDLE
    return DeviceState.ALLOCATED if taken_milli >= WHOLE_DEVICE_MILLI else DeviceState.SHARED
