"""Recent borrowing of a team is remembered with decay."""

from __future__ import annotations

import pytest

from portal.quota.limits.models import Cohort, Quota, TeamShare
from portal.scheduling import share_averages
from portal.workspaces import services
from tests.factories import TeamFactory

pytestmark = pytest.mark.django_db
H100 = "gpu:simulated-h100"


def test_average_follows_borrowing_and_decays(make, alice, team, pool, clock, settle, settings):
    settings.BERTH_SHARE_HALF_LIFE_S = 3600
    cohort = Cohort.objects.create(slug="all", name="All")
    other = TeamFactory(slug="lender")
    for each, gpus in ((team, 0), (other, 8)):
        TeamShare.objects.create(team=each, cohort=cohort)
        Quota.objects.create(team=each, resource=H100, quota=gpus * 1000)
    borrower = make(alice, "sim-h100-x4")

    def mean() -> int:
        share_averages.update_teams()
        return TeamShare.objects.get(team=team).borrowed_avg.get(H100, 0)

    assert mean() == 0
    clock.shift(3600)
    assert mean() == pytest.approx(2000, rel=0.1)
    clock.shift(7200)
    assert mean() == pytest.approx(3500, rel=0.1)
    services.stop(actor=alice, workspace_id=borrower.pk)
    settle(60)
    clock.shift(3600)
    assert mean() == pytest.approx(1750, rel=0.1)
    assert TeamShare.objects.get(team=other).borrowed_avg == {}


def test_no_averages_are_written_without_cohorts(team, pool):
    TeamShare.objects.create(team=team)
    assert share_averages.update_teams() == 0
