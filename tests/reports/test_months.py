"""Monthly reports to owners: sent once, with allocated, used and charged time, and idle GPUs by user."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta

import pytest

from portal.common.events.models import Notification
from portal.fleet.inventory.models import DeviceHour
from portal.people.accounts.models import Team, User
from portal.reclaim.models import IdlePeriod
from portal.reports import months
from portal.reports.models import Dimension, GpuDay, MonthlyReport
from tests import sites
from tests.factories import FlavorFactory, MembershipFactory, TeamFactory, UserFactory, WorkspaceFactory

pytestmark = pytest.mark.django_db
WORLD = sites.people
HOUR = 3_600_000
FIRST = datetime(2026, 11, 1, 6, tzinfo=UTC)
MONTH = date(2026, 10, 1)


@pytest.fixture
def team() -> Team:
    """A team that used GPUs for 40 hours in October, and for many in September and November."""
    found = TeamFactory(slug="vision", name="Vision")
    for day, hours in ((date(2026, 9, 30), 500), (date(2026, 10, 31), 40), (date(2026, 11, 1), 500)):
        GpuDay.objects.create(
            day=day,
            team="vision",
            dimension=Dimension.ALL,
            held=hours * HOUR,
            held_measured=hours // 2 * HOUR,
            held_used=hours // 10 * HOUR,
            cost=hours * 250 * 1000,
        )
    return found


@pytest.fixture
def owner(team: Team) -> User:
    MembershipFactory(team=team, user=UserFactory(username="mia"), role="member")
    return MembershipFactory(
        team=team, user=UserFactory(username="olga", email="olga@x.org"), role="owner"
    ).user


def idle(workspace, begin: datetime, hours: float) -> None:
    ended_at = begin + timedelta(hours=hours)
    IdlePeriod.objects.create(
        workspace=workspace, generation=1, kind="gpu", began_at=begin, ended_at=ended_at
    )


def test_only_owners_get_the_report_once(team, owner, settings):
    assert months.run(FIRST - timedelta(seconds=1)) == 0
    assert months.run(FIRST) == 1
    assert months.run(FIRST + timedelta(days=1)) == 0
    (told,) = Notification.objects.all()
    assert told.user == owner
    assert told.title == "GPU use of Vision in October 2026"
    assert "Allocated: 40 GPU-hours" in told.body
    assert "80 % of the measured time" in told.body
    assert "Not measured: 20 GPU-hours" in told.body
    assert "Cost: 100.00 EUR." in told.body
    assert told.url.startswith("/reports/gpu-use/?team=vision")


def test_disabled_mail_keeps_the_notice(team, owner, settings):
    settings.BERTH_MAIL = True
    MembershipFactory(
        team=team, user=UserFactory(username="otto", email="o@x.org", mail_notices=False), role="owner"
    )
    months.run(FIRST)
    due = dict(Notification.objects.values_list("user__username", "mail_due_at"))
    assert due["olga"] is not None
    assert due["otto"] is None


def test_report_lists_workspaces_with_most_idle_gpu_time(team, owner):
    two, one = FlavorFactory(accelerator_count=2), FlavorFactory(accelerator_count=1)
    began = datetime(2026, 10, 20, tzinfo=UTC)
    for name, flavor, hours in (("a", two, 10), ("b", one, 12), ("c", one, 1), ("d", one, 2)):
        idle(WorkspaceFactory(team=team, owner=owner, name=name, flavor=flavor), began, hours)
    # In another month, or partly.
    over = WorkspaceFactory(team=team, owner=owner, name="e", flavor=one)
    idle(over, datetime(2026, 10, 31, 21, tzinfo=UTC), 100)
    idle(over, datetime(2026, 9, 1, tzinfo=UTC), 100)
    idle(WorkspaceFactory(name="other", flavor=two), began, 500)
    assert months.most_idle_workspaces(team, MONTH, date(2026, 10, 31)) == [
        ("olga/a", 20.0),
        ("olga/b", 12.0),
        ("olga/e", 3.0),
    ]
    months.run(FIRST)
    assert "Most idle GPU-hours: olga/a (20), olga/b (12), olga/e (3)." in (Notification.objects.get().body)


def test_killed_report_is_sent_once_later(team, owner, monkeypatch):
    class Killed(BaseException):
        pass

    def killed(*_given, **_more):
        raise Killed

    with monkeypatch.context() as patched, pytest.raises(Killed):
        patched.setattr(months, "owners_of", killed)
        months.run(FIRST)
    assert not MonthlyReport.objects.exists()
    assert not Notification.objects.exists()
    assert months.run(FIRST) == 1
    assert Notification.objects.count() == 1


def test_report_sent_by_another_worker_is_not_repeated(team, owner, monkeypatch):
    real = months._send_once

    def both(*given):
        assert real(*given)
        return real(*given)

    monkeypatch.setattr(months, "_send_once", both)
    assert months.run(FIRST) == 0
    assert Notification.objects.count() == 1


def test_failed_report_does_not_block_other_teams(team, owner, monkeypatch):
    GpuDay.objects.create(day=MONTH, team="audio", dimension=Dimension.ALL, held=HOUR)
    MembershipFactory(team=TeamFactory(slug="audio"), role="owner")
    real = months.report_sentences
    monkeypatch.setattr(
        months, "report_sentences", lambda team, *span: 1 / 0 if team.slug == "audio" else real(team, *span)
    )
    assert months.run(FIRST) == 1
    assert Notification.objects.get().user == owner


def test_report_is_sent_after_daily_sums_and_within_the_first_week(team, owner):
    assert months.run(FIRST + timedelta(days=7)) == 0
    from portal.fleet.inventory.models import Device, DeviceSeries
    from tests.factories import local_pool_with, node_info

    local_pool_with(node_info(gpus=1))
    series = DeviceSeries.objects.create(device=Device.objects.get())
    at = datetime(2026, 10, 31, tzinfo=UTC)
    DeviceHour.objects.create(
        series=series, start_s=int(at.timestamp()), measured_s=3600, gpu_s=3600, gpu_pct_s=0, gpu_used_s=0
    )
    assert months.run(FIRST) == 0
    GpuDay.objects.create(day=at.date(), team="", dimension=Dimension.ALL)
    assert months.run(FIRST) == 1
