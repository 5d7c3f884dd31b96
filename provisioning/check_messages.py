"""What the two planes tell each other about GPU checks, scrubs, resets and changes of MIG layouts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any

from msgspec import Meta

from provisioning.gpu.check.types import Meeting
from provisioning.types import Failure, MigRepartition, Name, PoolConfig, Text, Word

CHECK = "check"
SCRUB = "scrub"
REPARTITION = "repartition"
RESET = "reset"
PAIR = "pair"


@dataclass(frozen=True, slots=True)
class CheckCommand:
    """Check, scrub or reset one device, or change its MIG layout (`change`).

    It begins before `expires_at` (unix time) or not at all.

    `run` and `lease` come back with every answer. `deadline_s` bounds the whole from its beginning.
    `baseline` and `node_median` are figures by name, measured with the software `baseline_of`;
    `baseline_mib` is what a clean device had free. `bus` is the device's PCI address, where it is known.
    `peers` are UUIDs of idle devices that a check may measure its links to. `meeting`, with the kind `pair`:
    the link to another node is checked, which has a command with the same place.
    """

    kind: str
    run: str
    lease: str
    pool: PoolConfig
    uuid: str
    level: str
    expires_at: float
    deadline_s: float
    baseline: Mapping[str, float] = field(default_factory=dict)
    node_median: Mapping[str, float] = field(default_factory=dict)
    baseline_of: str = ""
    baseline_mib: int | None = None
    change: MigRepartition | None = None
    bus: str = ""
    peers: tuple[str, ...] = ()
    meeting: Meeting | None = None


@dataclass(frozen=True, slots=True)
class CheckAnswer:
    """How it ended: a check's `report` in the published schema, the result of the others, or a failure."""

    kind: Word
    run: Name
    lease: Name
    uuid: Name
    report: dict[str, Any] | None = None
    failure: Failure | None = None


@dataclass(frozen=True, slots=True)
class Repartitioned:
    """What a change of a MIG layout came to: the UUIDs made, in the order asked, or what was not clean."""

    created: Annotated[tuple[Name, ...], Meta(max_length=64)] = ()
    unclean: Annotated[tuple[Name, ...], Meta(max_length=64)] = ()
    text: Text = ""


@dataclass(frozen=True, slots=True)
class DeviceError:
    """An XID that a node has seen: the device's PCI address without function, the kernel's line if any."""

    slot: Word
    xid: Annotated[int, Meta(ge=0, le=9999)]
    line: Text = ""


@dataclass(frozen=True, slots=True)
class DeviceErrors:
    """What a node's watcher tells, of devices of its own alone."""

    pool: Annotated[str, Meta(max_length=120)]
    node: Name
    errors: Annotated[tuple[DeviceError, ...], Meta(max_length=64)]
