"""A day of a small fleet with many faults, by `bench.fleet_week`, under the default policy."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest

from bench.fleet_week import faults, report, run
from bench.fleet_week.devices import check
from bench.fleet_week.faults import CLASSES
from bench.fleet_week.run import Fleet, Week
from bench.fleet_week.site import fleet as devices
from provisioning.check_messages import CheckCommand
from provisioning.gpu.check import verdict
from provisioning.gpu.check.types import Verdict
from provisioning.types import PoolConfig

HARD = {each.name for each in CLASSES if each.hard}
RATE = 1500
"""Times the published rates: so small a fleet would have nothing to show in a year."""


@pytest.mark.thorough("a week of a fleet; `make test` has a day of checks in test_healing")
@pytest.mark.django_db
def test_only_broken_devices_are_cordoned(monkeypatch):
    monkeypatch.setattr(faults, "XID_TOLD", 1.0)
    # Otherwise most of the few devices would have silent errors from the start.
    rarer = tuple(replace(each, at_start=each.at_start / 8) for each in CLASSES)
    monkeypatch.setattr(run, "CLASSES", rarer)
    monkeypatch.setattr(faults, "APPLICATION_XIDS_PER_GPU_HOUR", 0.1)
    days: list[Week] = []
    fleet = Fleet(24, 1, 7, rate=RATE, tick_s=1800, on_day=days.append)
    fleet.run()
    (week,) = days
    found = report.summary(week)
    outages = report.outages(week)

    assert found["application_xids"] > 10
    assert not [out for out in outages if out.case is None], "programs that go wrong cordon nothing"

    hard = [case for case in week.cases if case.fault in HARD and case.at_s < fleet.end_s - 60]
    out = {id(outage.case): outage for outage in outages}
    assert len({case.fault for case in hard}) >= 2
    for case in hard:
        assert id(case) in out, case
        assert out[id(case)].from_s - case.at_s < 60

    assert found["sessions"] > 10 and found["gpu_hours_of_work"] > 100
    assert 0 < found["checks_percent"] <= 0.3
    assert not week.unknown_tasks


def verdict_of(fault: str, level: str, *, seed: int = 1, wrong_tiles: float = 0.1) -> Verdict:
    """The verdict of a check of a real H100 with this fault."""
    gpu = devices(8, Random(seed))[0]
    if fault:
        gpu.break_down(next(each for each in CLASSES if each.name == fault), 0.0, Random(seed))
        gpu.wrong_tiles, gpu.slow = wrong_tiles, 0.7
    command = CheckCommand(
        kind="check", run="run", lease="lease", pool=PoolConfig("fleet", "local", {}), uuid=gpu.uuid,
        level=level, expires_at=0.0, deadline_s=300.0,
    )  # fmt: skip
    made, _seconds = check(gpu, command, 1_800_000_000.0, Random(seed))
    assert made.simulated and made.verdict not in (Verdict.PASS, Verdict.DEGRADED)
    return verdict.decide(made.findings, made.tests, simulated=False)[0]


@pytest.mark.parametrize("fault", [each.name for each in CLASSES])
def test_each_fault_is_found_by_a_suitable_level(fault):
    it = next(each for each in CLASSES if each.name == fault)
    bad = (Verdict.FAIL, Verdict.HUNG)
    # Slowness is found relative to the fleet, which a single check lacks.
    assert verdict_of(fault, "standard") in bad or it.slow
    assert (verdict_of(fault, "quick") in bad) is not it.only_under_load


def test_noise_does_not_fail_a_healthy_device():
    for seed in range(60):
        assert verdict_of("", "quick", seed=seed) in (Verdict.PASS, Verdict.DEGRADED)
        assert verdict_of("", "standard", seed=seed) in (Verdict.PASS, Verdict.DEGRADED)
