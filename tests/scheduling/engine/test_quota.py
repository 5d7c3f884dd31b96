from __future__ import annotations

import pytest

from portal.quota.limits.shares import MAX_SHARE, QueueClaim, decay_average, divide, dominant_share
from portal.quota.limits.tree import UNGOVERNED, QuotaTree
from portal.quota.limits.types import Cohort, Limit, Team

GPU = "gpu:a"


def tree(*teams: Team) -> QuotaTree:
    return QuotaTree(teams, [Cohort("c")])


def test_team_can_use_its_quota_and_lent_quota():
    site = tree(Team("a", "c", {GPU: Limit(4)}), Team("b", "c", {GPU: Limit(6, lending=2)}))
    assert site.teams["a"].available(GPU) == 6
    assert site.teams["b"].available(GPU) == 10
    site.add("a", {GPU: 5})
    assert site.teams["b"].available(GPU) == 5
    assert (site.teams["a"].borrowed(GPU), site.teams["b"].borrowed(GPU)) == (1, 0)


def test_borrowing_limit_is_enforced_and_used_quota_cannot_be_borrowed():
    site = tree(Team("a", "c", {GPU: Limit(4, borrowing=1)}), Team("b", "c", {GPU: Limit(6)}))
    assert site.teams["a"].available(GPU) == 5
    site.add("b", {GPU: 6})
    assert site.teams["a"].available(GPU) == 4


def test_nested_cohorts_lend_within_their_own_limits():
    site = QuotaTree(
        [Team("a", "left", {GPU: Limit(2)}), Team("b", "right", {GPU: Limit(8)})],
        [Cohort("top"), Cohort("left", "top", {GPU: Limit(0, borrowing=3)}), Cohort("right", "top")],
    )
    assert site.teams["a"].available(GPU) == 5
    site.add("a", {GPU: 5})
    assert site.shortfall("a", {GPU: 1}) == GPU
    assert site.teams["b"].available(GPU) == 5
    site.remove("a", {GPU: 5})
    assert site.teams["b"].available(GPU) == 10


def test_unlimited_resource_is_free_unless_a_neighbour_limits_it():
    site = tree(Team("a", "c", {GPU: Limit(4)}), Team("b", "c"))
    assert site.teams["b"].available("cpu_milli") == UNGOVERNED
    assert site.teams["b"].available(GPU) == 4


@pytest.mark.parametrize(
    ("teams", "cohorts"),
    [
        ([Team("a"), Team("a")], []),
        ([Team("a", "nowhere")], []),
        ([], [Cohort("x", "y"), Cohort("y", "x")]),
        ([Team("a", limits={GPU: Limit(-1)})], []),
        ([Team("a", weight_milli=-1)], []),
    ],
)
def test_invalid_limits_are_refused(teams, cohorts):
    with pytest.raises(ValueError):
        QuotaTree(teams, cohorts)


def test_share_is_current_and_recent_borrowing_divided_by_weight():
    site = tree(Team("a", "c", {GPU: Limit(2)}, weight_milli=2000), Team("b", "c", {GPU: Limit(8)}))
    site.add("a", {GPU: 4})
    assert dominant_share(site.teams["a"]) == 10**8
    assert dominant_share(site.teams["a"], {GPU: 2}) == 2 * 10**8
    assert dominant_share(site.teams["b"]) == 0


def test_borrower_without_weight_is_last():
    site = tree(Team("a", "c", {GPU: Limit(1)}, weight_milli=0), Team("b", "c", {GPU: Limit(8)}))
    site.add("a", {GPU: 2})
    assert dominant_share(site.teams["a"]) >= MAX_SHARE
    site.add("a", {GPU: 1})
    assert dominant_share(site.teams["a"]) > MAX_SHARE + 10**8


def test_usage_halves_after_one_half_life():
    assert decay_average({GPU: 1000}, {}, 3600, 3600) == {GPU: 500}
    assert decay_average({}, {GPU: 1000}, 2 * 3600, 3600) == {GPU: 750}
    assert decay_average({GPU: 1}, {}, 100 * 3600, 3600) == {}


def test_zero_weight_gets_no_more_than_its_share():
    assert divide(10, {"a": QueueClaim(2, 9, weight=0), "b": QueueClaim(1, 3)}) == {"a": 2, "b": 3}
