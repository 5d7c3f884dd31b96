"""Plans: the tests of each level, their order and deadlines."""

from __future__ import annotations

from typing import Any

import pytest

from provisioning.gpu.check.plan import DEADLINE_S, SINCE, dtypes, plan_for
from provisioning.gpu.check.probes.compute import DTYPES, supported
from provisioning.gpu.check.types import (
    Facts,
    Level,
)
from tests.gpu.check.judging import H200


@pytest.mark.parametrize(
    ("capability", "names"),
    [
        ((7, 0), ["fp32", "fp64"]),
        ((7, 5), ["fp32", "fp64", "fp16", "int8"]),
        ((8, 0), ["fp32", "fp64", "fp16", "bf16", "tf32", "int8"]),
        ((8, 6), ["fp32", "fp64", "fp16", "bf16", "tf32", "int8"]),
        ((8, 9), ["fp32", "fp64", "fp16", "bf16", "tf32", "fp8", "int8"]),
        ((9, 0), ["fp32", "fp64", "fp16", "bf16", "tf32", "fp8", "int8"]),
        ((10, 3), ["fp32", "fp64", "fp16", "bf16", "tf32", "fp8", "int8"]),
        ((12, 0), ["fp32", "fp64", "fp16", "bf16", "tf32", "fp8", "int8", "fp4"]),
        ((12, 1), ["fp32", "fp64", "fp16", "bf16", "tf32", "fp8", "int8", "fp4"]),
        ((6, 1), []),
    ],
)
def test_data_types_by_capability(capability: tuple[int, int], names: list[str]) -> None:
    assert list(dtypes(capability)) == names
    assert list(supported(capability)) == names
    assert list(dtypes(None)) == list(DTYPES)
    assert dict(SINCE) == {dtype.name: dtype.since for dtype in DTYPES.values()}


def steps(
    level: Level, facts: Facts = H200, peers: tuple[str, ...] = ()
) -> list[tuple[str, str, float, dict[str, Any]]]:
    plan = plan_for(level, facts, peers)
    assert all(test.required for test in plan)
    return [(t.name, t.probe, t.deadline_s, dict(t.params)) for t in plan]


TYPES = ("fp32", "fp64", "fp16", "bf16", "tf32", "fp8", "int8")
FIRST: list[Any] = [
    ("canary", "canary", 15.0, {}),
    ("residue", "residue", 30.0, {}),
    ("address", "address", 30.0, {}),
    *((f"exact_{t}", "exact", 15.0, {"dtype": t}) for t in TYPES),
]


def burn(name: str) -> Any:
    return (f"burn_{name}", "burn", 45.0, {"dtype": name, "seconds": 10.0})


def units(turns: int) -> list[Any]:
    return [
        ("functions", "functions", 60.0, {"turns": 8 if turns > 32 else 1}),
        ("atomics", "atomics", 60.0, {}),
        ("shared_memory", "shared_memory", 60.0, {"turns": turns}),
        ("caches", "caches", 60.0, {"turns": turns}),
    ]


def test_quick_plan() -> None:
    assert steps(Level.QUICK) == [*FIRST, ("copy", "copy", 15.0, {}), ("pcie", "pcie", 15.0, {})]
    assert steps(Level.QUICK, peers=("GPU-2",)) == steps(Level.QUICK)


def test_standard_plan() -> None:
    standard = [
        *FIRST,
        ("inversions", "inversions", 120.0, {"full": False}),
        ("bandwidth", "memory", 30.0, {}),
        ("pcie", "pcie", 30.0, {"seconds": 1.0, "both_ways": True}),
        burn("bf16"),
        burn("fp32"),
        *units(32),
    ]
    assert steps(Level.STANDARD) == standard
    assert steps(Level.STANDARD, peers=("GPU-2",)) == [
        *standard,
        ("peers", "peers", 60.0, {}),
        ("all_reduce", "all_reduce", 90.0, {}),
    ]
    mig = Facts("MIG-1", mig=True, compute_capability=(9, 0))
    assert steps(Level.STANDARD, mig, ("GPU-2",)) == standard
    old = [name for name, *_ in steps(Level.STANDARD, Facts("GPU-1", compute_capability=(7, 5)))]
    assert old[-6:-4] == ["burn_fp16", "burn_fp32"]


def test_extended_plan() -> None:
    assert steps(Level.EXTENDED, peers=("GPU-2",)) == [
        *FIRST,
        ("inversions", "inversions", 240.0, {"full": True}),
        ("bandwidth", "memory", 30.0, {}),
        ("pcie", "pcie", 30.0, {"seconds": 1.0, "both_ways": True}),
        *map(burn, TYPES),
        *units(512),
        ("peers", "peers", 60.0, {}),
        ("modulo20", "modulo20", 180.0, {}),
        ("bit_fade", "bit_fade", 240.0, {"seconds": 60.0}),
        ("steady", "burn", 240.0, {"dtype": "bf16", "seconds": 120.0}),
        ("power_steps", "power_steps", 90.0, {"cycles": 10, "seconds": 1.0}),
        ("joint_burn", "joint_burn", 105.0, {"dtype": "bf16", "seconds": 30.0}),
        ("all_reduce", "all_reduce", 90.0, {}),
    ]


def test_test_deadlines_are_below_the_level_deadline() -> None:
    for level in Level:
        for test in plan_for(level, H200, ("GPU-2",)):
            assert test.deadline_s < DEADLINE_S[level]
