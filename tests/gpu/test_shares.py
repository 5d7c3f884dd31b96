"""Enforcement of GPU memory shares, second by second."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from provisioning.gpu.shares import (
    GRACE_S,
    KILL_AFTER_S,
    STEADY_S,
    DeviceProcess,
    OverShare,
    Rank,
    ShareAction,
    ShareUse,
    decide,
    is_full,
    next_to_end,
    part_mib,
)
from provisioning.share_messages import ShareStep

PART = 40_000
ENDS = (ShareStep.ASKED, ShareStep.KILLED)


def usage(*amounts: int | None, part: int = PART, urgent: bool = False) -> ShareUse:
    return ShareUse(
        part, tuple(DeviceProcess(100 + n, 7, amount) for n, amount in enumerate(amounts)), urgent
    )


def play(
    looks: list[ShareUse], before: OverShare | None = None, *, every_s: float = 1.0
) -> list[tuple[float, ShareAction]]:
    """The actions, with their time, for these readings in turn."""
    over, done = before, []
    for number, look in enumerate(looks):
        over, acts = decide(over, look, number * every_s)
        done += [(number * every_s, act) for act in acts]
    return done


def steps(done: list[tuple[float, ShareAction]]) -> list[tuple[float, ShareStep, int | None]]:
    return [(at, act.step, act.process.pid if act.process else None) for at, act in done]


def test_workspace_within_its_share_gets_no_notice() -> None:
    assert play([usage(30_000, 10_000)] * 60) == []


def test_warned_then_terminated_then_killed() -> None:
    done = play([usage(1_000, 45_000)] * 30)
    assert steps(done) == [
        (0, ShareStep.OVER, None),
        (GRACE_S, ShareStep.ASKED, 101),
        (GRACE_S + KILL_AFTER_S, ShareStep.KILLED, 101),
    ]
    assert (done[0][1].used_mib, done[0][1].ends_in_s) == (46_000, 20)


def test_next_process_is_terminated_while_over_the_share() -> None:
    three = usage(25_000, 45_000, 24_000)
    # The largest process ended; the other two still exceed the share.
    done = play([three] * 21 + [usage(25_000, 0, 24_000)] * 30)
    assert [step for step in steps(done) if step[1] in ENDS] == [
        (20, ShareStep.ASKED, 101),
        (25, ShareStep.ASKED, 100),
        (30, ShareStep.KILLED, 100),
        (35, ShareStep.ASKED, 102),
        (40, ShareStep.KILLED, 102),
    ]


def test_no_process_ends_if_usage_falls_within_the_grace_period() -> None:
    done = play([usage(45_000)] * 19 + [usage(30_000)] * 20)
    assert steps(done) == [(0, ShareStep.OVER, None), (19 + STEADY_S, ShareStep.BACK, None)]


def test_alternating_usage_does_not_reset_the_grace_period() -> None:
    done = play(([usage(45_000)] * 3 + [usage(30_000)] * 2) * 10)
    assert (20, ShareStep.ASKED, 100) in steps(done)
    assert [each.step for _, each in done].count(ShareStep.OVER) == 1


def test_no_grace_period_if_the_neighbour_lacks_memory() -> None:
    done = play([usage(1_000, 45_000, urgent=True)] * 7)
    assert steps(done) == [
        (0, ShareStep.OVER, None), (0, ShareStep.ASKED, 101), (5, ShareStep.KILLED, 101),
    ]  # fmt: skip
    assert done[0][1].ends_in_s == 0
    # The neighbor has its share, or the workspace is within its own: not urgent.
    assert play([usage(40_000, urgent=True)] * 30) == []


def test_unreported_usage_ends_no_process() -> None:
    done = play([usage(1_000, None, 90_000)] * 40)
    assert {act.step for _, act in done} == {ShareStep.UNKNOWN}


def test_gap_restarts_the_time() -> None:
    over, _ = decide(None, usage(45_000), 0.0)
    over, acts = decide(over, usage(45_000), 19.0)
    assert acts == ()
    over, acts = decide(over, usage(45_000), 24.0)
    assert acts == (), "nobody knows what was held between"


def test_agent_is_never_terminated_and_the_app_last() -> None:
    agent, app, work = (
        DeviceProcess(1, 1, 90_000, Rank.AGENT),
        DeviceProcess(2, 1, 30_000, Rank.APP),
        DeviceProcess(3, 1, 10, Rank.WORK),
    )
    assert next_to_end(ShareUse(1, (agent, app, work)), frozenset()) == work
    assert next_to_end(ShareUse(1, (agent, app)), frozenset()) == app
    assert next_to_end(ShareUse(1, (agent, app)), frozenset({app.identity})) is None
    assert next_to_end(ShareUse(1, (agent, DeviceProcess(4, 1, 0))), frozenset()) is None


def test_reused_pid_is_another_process() -> None:
    first, second = ShareUse(1, (DeviceProcess(5, 1, 50),)), ShareUse(1, (DeviceProcess(5, 2, 50),))
    done = play([first] * 21 + [second] * 10)
    assert [act.step for _, act in done if act.step in ENDS] == [
        ShareStep.ASKED, ShareStep.ASKED, ShareStep.KILLED,
    ]  # fmt: skip


def test_share_sizes_in_mib() -> None:
    assert part_mib(81_559, 500, 0) == 40_779
    assert part_mib(81_559, 500, 20_000) == 20_000
    assert is_full(1_000, 981) and not is_full(1_000, 980) and not is_full(1_000, None)


HELD = st.builds(
    DeviceProcess,
    pid=st.integers(1, 4),
    start_ticks=st.integers(1, 2),
    memory_mib=st.one_of(st.none(), st.integers(0, 60)),
    rank=st.sampled_from(Rank),
)
SEEN = st.builds(
    ShareUse,
    part_mib=st.sampled_from([0, 20, 50]),
    processes=st.lists(HELD, max_size=4, unique_by=lambda each: each.identity).map(tuple),
    urgent=st.booleans(),
)


@given(st.lists(st.tuples(st.sampled_from([0.5, 1.0, 4.0, 6.0, 12.0]), SEEN), max_size=60))
def test_no_process_ends_early_or_without_cause(history: list[tuple[float, ShareUse]]) -> None:
    over: OverShare | None = None
    now, over_since, last_end, asked = 0.0, None, None, None
    previous = None
    for step_s, look in history:
        now += step_s
        used = look.used_mib
        excess = used is not None and used > look.part_mib
        if excess and (over_since is None or (previous is not None and now - previous > 5.0)):
            over_since = now
        over, acts = decide(over, look, now)
        ended = [act for act in acts if act.step in ENDS]
        assert len(ended) <= 1
        for act in ended:
            assert excess and act.process in look.processes and act.process.rank is not Rank.AGENT
            assert look.urgent or now - over_since >= GRACE_S
            assert last_end is None or now - last_end >= KILL_AFTER_S
            if act.step is ShareStep.KILLED:
                assert act.process.identity == asked, "nothing is killed that was not asked"
            asked, last_end = act.process.identity, now
        if any(act.step is ShareStep.BACK for act in acts) or over is None:
            over_since = last_end = asked = None
        previous = now if excess or (over is not None) else None


@pytest.mark.parametrize("urgent", [True, False])
def test_continued_overuse_ends_all_processes_but_the_agent(urgent: bool) -> None:
    processes = {
        (n, 1): DeviceProcess(n, 1, 10_000, Rank.AGENT if n == 1 else Rank.WORK) for n in range(1, 6)
    }
    over: OverShare | None = None
    for second in range(120):
        over, acts = decide(over, ShareUse(9_000, tuple(processes.values()), urgent), float(second))
        for act in acts:
            if act.step is ShareStep.KILLED:
                del processes[act.process.identity]
    assert list(processes) == [(1, 1)]
