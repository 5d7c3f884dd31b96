"""Tests of each level, which of them are required, and their time limits.

Deadlines are for ending hung tests, not for judging slow ones. They are several times what the slowest
supported device needs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from provisioning.gpu.check.types import Facts, Level, Rendezvous

# Data types and the compute capability that introduced them; the same as in `probes.compute`.
SINCE: Mapping[str, tuple[int, int]] = {
    "fp32": (7, 0),
    "fp64": (7, 0),
    "fp16": (7, 5),
    "bf16": (8, 0),
    "tf32": (8, 0),
    "fp8": (8, 9),
    "int8": (7, 5),
    "fp4": (12, 0),
}
# Joint tests of several devices, which do not show which of them is at fault.
COLLECTIVE_PROBES = frozenset({"all_reduce"})
# Tests of several devices that hang if any of them does.
ANY_CAN_HANG = COLLECTIVE_PROBES | {"joint_burn"}
# Limit for a whole check in seconds; then it is aborted.
DEADLINE_S: Mapping[Level, float] = {Level.QUICK: 60.0, Level.STANDARD: 300.0, Level.EXTENDED: 2400.0}
# Probes that need visible peers.
WITH_PEERS = frozenset({"peers", "all_pairs", "joint_burn", "all_reduce"})
# Until the child has a context and its kernels.
START_S = 60.0
# How long one end of a link waits for the other to get its context and its turn.
MEET_S = 150.0
# Maximum silence of the other end once both are connected.
SILENT_S = 30.0
PAIR_DEADLINE_S = 480.0
# All GPUs of a node at once: each is first measured alone.
JOINT_DEADLINE_S = 900.0
# Temperatures settle within about a minute of full load.
JOINT_S = 120.0


@dataclass(frozen=True, slots=True)
class Test:
    """One test. `probe` is its function; `deadline_s` starts with its start message."""

    __test__ = False

    name: str
    probe: str
    deadline_s: float
    required: bool = True
    params: Mapping[str, Any] = field(default_factory=dict)


def dtypes(capability: tuple[int, int] | None) -> tuple[str, ...]:
    """Return the data types of a device; all if its capability is unknown."""
    if capability is None:
        return tuple(SINCE)
    return tuple(name for name, since in SINCE.items() if capability >= since)


def plan_for(
    level: Level,
    facts: Facts,
    peers: Sequence[str] = (),
    *,
    peers_required: bool = True,
    meeting: Rendezvous | None = None,
    joint: bool = False,
) -> tuple[Test, ...]:
    """Return the tests of a level in order: correctness first, since a faulty device needs no measurements.

    With a `meeting`, only those of a link to another node. With `joint`, only those of the device and all
    `peers` at once.
    """
    if meeting is not None:
        params = {**asdict(meeting), "meet_s": MEET_S, "silent_s": SILENT_S}
        # Waiting for the other end must not count as a hung device: the whole check ends earlier.
        whole_s = PAIR_DEADLINE_S + 60.0
        return Test("canary", "canary", 15.0), Test("two_nodes", "two_nodes", whole_s, params=params)
    supported = dtypes(facts.compute_capability)
    main = next(name for name in ("bf16", "fp16", "fp32") if name in supported)
    if joint:
        return _joint_plan(main, peers)
    tests = [
        Test("canary", "canary", 15.0),
        Test("residue", "residue", 30.0),
        Test("address", "address", 30.0),
        *(Test(f"exact_{name}", "exact", 15.0, params={"dtype": name}) for name in supported),
    ]
    if level == Level.QUICK:
        return (*tests, Test("copy", "copy", 15.0), Test("pcie", "pcie", 15.0))
    burns = tuple(dict.fromkeys((main, "fp32"))) if level == Level.STANDARD else supported
    full = level == Level.EXTENDED
    tests += [
        Test("inversions", "inversions", 240.0 if full else 120.0, params={"full": full}),
        Test("bandwidth", "memory", 30.0),
        Test("pcie", "pcie", 30.0, params={"seconds": 1.0, "both_ways": True}),
        *(Test(f"burn_{name}", "burn", 45.0, params={"dtype": name, "seconds": 10.0}) for name in burns),
        Test("functions", "functions", 60.0, params={"turns": 8 if full else 1}),
        Test("atomics", "atomics", 60.0),
        Test("shared_memory", "shared_memory", 60.0, params={"turns": 512 if full else 32}),
        Test("caches", "caches", 60.0, params={"turns": 512 if full else 32}),
    ]
    if peers and not facts.mig:
        tests.append(Test("peers", "peers", 60.0, required=peers_required))
        if len(peers) >= 2:
            tests.append(Test("all_pairs", "all_pairs", 60.0, required=peers_required))
    if full:
        tests += [
            Test("modulo20", "modulo20", 180.0),
            Test("bit_fade", "bit_fade", 240.0, params={"seconds": 60.0}),
            Test("steady", "burn", 240.0, params={"dtype": main, "seconds": 120.0}),
            Test("power_steps", "power_steps", 90.0, params={"cycles": 10, "seconds": 1.0}),
        ]
    if full and peers and not facts.mig:
        tests.append(_joint_burn(main, 30.0, peers, required=peers_required))
    if peers and not facts.mig:
        # Last, since its library stays loaded in this process, and a hang affects no other test.
        tests.append(Test("all_reduce", "all_reduce", 90.0, required=peers_required))
    return tuple(tests)


def _joint_plan(dtype: str, peers: Sequence[str]) -> tuple[Test, ...]:
    """Return the tests of all GPUs of a node at once: power and heat, then all links."""
    tests = [Test("canary", "canary", 15.0), _joint_burn(dtype, JOINT_S, peers, required=True)]
    if len(peers) >= 2:
        tests.append(Test("all_pairs", "all_pairs", 60.0, required=False))
    return (*tests, Test("all_reduce", "all_reduce", 90.0, required=False))


def _joint_burn(dtype: str, seconds: float, peers: Sequence[str], *, required: bool) -> Test:
    deadline_s = seconds + 60.0 + 15.0 * len(peers)
    params = {"dtype": dtype, "seconds": seconds}
    return Test("joint_burn", "joint_burn", deadline_s, required=required, params=params)
