"""Acceptance of MIG requests compared with first fit; a small run of `python -m bench.placement.mig`."""

from __future__ import annotations

import statistics

import pytest

from bench.placement import mig as bench
from portal.scheduling.engine.placement.mig_layouts import geometry

CHANCE = 0.5


@pytest.fixture(scope="module")
def gains() -> dict[str, float]:
    return {
        shape: bench.compare("H100 80 GB", shape, gpus=8, count=500, seeds=range(2), loads=(1.0,))["gain"]
        for shape in bench.SHAPES
    }


@pytest.mark.thorough("a benchmark of its own")
def test_first_fit_is_not_significantly_better_in_any_mix(gains):
    assert {shape: gain for shape, gain in gains.items() if gain < -CHANCE} == {}


@pytest.mark.thorough("a benchmark of its own")
def test_average_acceptance_is_a_point_above_first_fit(gains):
    assert statistics.mean(gains.values()) >= 1.0


def test_first_fit_uses_legal_layouts_only():
    layout = geometry("NVIDIA H100 80GB HBM3", 81_559)
    assert layout is not None
    side = bench.FirstFit(layout, gpus=1)
    given = [side.grant_instance("1g.20gb") for _ in range(5)]
    assert [each and each[1] for each in given] == [0b11, 0b1100, 0b11_0000, 0b1100_0000, None]
    side.release(given[1])
    assert side.grant_instance("2g.20gb") == (0, 0b1100, "2g.20gb")


def test_mix_covers_all_profiles_of_the_model():
    layout = geometry("NVIDIA A30", 24_576)
    assert layout is not None
    assert bench.weights_of(layout, "large") == {"1g.6gb": 5, "2g.12gb": 10, "4g.24gb": 30}
    offered = bench.arrivals(layout, {"1g.6gb": 1}, gpus=4, load=0.5, count=4000, seed=1)
    held = sum(each.life for each in offered) / offered[-1].at
    assert held == pytest.approx(0.5 * 4 * 4, rel=0.1)
