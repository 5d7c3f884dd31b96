"""The engine of unused homes: never early, never without notice, never for unobserved time."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from portal.reclaim.engine.terms import SETTINGS, ScopeKind, Source, Terms
from portal.reclaim.engine.unused import (
    MAX_PASS_GAP_S,
    HomeIdleState,
    HomeRules,
    HomeStep,
    advance,
    decide_home,
    rules,
)

DAY = 86_400
SITE, POOL, TEAM = (Source(kind, "x") for kind in (ScopeKind.SITE, ScopeKind.POOL, ScopeKind.TEAM))


def test_home_is_archived_after_the_full_notice():
    held = HomeRules(archive_s=90 * DAY, notice_s=14 * DAY)
    assert decide_home(HomeIdleState(unused_s=75 * DAY), held).step is HomeStep.NOTHING
    near = decide_home(HomeIdleState(unused_s=76 * DAY), held)
    assert (near.step, near.left_s, near.limit_s) == (HomeStep.WARN, 14 * DAY, 90 * DAY)
    late = decide_home(HomeIdleState(unused_s=400 * DAY), held)
    assert (late.step, late.left_s) == (HomeStep.WARN, 14 * DAY), "the whole notice, however late"
    told = HomeIdleState(unused_s=400 * DAY, warned_s=14 * DAY - 1)
    assert decide_home(told, held).step is HomeStep.NOTHING
    assert decide_home(HomeIdleState(unused_s=400 * DAY, warned_s=14 * DAY), held).step is HomeStep.TAKE
    assert decide_home(HomeIdleState(unused_s=10 * DAY, warned_s=DAY), held).step is HomeStep.WITHDRAW
    assert decide_home(HomeIdleState(unused_s=90 * DAY, warned_s=DAY), HomeRules()).step is HomeStep.WITHDRAW
    assert decide_home(HomeIdleState(archived=True, unused_s=900 * DAY), held).step is HomeStep.NOTHING


def test_limit_is_at_least_the_notice():
    held = HomeRules(archive_s=DAY, delete_s=DAY, notice_s=14 * DAY)
    for archived in (False, True):
        assert decide_home(HomeIdleState(archived, unused_s=13 * DAY), held).left_s == 14 * DAY
        told = HomeIdleState(archived, unused_s=13 * DAY, warned_s=13 * DAY)
        assert decide_home(told, held).step is HomeStep.NOTHING


@pytest.mark.parametrize(
    ("layers", "archive_s", "delete_s"),
    [
        pytest.param([], None, None, id="settings alone"),
        pytest.param([Terms(SITE, archive_s=90, delete_s=300)], 90, 300, id="the site"),
        pytest.param([Terms(SITE, archive_s=90), Terms(POOL, archive_s=0)], None, None, id="a pool never"),
        pytest.param([Terms(SITE, archive_s=90), Terms(TEAM, archive_s=120)], 90, None, id="a team later"),
        pytest.param([Terms(SITE, archive_s=90), Terms(TEAM, archive_s=0)], 90, None, id="a team never"),
        pytest.param(
            [Terms(SITE, archive_s=90, delete_s=300), Terms(TEAM, archive_s=30, delete_s=30)], 30, 300,
            id="a team earlier",
        ),
        pytest.param([Terms(TEAM, archive_s=30)], 30, None, id="a team alone"),
    ],
)  # fmt: skip
def test_team_rules_can_only_archive_earlier_and_not_set_deletion(layers, archive_s, delete_s):
    found = rules([Terms(SETTINGS, archive_s=0, delete_s=0), *layers], notice_s=1)
    assert (found.archive_s, found.delete_s) == (archive_s, delete_s)


LOOKS = st.lists(
    st.tuples(
        st.one_of(
            st.floats(0, MAX_PASS_GAP_S),
            st.sampled_from([-1e9, -1.0, MAX_PASS_GAP_S + 1, 30 * DAY, 1e9]),
        ),
        st.sampled_from([False, False, False, False, True]),
    ),
    max_size=120,
)


@given(LOOKS, st.integers(1, 20_000), st.integers(1, 8_000))
def test_home_is_never_archived_early(looks, archive_s, notice_s):
    """Random observations, uses, outages and clocks.

    Homes are archived only after limit and notice were observed since the last use.
    """
    held = HomeRules(archive_s=archive_s, notice_s=notice_s)
    standing = HomeIdleState()
    watched = told = 0.0
    warned = False
    for elapsed_s, used in looks:
        standing = advance(standing, elapsed_s, used=used, archived=False)
        counts = elapsed_s if 0 < elapsed_s <= MAX_PASS_GAP_S else 0.0
        watched, told = (0.0, 0.0) if used else (watched + counts, told + counts)
        warned = warned and not used
        step = decide_home(standing, held).step
        if step is HomeStep.TAKE:
            assert warned and watched >= archive_s and told >= notice_s
            break
        if step is HomeStep.WARN:
            assert not warned and watched >= archive_s - notice_s
            warned, told = True, 0.0
            standing = HomeIdleState(False, standing.unused_s, 0.0)
        elif step is HomeStep.WITHDRAW:
            raise AssertionError("nothing has been said against it")


@given(st.floats(0, 1e7), st.one_of(st.none(), st.floats(0, 1e7)), st.booleans(), st.integers(0, 10**6))
def test_use_always_resets_the_idle_state(unused_s, warned_s, archived, limit_s):
    after = advance(HomeIdleState(archived, unused_s, warned_s), 600, used=True, archived=archived)
    assert after == HomeIdleState(archived)
    held = HomeRules(limit_s, limit_s, notice_s=1)
    assert decide_home(after, held).step in (HomeStep.NOTHING, HomeStep.WARN)
