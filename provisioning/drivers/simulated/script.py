"""Configuration of a simulated pool and its faults, read from `PoolConfig.config`.

Every setting is optional. A *selector* is a share from 0 to 1, `true`, or comma-separated names of
workspaces (display or external names). Shares are drawn from `seed`, the workspace's external name and
the number of calls for it, so that runs are reproducible.

========================  =======================================================================
setting                   meaning
========================  =======================================================================
`nodes`                   number of nodes (1), named sim-001, sim-002, …
`gpus`                    devices per node (8)
`model`                   any name; "H100" is reported as "Simulated H100"
`gpu_memory_mib`          memory of a device; the default depends on the model
`mig`                     initial MIG instances of each device, like 1g.10gb@0, 3g.40gb@4 (none)
`cpu_milli`               per node (128000)
`memory_mib`              per node (1048576)
`disk_mib`                per node (4194304)
`state`                   folder of the pool's state (`$BERTH_HOME/simulated/<slug>`)
`seed`                    seed of all shares (0)
`start_delay_s`           from the start to RUNNING (0)
`stop_delay_s`            from the request to STOPPED or ABSENT (0)
`call_delay_ms`           latency of each call (0)
`unavailable`             true: the backend never answers
`fail_starts`             selector: the start fails with `StartFailed`
`refuse_capacity`         selector: the start is refused with `NoCapacity` despite free capacity
`refuse_repartitions`     true: devices refuse any other MIG layout
`lose_replies`            selector: start, stop and delete succeed, but the answer is lost
`never_ready`             selector: the app never answers; FAILED after its start timeout
`crash_after_s`           the app exits this long after the start (never)
`crash_exit_code`         its exit code (1)
`crashes`                 selector: the workspaces that `crash_after_s` applies to (all)
`vanish_nodes`            comma-separated names of nodes that go offline
`vanish_after_s`          time from the pool's first use until they go offline (0)
`vanish_for_s`            how long they stay offline; 0 means forever (0)
`check_s`                 duration of a check or scrub (0)
`fault_ecc`               comma-separated devices like sim-001:0: uncorrectable ECC errors grow
`fault_xid79`             devices that fall off the bus during a check
`fault_hang`              devices on which a test never ends (it times out after `check_s`)
`fault_slow_memory`       devices with slow memory: degraded
`fault_slow_joint`        devices that slow down while all GPUs of the node are busy: degraded
`fault_leak`              devices with memory that is never released
`fault_vanish`            devices missing from inventory
`fault_from_s`            time from the pool's first use until faults begin (0)
`fault_for_s`             how long faults last; 0 means forever (0)
========================  =======================================================================
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import ClassVar

from provisioning.drivers.simulated import mig_profiles
from provisioning.simulation.settings import (
    MAX_CALL_DELAY_MS,
    MAX_GPUS,
    MAX_NODES,
    NO_WORKSPACES,
    Selector,
    Settings,
    SettingsReader,
    invalid_setting,
    memory_of_model,
    model_of,
)
from provisioning.types import MigSlice


@dataclass(frozen=True, slots=True)
class Topology:
    """The simulated hardware. All nodes are identical."""

    nodes: int = 1
    gpus: int = 8
    model: str = "H100"
    gpu_memory_mib: int = memory_of_model("H100")
    cpu_milli: int = 128_000
    memory_mib: int = 1_048_576
    disk_mib: int = 4_194_304
    layout: tuple[MigSlice, ...] = ()
    refuse_repartitions: bool = False

    KEYS: ClassVar[tuple[str, ...]] = (
        "nodes",
        "gpus",
        "model",
        "gpu_memory_mib",
        "cpu_milli",
        "memory_mib",
        "disk_mib",
        "mig",
        "refuse_repartitions",
    )

    @property
    def reported_model(self) -> str:
        """Model name in inventory, marked as simulated."""
        return f"Simulated {self.model}"

    @classmethod
    def parse(cls, config: Settings) -> Topology:
        """Parse the nodes and GPUs of a pool's configuration. Raises `InvalidConfig`."""
        reader = SettingsReader(config)
        model = model_of(reader)
        gpu_memory_mib = reader.integer("gpu_memory_mib", memory_of_model(model), 1, 2**31)
        layout = mig_profiles.parse(reader.text("mig", ""), gpu_memory_mib)
        if layout is None:
            profiles = ", ".join(mig_profiles.profiles(gpu_memory_mib))
            raise invalid_setting("mig", f"a legal layout of {profiles}, like 1g.10gb@0", config.get("mig"))
        return cls(
            nodes=reader.integer("nodes", 1, 1, MAX_NODES),
            gpus=reader.integer("gpus", 8, 0, MAX_GPUS),
            model=model,
            gpu_memory_mib=gpu_memory_mib,
            cpu_milli=reader.integer("cpu_milli", 128_000, 1, 2**31),
            memory_mib=reader.integer("memory_mib", 1_048_576, 1, 2**40),
            disk_mib=reader.integer("disk_mib", 4_194_304, 0, 2**50),
            layout=layout,
            refuse_repartitions=reader.flag("refuse_repartitions"),
        )


@dataclass(frozen=True, slots=True)
class Script:
    """Behaviour of the pool; by default fast and without failures."""

    seed: int = 0
    start_delay_s: float = 0.0
    stop_delay_s: float = 0.0
    call_delay_ms: int = 0
    unavailable: bool = False
    fail_starts: Selector = NO_WORKSPACES
    refuse_capacity: Selector = NO_WORKSPACES
    lose_replies: Selector = NO_WORKSPACES
    never_ready: Selector = NO_WORKSPACES
    crash_after_s: float | None = None
    crash_exit_code: int = 1
    crashes: Selector = field(default_factory=lambda: Selector(share=1.0))
    vanish_nodes: frozenset[str] = frozenset()
    vanish_after_s: float = 0.0
    vanish_for_s: float = 0.0

    KEYS: ClassVar[tuple[str, ...]] = (
        "seed",
        "start_delay_s",
        "stop_delay_s",
        "call_delay_ms",
        "unavailable",
        "fail_starts",
        "refuse_capacity",
        "lose_replies",
        "never_ready",
        "crash_after_s",
        "crash_exit_code",
        "crashes",
        "vanish_nodes",
        "vanish_after_s",
        "vanish_for_s",
    )

    @classmethod
    def parse(cls, config: Settings) -> Script:
        """Parse the timing of a pool's configuration. Raises `InvalidConfig`."""
        reader = SettingsReader(config)
        crash_after_s = None
        if config.get("crash_after_s") is not None:
            crash_after_s = reader.seconds("crash_after_s")
        return cls(
            seed=reader.integer("seed", 0, -(2**62), 2**62),
            start_delay_s=reader.seconds("start_delay_s"),
            stop_delay_s=reader.seconds("stop_delay_s"),
            call_delay_ms=reader.integer("call_delay_ms", 0, 0, MAX_CALL_DELAY_MS),
            unavailable=reader.flag("unavailable"),
            fail_starts=reader.selector("fail_starts"),
            refuse_capacity=reader.selector("refuse_capacity"),
            lose_replies=reader.selector("lose_replies"),
            never_ready=reader.selector("never_ready"),
            crash_after_s=crash_after_s,
            crash_exit_code=reader.integer("crash_exit_code", 1, -255, 255),
            crashes=reader.selector("crashes", 1.0),
            vanish_nodes=reader.names("vanish_nodes"),
            vanish_after_s=reader.seconds("vanish_after_s"),
            vanish_for_s=reader.seconds("vanish_for_s"),
        )

    def has_vanished(self, node: str, *, epoch: float, now: float) -> bool:
        """Return whether `node` is offline at `now`, in a pool first used at `epoch`."""
        if node not in self.vanish_nodes:
            return False
        away_from = epoch + self.vanish_after_s
        return now >= away_from and (not self.vanish_for_s or now < away_from + self.vanish_for_s)


@dataclass(frozen=True, slots=True)
class FaultyDevices:
    """Faulty devices as `node:index`, and when. `check_s` is the duration of a check."""

    check_s: float = 0.0
    ecc: frozenset[str] = frozenset()
    xid79: frozenset[str] = frozenset()
    hang: frozenset[str] = frozenset()
    slow_memory: frozenset[str] = frozenset()
    slow_joint: frozenset[str] = frozenset()
    leak: frozenset[str] = frozenset()
    vanish: frozenset[str] = frozenset()
    from_s: float = 0.0
    for_s: float = 0.0

    KINDS: ClassVar[tuple[str, ...]] = (
        "ecc", "xid79", "hang", "slow_memory", "slow_joint", "leak", "vanish",
    )  # fmt: skip
    KEYS: ClassVar[tuple[str, ...]] = (
        "check_s",
        "fault_from_s",
        "fault_for_s",
        *map("fault_{}".format, KINDS),
    )

    @classmethod
    def parse(cls, config: Settings) -> FaultyDevices:
        """Parse the faulty devices of a pool's configuration. Raises `InvalidConfig`."""
        reader = SettingsReader(config)
        devices: dict[str, frozenset[str]] = {}
        for kind in cls.KINDS:
            devices[kind] = reader.names(f"fault_{kind}")
            if not all(_DEVICE.fullmatch(name) for name in devices[kind]):
                expected = "devices like sim-001:0, separated by commas"
                raise invalid_setting(f"fault_{kind}", expected, config.get(f"fault_{kind}"))
        return cls(
            check_s=reader.seconds("check_s"),
            from_s=reader.seconds("fault_from_s"),
            for_s=reader.seconds("fault_for_s"),
            **devices,
        )

    @property
    def exist(self) -> bool:
        return any(getattr(self, kind) for kind in self.KINDS)

    def faults_of(self, node: str, index: int, *, epoch: float, now: float) -> frozenset[str]:
        """Return the faults of a device at `now`, in a pool first used at `epoch`."""
        begins = epoch + self.from_s
        if now < begins or (self.for_s and now >= begins + self.for_s):
            return frozenset()
        name = f"{node}:{index}"
        return frozenset(kind for kind in self.KINDS if name in getattr(self, kind))


_DEVICE = re.compile(r"[A-Za-z0-9-]+:\d{1,3}")
KNOWN_KEYS = frozenset((*Topology.KEYS, *Script.KEYS, *FaultyDevices.KEYS, "state"))
