"""The GPU use report: daily sums, unmeasured time, visibility, page, REST and CSV."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from portal.common.actors import SYSTEM
from portal.common.errors import InvalidInput, NotAllowed, NotFound
from portal.common.events import services as events
from portal.common.events.kinds import AuditKind
from portal.fleet.inventory.models import AllocatedDevice, Allocation, Device, DeviceHour, DeviceSeries
from portal.reports import days, gpu_use, presenters
from portal.reports.freed import STOPS
from portal.reports.models import Dimension, GpuDay
from portal.workspaces.models import Workspace
from tests import sites
from tests.factories import (
    FlavorFactory,
    MembershipFactory,
    TeamFactory,
    UserFactory,
    WorkspaceFactory,
    local_pool_with,
    node_info,
    simulated_pool,
)

pytestmark = pytest.mark.django_db
WORLD = sites.people
HOUR = 3_600_000
"""An hour of a GPU in thousandths of a GPU-second."""
DAY = datetime(2026, 11, 10, tzinfo=UTC)
LATER = DAY + timedelta(days=2)


@pytest.fixture
def gpus(db: None) -> list[Device]:
    pool = local_pool_with(node_info(gpus=2))
    return list(Device.objects.filter(node__pool=pool).order_by("index"))


def measured(
    device: Device, hour: int, *, seconds: int = 3600, percent: int = 0, day: datetime = DAY
) -> None:
    series, _ = DeviceSeries.objects.get_or_create(device=device)
    DeviceHour.objects.create(
        series=series,
        start_s=int(day.timestamp()) + hour * 3600,
        measured_s=seconds,
        gpu_s=seconds,
        gpu_pct_s=seconds * percent,
        gpu_used_s=seconds if percent else 0,
    )


def hold(
    workspace: Workspace,
    device: Device,
    begin: float,
    end: float | None,
    *,
    milli: int = 1000,
    number: int = 1,
) -> None:
    """Allocate from one hour of the day to another."""
    allocation = Allocation.objects.create(
        workspace=workspace,
        node=device.node,
        generation=number,
        flavor=workspace.flavor.slug,
        cpu_milli=1000,
        memory_mib=1024,
        granted_at=DAY + timedelta(hours=begin),
        released_at=None if end is None else DAY + timedelta(hours=end),
    )
    AllocatedDevice.objects.create(allocation=allocation, device=device, milli=milli, active=end is None)


def figures(dimension: str = Dimension.ALL, key: str = "", team: str = "") -> GpuDay:
    return GpuDay.objects.get(day=DAY.date(), dimension=dimension, key=key, team=team)


def test_used_time_sums_utilisation_and_excludes_unmeasured_time(gpus, bob, team):
    workspace = WorkspaceFactory(owner=bob, team=team)
    hold(workspace, gpus[0], 0, 4)
    measured(gpus[0], 0, percent=50)
    measured(gpus[0], 1)
    measured(gpus[0], 2, seconds=1800, percent=100)
    measured(gpus[1], 0)
    days.write(DAY.date(), now=LATER)
    row = figures()
    assert row.capacity == 48 * HOUR
    assert (row.measured, row.used) == (3.5 * HOUR, HOUR)
    assert (row.held, row.held_measured, row.held_used) == (4 * HOUR, 2.5 * HOUR, HOUR)
    amounts = gpu_use.Amounts(*(getattr(row, name) for name in days.FIGURES))
    assert (amounts.idle, amounts.missing) == (1.5 * HOUR, 1.5 * HOUR)
    assert amounts.idle_share == pytest.approx(2.5 / 3.5)
    assert amounts.unmeasured == pytest.approx(1 - 3.5 / 48)


def test_every_dimension_sums_to_the_total(gpus, bob, alice, team):
    other = TeamFactory(slug="audio")
    for owner, of, device, hours in ((bob, team, gpus[0], (1, 5)), (alice, other, gpus[1], (2, 9.5))):
        hold(WorkspaceFactory(owner=owner, team=of), device, *hours)
    for hour in range(24):
        measured(gpus[0], hour, percent=hour)
        measured(gpus[1], hour, seconds=3000, percent=70)
    days.write(DAY.date(), now=LATER)
    for dimension in (Dimension.TEAM, Dimension.USER, Dimension.FLAVOR, Dimension.MODEL, Dimension.NODE):
        rows = GpuDay.objects.filter(team="", dimension=dimension)
        for name in ("held", "held_measured", "held_used"):
            total = sum(getattr(row, name) for row in rows)
            assert total == pytest.approx(getattr(figures(), name), abs=len(rows))
        for slug in ("vision", "audio"):
            if dimension != Dimension.TEAM:
                own = GpuDay.objects.filter(team=slug, dimension=dimension)
                assert sum(row.held for row in own) == figures(Dimension.TEAM, slug).held
    assert figures(Dimension.USER, "bob").held == 4 * HOUR
    assert figures(Dimension.USER, "bob").held_used == round((1 + 2 + 3 + 4) / 100 * HOUR)


def test_shares_instances_and_simulated_devices_are_counted(gpus, bob, team, tmp_path):
    first, second = gpus
    hold(WorkspaceFactory(owner=bob, team=team), first, 0, 2, milli=250)
    Device.objects.filter(pk=first.pk).update(mig_mode=True)
    for number in range(2):
        slice_ = Device.objects.create(
            node=first.node, uuid=f"MIG-{number}", model=first.model, parent_uuid=second.uuid, kind="mig"
        )
    measured(second, 0, percent=100)
    hold(WorkspaceFactory(owner=bob, team=team), slice_, 0, 2)
    sim = Device.objects.filter(node__pool=simulated_pool(str(tmp_path))).first()
    if sim is not None:
        hold(WorkspaceFactory(owner=bob, team=team), sim, 0, 24)
    days.write(DAY.date(), now=LATER)
    row = figures()
    # A quarter of one GPU, and half of the partitioned one, which itself is not counted.
    assert row.held == 0.5 * HOUR + HOUR
    assert (row.measured, row.capacity) == (0, 36 * HOUR)


def test_current_day_is_counted_until_now(gpus, bob, team):
    hold(WorkspaceFactory(owner=bob, team=team), gpus[0], 0, None)
    measured(gpus[0], 0, percent=100)
    measured(gpus[0], 1, seconds=1800, percent=100)
    days.write(DAY.date(), now=DAY + timedelta(hours=1.5))
    row = figures()
    assert (row.capacity, row.held, row.held_used) == (1.5 * HOUR, 1.5 * HOUR, 1.5 * HOUR)


def at(clock: Any, hours: float, workspace: Workspace, kind: AuditKind, cause: str = "") -> None:
    clock.move_to(DAY + timedelta(hours=hours))
    events.record(
        actor=SYSTEM, kind=kind, workspace=workspace, message="…", cause={"code": cause} if cause else None
    )


def test_reclaimed_time_counts_until_the_next_start_up_to_a_day(gpus, bob, team, clock):
    again, stopped, own = (WorkspaceFactory(owner=bob, team=team) for _ in range(3))
    hold(again, gpus[0], 1, 4)
    hold(again, gpus[0], 7, 8, number=2)
    hold(stopped, gpus[1], -30, -22)
    hold(own, gpus[1], 1, 5)
    code = min(STOPS)
    at(clock, -22, stopped, AuditKind.WORKSPACE_STOP, code)
    at(clock, 3.9, again, AuditKind.WORKSPACE_STOP, code)
    at(clock, 5, own, AuditKind.WORKSPACE_STOP)
    days.write(DAY.date(), now=LATER)
    # Three hours until its restart, and two until the end of the day.
    assert figures().reclaimed == 5 * HOUR
    assert figures(Dimension.TEAM, "vision").reclaimed == 5 * HOUR
    assert figures(Dimension.MODEL, gpus[0].model, "vision").reclaimed == 5 * HOUR


def test_waiting_time_counts_in_gpus_until_placement(bob, team, clock):
    first, second, cpu = (WorkspaceFactory(owner=bob, team=team) for _ in range(3))
    Workspace.objects.filter(pk__in=[first.pk, second.pk]).update(amounts={"gpu": 2000, "cpu_milli": 1000})
    Workspace.objects.filter(pk=cpu.pk).update(amounts={"cpu_milli": 1000})
    at(clock, -2, first, AuditKind.WORKSPACE_REQUESTED)
    at(clock, 3, first, AuditKind.WORKSPACE_PLACE)
    at(clock, 20, cpu, AuditKind.WORKSPACE_REQUESTED)
    at(clock, 23, second, AuditKind.WORKSPACE_REQUESTED)
    days.write(DAY.date(), now=LATER)
    assert figures().waited == 2 * 3 * HOUR + 2 * HOUR
    assert figures(Dimension.USER, "bob", "vision").waited == 8 * HOUR
    assert not GpuDay.objects.filter(dimension=Dimension.MODEL).exists()


def test_daily_run_is_idempotent_fills_gaps_and_deletes_old_days(gpus, clock):
    for back in (0, 1, 5, 6):
        measured(gpus[0], 0, percent=100, day=DAY - timedelta(days=back))
    old = GpuDay.objects.create(day=DAY.date() - timedelta(days=800), dimension="all")
    now = DAY + timedelta(hours=12)
    done = days.run(now)
    assert done[:2] == [DAY.date(), DAY.date() - timedelta(days=1)]
    there = set(GpuDay.objects.values_list("day", flat=True))
    assert there == {DAY.date() - timedelta(days=back) for back in range(7)}
    assert not GpuDay.objects.filter(pk=old.pk).exists()
    before = list(GpuDay.objects.order_by("day", "dimension").values_list("day", "dimension", *days.FIGURES))
    assert days.run(now) == done[:2]
    after = list(GpuDay.objects.order_by("day", "dimension").values_list("day", "dimension", *days.FIGURES))
    assert after == before


@pytest.fixture
def reported(gpus: list[Device], bob: Any, team: Any, clock: Any) -> None:
    """bob used a GPU for four hours yesterday: two busy, one unmeasured. No midnight passes."""
    today = timezone.now().astimezone(UTC).date()
    figures_ = {
        "held": 4 * HOUR, "held_measured": 3 * HOUR, "held_used": 2 * HOUR, "reclaimed": HOUR,
        "waited": HOUR // 2,
    }  # fmt: skip
    devices = {"capacity": 48 * HOUR, "measured": 40 * HOUR, "used": 10 * HOUR}
    for scope, dimension, key in (
        ("", "all", ""), ("", "team", "vision"), ("", "user", "bob"), ("vision", "all", ""),
        ("vision", "user", "bob"), ("vision", "user", "=cmd"),
    ):  # fmt: skip
        GpuDay.objects.create(
            day=today - timedelta(days=1),
            team=scope,
            dimension=dimension,
            key=key,
            **figures_,
            **(devices if not scope and dimension == "all" else {}),
        )


def test_report_shows_idle_share_and_previous_period(reported, olga):
    found = gpu_use.report(actor=olga)
    assert (found.total.idle_share, found.before.idle_share) == (0.75, None)
    assert [(line.key, line.amounts.idle) for line in found.lines] == [("vision", HOUR)]
    assert sum(amounts is None for _day, amounts in found.days) == 29
    assert presenters.finding(found) == "75 % of the measured GPU time was without work."
    assert "17 % of the GPU time was not measured" in presenters.caveat(found)
    GpuDay.objects.create(
        day=found.since - timedelta(days=1), dimension="all", capacity=10, measured=10, used=5
    )
    again = gpu_use.report(actor=olga)
    assert presenters.finding(again).endswith("Previous period: 50 %.")
    (line,) = gpu_use.report(actor=olga, by="day").lines
    assert line.amounts.held == 4 * HOUR


def test_unmeasured_days_are_gaps_and_never_idle(reported, olga):
    plot = presenters.plot(gpu_use.report(actor=olga))
    (line,) = plot.lines
    assert [value for value in line.values if value is not None] == [pytest.approx(75)]
    assert line.values.count(None) == 29 and plot.has_gaps and plot.measured
    assert [row.texts for row in plot.rows].count(("–",)) == 29, "the table has the same gaps"
    GpuDay.objects.all().delete()
    assert not presenters.plot(gpu_use.report(actor=olga)).measured
    assert presenters.row("x", gpu_use.Amounts(held=HOUR)) == presenters.UsageRow(
        "x", "1", "–", "–", "1", "0", "0", "–", "–"
    )


def test_visibility_of_the_report(reported, olga, alice, bob, team):
    other = MembershipFactory(team=TeamFactory(slug="audio"), user=UserFactory(), role="owner").user
    assert gpu_use.report(actor=alice, team="vision").total.held == 4 * HOUR
    assert gpu_use.report(actor=olga, team="vision").total.idle_share == pytest.approx(1 / 3)
    for actor, slug, refusal in (
        (alice, "", NotAllowed),
        (bob, "vision", NotAllowed),
        (other, "vision", NotFound),
        (alice, "nothing", NotFound),
    ):
        with pytest.raises(refusal):
            gpu_use.report(actor=actor, team=slug)
    today = timezone.now().date()
    for wrong in (
        {"by": "moon"},
        {"since": today + timedelta(days=1)},
        {"since": today - timedelta(days=gpu_use.MAX_DAYS)},
    ):
        with pytest.raises(InvalidInput):
            gpu_use.report(actor=olga, **wrong)


def test_page_rest_and_csv_agree(reported, as_user, with_token, alice, olga):
    browser = as_user(alice)
    assert browser.get("/reports/gpu-use/")["Location"] == "/reports/gpu-use/?team=vision"
    page = browser.get("/reports/gpu-use/?team=vision&by=user")
    assert [row.key for row in page.context["rows"]] == ["=cmd", "bob"]
    assert '<td class="num">33 %</td>' in page.content.decode()
    found = with_token(alice).get("/api/v1/reports/gpu-use?team=vision&by=user").json()
    assert found["total"] == {
        "capacity": 0.0, "allocated": 4.0, "used": 2.0, "idle": 1.0, "not_measured": 1.0, "reclaimed": 1.0,
        "waited": 0.5, "dark": 0.3333, "not_measured_share": 0.25, "cost": 0.0,
    }  # fmt: skip
    assert len(found["days"]) == 30
    table = browser.get("/reports/gpu-use/csv/?team=vision&by=user")
    lines = table.content.decode().splitlines()
    assert lines[0] == (
        "user,capacity,allocated,used,idle,not_measured,reclaimed,waited,dark,not_measured_share,cost"
    )
    assert lines[1] == "'=cmd,0.0,4.0,2.0,1.0,1.0,1.0,0.5,0.3333,0.25,0.0"
    assert with_token(alice).get("/api/v1/reports/gpu-use").status_code == 403
    assert with_token(olga).get("/api/v1/reports/gpu-use?since=x").json()["errors"].keys() == {"since"}
    assert with_token(olga).get("/api/v1/reports/gpu-use?by=x").json()["errors"].keys() == {"by"}


def test_report_of_a_year_takes_as_many_queries_as_a_week(reported, olga):
    today = timezone.now().astimezone(UTC).date()
    GpuDay.objects.bulk_create(
        GpuDay(day=today - timedelta(days=back), dimension=dimension, key=key, held=HOUR)
        for back in range(2, 365)
        for dimension, key in (("all", ""), ("user", "ann"), ("user", "joe"))
    )
    counts = []
    for span in (7, 365):
        with CaptureQueriesContext(connection) as seen:
            found = gpu_use.report(actor=olga, since=today - timedelta(days=span - 1), by="user")
        counts.append(len(seen))
        assert len(found.days) == span
    assert counts[0] == counts[1] <= 3


def test_queries_of_daily_sums_do_not_grow_with_workspaces(gpus, bob, team):
    def queries() -> int:
        with CaptureQueriesContext(connection) as seen:
            days.sums_of(DAY.date(), now=LATER)
        return len(seen)

    hold(WorkspaceFactory(owner=bob, team=team), gpus[0], 0, 1)
    few = queries()
    for number in range(1, 20):
        hold(WorkspaceFactory(owner=bob, team=team), gpus[0], number, number + 1)
        measured(gpus[0], number)
    assert queries() == few


def test_allocated_time_costs_the_flavor_price(gpus, bob, team, as_user, olga):
    flavor = FlavorFactory(slug="two", accelerator_count=2, price_cents=500)
    workspace = WorkspaceFactory(owner=bob, team=team, flavor=flavor)
    for gpu in gpus:
        hold(workspace, gpu, 0, 3)
    # Without a price the cost is 0.
    hold(WorkspaceFactory(owner=bob, team=team), gpus[0], 4, 10)
    days.write(DAY.date(), now=LATER)
    for key in (
        {},
        {"dimension": Dimension.TEAM, "key": team.slug},
        {"dimension": Dimension.USER, "key": "bob", "team": team.slug},
        {"dimension": Dimension.FLAVOR, "key": "two"},
    ):
        assert figures(**key).cost == 3 * 500 * 1000
    # A later price does not change summed days.
    flavor.price_cents = 900
    flavor.save()
    found = gpu_use.report(actor=olga, since=DAY.date(), until=DAY.date(), by="flavor")
    assert {line.key: round(line.amounts.money, 2) for line in found.lines}["two"] == 15.0
    assert found.total.money == 15.0
    assert presenters.row("two", found.total).cost == "15.00 EUR"
