"""Messages between the two planes about GPU checks, scrubs, resets and MIG layout changes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any

from msgspec import Meta

from provisioning.gpu.check.types import Rendezvous
from provisioning.types import Failure, MigRepartition, Name, PoolConfig, Text, Word

CHECK = "check"
SCRUB = "scrub"
REPARTITION = "repartition"
RESET = "reset"
PAIR = "pair"
JOINT = "joint"


@dataclass(frozen=True, slots=True)
class CheckCommand:
    """A command to check, scrub or reset one device, or to change its MIG layout (`change`).

    Not started after `expires_at` (Unix time). Every answer repeats `run` and `lease`. `deadline_s` limits
    the whole run. `baseline` and `node_median` are figures by name, measured with the software `baseline_of`;
    `baseline_mib` is the free memory of a clean device. `bus` is the device's PCI address, if known. `peers`
    are UUIDs of idle devices to which a check may measure its links. `meeting`, with the kind `pair`: check
    the link to another node, whose command has the same meeting. The kind `joint` checks the device and all
    `peers` under load at once.
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
    meeting: Rendezvous | None = None


@dataclass(frozen=True, slots=True)
class CheckAnswer:
    """Outcome: a check's `report` in the published schema, the result of other kinds, or a failure."""

    kind: Word
    run: Name
    lease: Name
    uuid: Name
    report: dict[str, Any] | None = None
    failure: Failure | None = None


@dataclass(frozen=True, slots=True)
class Repartitioned:
    """Result of a MIG layout change: new instances in requested order, or devices that were not clean."""

    created: Annotated[tuple[Name, ...], Meta(max_length=64)] = ()
    unclean: Annotated[tuple[Name, ...], Meta(max_length=64)] = ()
    text: Text = ""


@dataclass(frozen=True, slots=True)
class DeviceError:
    """An XID observed on a node: the device's PCI address without function, and the kernel's line if any."""

    slot: Word
    xid: Annotated[int, Meta(ge=0, le=9999)]
    line: Text = ""


@dataclass(frozen=True, slots=True)
class DeviceErrors:
    """Errors reported by a node's watcher about its own devices."""

    pool: Annotated[str, Meta(max_length=120)]
    node: Name
    errors: Annotated[tuple[DeviceError, ...], Meta(max_length=64)]
