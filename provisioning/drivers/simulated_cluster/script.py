"""Configuration of a simulated cluster, read from `PoolConfig.config`.

Every setting is optional. A *selector* is a share from 0 to 1, `true`, or comma-separated names of
workspaces, as in a simulated pool.

========================  =======================================================================
setting                   meaning
========================  =======================================================================
`nodes`                   number of nodes (1), named clu-001, clu-002, …
`gpus`                    GPUs per node (8)
`model`                   any name; "H100" is reported as "Simulated H100"
`gpu_memory_mib`          memory of a GPU; the default depends on the model
`cpu_milli`               per node (128000)
`memory_mib`              per node (1048576)
`disk_mib`                per node (4194304)
`state`                   folder of the pool's state (`$BERTH_HOME/simulated_cluster/<slug>`)
`seed`                    seed of all shares (0)
`start_delay_s`           from the engine's start to RUNNING (0); FAILED at the app's start timeout
`stop_delay_s`            from the request to STOPPED or ABSENT (0); queued workspaces end at once
`call_delay_ms`           latency of each call (0)
`unavailable`             true: the engine never answers
`lose_replies`            selector: start, stop and delete succeed, but the answer is lost
`crash_after_s`           the app exits this long after the engine's start (never)
`crash_exit_code`         its exit code (1)
`time_limit_s`            the engine ends workspaces this long after their start; 0 means never (0)
`requeue_after_s`         the engine preempts each workspace once, this long after its start, and queues
                          it at the end; 0 means never (0)
`requeue`                 selector: the workspaces that `requeue_after_s` applies to (all)
`others_gpus`             GPUs of one job of others, on one node; 0 means no such jobs (0)
`others_every_s`          time between their arrivals from the pool's first use; 0 means none (0)
`others_for_s`            duration of such a job; 0 means forever (600)
`others_first`            number of such jobs at the pool's first use (0)
========================  =======================================================================
"""

from __future__ import annotations

import re
from dataclasses import dataclass, fields

from provisioning.simulation.settings import (
    MAX_CALL_DELAY_MS,
    MAX_GPUS,
    NO_WORKSPACES,
    Selector,
    Settings,
    SettingsReader,
    invalid_setting,
    memory_of_model,
    model_of,
)

MAX_NODES = 1000
MAX_OTHERS_FIRST = 1000
OTHERS_FOR_S = 600.0
MIN_OTHERS_EVERY_S = 1.0
MAX_UNIT_MODEL_LENGTH = 24
"""Keeps device names below the 80 characters that a pool's inventory allows."""


@dataclass(frozen=True, slots=True)
class Hardware:
    """The simulated nodes. All are identical."""

    nodes: int = 1
    gpus: int = 8
    model: str = "H100"
    gpu_memory_mib: int = memory_of_model("H100")
    cpu_milli: int = 128_000
    memory_mib: int = 1_048_576
    disk_mib: int = 4_194_304

    @property
    def reported_model(self) -> str:
        """Model name in inventory, marked as simulated."""
        return f"Simulated {self.model}"

    def node(self, index: int) -> str:
        """Return the name of a node by its index, starting from 0."""
        return f"clu-{index + 1:03d}"

    def unit(self, index: int) -> str:
        """Return the name of a GPU on its node, such as `h100/3`."""
        model = re.sub(r"[^a-z0-9]+", "-", self.model.lower()).strip("-")[:MAX_UNIT_MODEL_LENGTH]
        return f"{model or 'gpu'}/{index}"

    @classmethod
    def parse(cls, config: Settings) -> Hardware:
        """Parse the nodes of a pool's configuration. Raises `InvalidConfig`."""
        reader = SettingsReader(config)
        model = model_of(reader)
        return cls(
            nodes=reader.integer("nodes", 1, 1, MAX_NODES),
            gpus=reader.integer("gpus", 8, 0, MAX_GPUS),
            model=model,
            gpu_memory_mib=reader.integer("gpu_memory_mib", memory_of_model(model), 1, 2**31),
            cpu_milli=reader.integer("cpu_milli", 128_000, 1, 2**31),
            memory_mib=reader.integer("memory_mib", 1_048_576, 1, 2**40),
            disk_mib=reader.integer("disk_mib", 4_194_304, 0, 2**50),
        )


@dataclass(frozen=True, slots=True)
class Others:
    """Jobs of other users of the cluster. They take GPUs only."""

    gpus: int = 0
    every_s: float = 0.0
    for_s: float = OTHERS_FOR_S
    first: int = 0

    @classmethod
    def parse(cls, config: Settings) -> Others:
        """Parse the jobs of others of a pool's configuration. Raises `InvalidConfig`."""
        reader = SettingsReader(config)
        every_s = reader.seconds("others_every_s")
        if 0 < every_s < MIN_OTHERS_EVERY_S:
            expected = f"0 or at least {MIN_OTHERS_EVERY_S:g} s"
            raise invalid_setting("others_every_s", expected, config.get("others_every_s"))
        has_duration = config.get("others_for_s") is not None
        return cls(
            gpus=reader.integer("others_gpus", 0, 0, Hardware.parse(config).gpus),
            every_s=every_s,
            for_s=reader.seconds("others_for_s") if has_duration else OTHERS_FOR_S,
            first=reader.integer("others_first", 0, 0, MAX_OTHERS_FIRST),
        )


@dataclass(frozen=True, slots=True)
class Script:
    """Behaviour of the engine; by default fast and without failures."""

    seed: int = 0
    start_delay_s: float = 0.0
    stop_delay_s: float = 0.0
    call_delay_ms: int = 0
    unavailable: bool = False
    lose_replies: Selector = NO_WORKSPACES
    crash_after_s: float | None = None
    crash_exit_code: int = 1
    time_limit_s: float = 0.0
    requeue_after_s: float = 0.0
    requeue: Selector = NO_WORKSPACES

    @classmethod
    def parse(cls, config: Settings) -> Script:
        """Parse the behaviour of a pool's configuration. Raises `InvalidConfig`."""
        reader = SettingsReader(config)
        crashes = config.get("crash_after_s") is not None
        return cls(
            seed=reader.integer("seed", 0, -(2**62), 2**62),
            start_delay_s=reader.seconds("start_delay_s"),
            stop_delay_s=reader.seconds("stop_delay_s"),
            call_delay_ms=reader.integer("call_delay_ms", 0, 0, MAX_CALL_DELAY_MS),
            unavailable=reader.flag("unavailable"),
            lose_replies=reader.selector("lose_replies"),
            crash_after_s=reader.seconds("crash_after_s") if crashes else None,
            crash_exit_code=reader.integer("crash_exit_code", 1, -255, 255),
            time_limit_s=reader.seconds("time_limit_s"),
            requeue_after_s=reader.seconds("requeue_after_s"),
            requeue=reader.selector("requeue", 1.0),
        )


KNOWN_KEYS = frozenset(
    [
        "state",
        *(field.name for kind in (Hardware, Script) for field in fields(kind)),
        *(f"others_{field.name}" for field in fields(Others)),
    ]
)
