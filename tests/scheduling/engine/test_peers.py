"""Policies compared in the benchmark, checked by hand, and the benefit of the due order."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

from bench.scheduling.peers import srsf, tiresias
from bench.scheduling.replay import quotas, replay
from bench.scheduling.rounds import gavel, level, themis
from bench.scheduling.trace import Job, synthetic, thinned
from portal.scheduling.engine.model import Policy


def job(name: str, gpus: int, submit_s: int, duration_s: int) -> Job:
    return Job(name, "g", gpus, submit_s, duration_s)


def test_srsf_preempts_for_less_remaining_service():
    """Two GPUs: the long job is preempted for the short one and resumes."""
    found = srsf([job("long", 2, 0, 1000), job("short", 2, 100, 200), job("longer", 2, 150, 2000)], 2)
    assert found.waits == {"long": 200, "short": 0, "longer": 1200 - 150}
    assert found.preempted == 1


def test_tiresias_demotes_by_attained_service():
    """After 1,000 GPU seconds the first is demoted: the second, which came later, runs at once."""
    found = tiresias([job("first", 2, 0, 1000), job("second", 2, 100, 300)], 2, limits=(1000,))
    assert found.waits == {"first": 300, "second": 400}
    # Within the lower queue there is no preemption: the second runs to its end.
    found = tiresias([job("first", 2, 0, 1000), job("second", 2, 600, 900)], 2, limits=(1000,))
    assert found.waits == {"first": 900, "second": 0}


def test_trace_samples_differ_by_seed():
    jobs = [job(f"j{number}", 1 + number % 8, number, 60) for number in range(2000)]
    drawn = [thinned(jobs, seed, 12) for seed in (1, 2)]
    assert drawn[0] == thinned(jobs, 1, 12) != drawn[1]
    for some in drawn:
        # Half of the jobs request at most a third of twelve; a fourth of those is 250.
        assert {each.gpus for each in some} == {1, 2, 3, 4}
        assert 200 < len(some) < 300


def test_job_that_does_not_fit_is_skipped():
    found = tiresias([job("two", 2, 0, 1000), job("four", 4, 10, 100), job("one", 1, 20, 100)], 4)
    assert found.waits["one"] == 0
    assert found.waits["four"] > 0


@pytest.mark.parametrize(
    ("demand", "capacity", "most"),
    [([1, 2, 8], 11, 8), ([1, 2, 8], 7, 4), ([4, 4], 4, 2), ([1, 1, 32], 4, 2), ([8], 4, 4)],
)
def test_water_filling_level_is_found(demand, capacity, most):
    assert level(np.array(demand, dtype=float), capacity) == most


def test_gavel_alternates_jobs_by_their_due_share():
    """Two jobs of two rounds alternate on one GPU. A job of two GPUs is due half as many rounds."""
    found = gavel([job("a", 1, 0, 720), job("b", 1, 0, 720)], 1)
    assert found.waits == {"a": 360, "b": 720}
    assert found.preempted == 2
    wide, narrow = job("wide", 2, 0, 720), [job(f"n{at}", 1, 0, 1440) for at in range(2)]
    found = gavel([wide, *narrow], 2)
    # It has two of six rounds, the first and the fourth.
    assert found.waits == {"wide": 720, "n0": 720, "n1": 720}


def test_themis_runs_the_job_with_the_worst_slowdown():
    """With half a GPU each, both take twice as long; after one round the short one is worse off."""
    found = themis([job("long", 1, 0, 3600), job("short", 1, 0, 360)], 1)
    assert found.waits == {"long": 360, "short": 360}
    assert found.preempted == 1


def test_restart_cost_is_added():
    """The first resumes for a round of 360 s, of which 60 are lost, and so once more."""
    found = gavel([job("a", 1, 0, 720), job("b", 1, 0, 360)], 1, restart_s=60)
    assert found.waits == {"a": 360 + 60, "b": 360}
    assert found.lost_gpu_s == 60


@pytest.mark.thorough("three replays of 1,000 jobs; bench/scheduling compares them")
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_due_order_reduces_waits_without_harming_large_jobs(seed):
    """Compared with age only and with EASY, on synthetic work, with and without preemption."""
    jobs = synthetic(seed, 1000, 64)
    teams = quotas(jobs, 64)
    off = Policy(preemption=False)
    runs = {
        "easy": replay(jobs, 64, replace(off, due_after=0, max_wait_s=1 << 40)),
        "age": replay(jobs, 64, replace(off, due_after=0), teams=teams),
        "due": replay(jobs, 64, off, teams=teams),
        "preempting": replay(jobs, 64, Policy(), teams=teams),
    }
    assert not any(each.violations or each.reservations_delayed for each in runs.values())
    large = {each.id for each in jobs if each.gpus >= 8}
    mean = {name: sum(each.waits.values()) / len(jobs) for name, each in runs.items()}
    of_large = {
        name: sum(wait for job_id, wait in each.waits.items() if job_id in large) / len(large)
        for name, each in runs.items()
    }
    assert mean["due"] < 0.75 * min(mean["easy"], mean["age"])
    assert mean["preempting"] < 0.75 * min(mean["easy"], mean["age"])
    assert of_large["due"] < of_large["easy"]


def test_synthetic_jobs_are_ordered_and_fit():
    jobs = synthetic(7, 200, 64)
    assert all(one.submit_s <= two.submit_s for one, two in pairwise(jobs))
    assert max(each.gpus for each in jobs) <= 8
    assert jobs == synthetic(7, 200, 64)
