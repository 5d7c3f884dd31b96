"""The benchmark of notebooks left open: what is stopped, and that no work is."""

from __future__ import annotations

import pytest

from bench.idle_chart import draw
from bench.idle_replay import HOUR_S, Session, Totals, parts, run, sessions
from bench.scheduling.trace import Job, synthetic

JOB = Job("j1", "red", 2, 0, 3 * HOUR_S)


@pytest.mark.parametrize(
    ("turns", "held"),
    [
        # Left open for a night: two hours remain.
        ((3, 10), [(5, 3, 0)]),
        # Closed in time, and a gap within the limit.
        ((1, 1, 2, 1), [(5, 3, 0)]),
        # Stopped in a gap; its user returns and leaves it open again.
        ((1, 6, 2, 10), [(3, 1, 4), (4, 2, 0)]),
        ((1, 6, 2, 1), [(3, 1, 4), (3, 2, 0)]),
    ],
)
def test_open_idle_notebook_is_stopped_after_two_hours_and_restarted(turns, held):
    found = Totals()
    made = parts(Session(JOB, tuple(each * HOUR_S for each in turns)), found, reclaim=True)
    hours = [(part.held_s / HOUR_S, part.work_s / HOUR_S, part.next_after_s / HOUR_S) for part in made]
    assert hours == held
    assert found.stops_of_work == 0
    (whole,) = parts(Session(JOB, tuple(each * HOUR_S for each in turns)), found, reclaim=False)
    assert (whole.held_s, whole.work_s) == (sum(turns) * HOUR_S, 3 * HOUR_S)


def test_reclaim_completes_all_work_and_frees_idle_time():
    jobs = synthetic(3, 200, 32)
    every = sessions(jobs, 20.0, 1)
    without, having = run(every, 32, reclaim=False), run(every, 32, reclaim=True)
    work = sum(job.gpus * job.duration_s for job in jobs) / HOUR_S
    assert without.used == pytest.approx(work) == pytest.approx(having.used)
    assert without.used / without.held == pytest.approx(0.2, abs=0.001)
    assert having.held < without.held
    assert having.stops_of_work == without.stops == 0
    rows = {"without": without.row(), "with": having.row()}
    drawn = draw({"runs": rows, "jobs": 200, "gpus": 32, "use_percent": 20.0, "gpu_hours_recovered": 1})
    assert drawn.startswith("<svg")
    assert "20 % used" in drawn
