"""The idle GPU report: kept with reasons, reclaimed, savings by policies; page, REST and CSV."""

from __future__ import annotations

import csv
import io
from datetime import UTC, datetime, timedelta

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from portal.common.actors import SYSTEM
from portal.common.errors import InvalidInput, NotAllowed
from portal.common.events import services as events
from portal.common.events.kinds import AuditKind
from portal.fleet.inventory.models import AllocatedDevice, Allocation, Device
from portal.reclaim.engine.idle_time import KeptReason, idle_seconds
from portal.reclaim.engine.ladder import Policy
from portal.reclaim.engine.replay import Period, RecordedRun
from portal.reclaim.models import IdleKind, IdlePeriod, LastPass
from portal.reports import days, idle_gpus
from portal.reports.models import Dimension, GpuDay
from portal.workspaces.models import Workspace
from tests import sites
from tests.factories import MembershipFactory, TeamFactory, WorkspaceFactory, local_pool_with, node_info

WORLD = sites.people
DAY = datetime(2026, 11, 10, tzinfo=UTC)
HOUR_S = 3600
HOUR = 3_600_000
LIMIT = Policy(gpu_idle_s=None, idle_s=2 * HOUR_S, notice_s=1800)


def periods(*hours: tuple[float, float]) -> tuple[Period, ...]:
    return tuple(Period(begin * HOUR_S, end * HOUR_S) for begin, end in hours)


def split(past: RecordedRun, policy: Policy = LIMIT) -> dict[str, float]:
    return {
        reason.value: seconds / HOUR_S for reason, seconds in idle_seconds(past, policy).items() if seconds
    }


def test_idle_time_is_split_by_reason():
    past = RecordedRun(
        0,
        10 * HOUR_S,
        idle=periods((4, 9)),
        gpu_idle=periods((2, 9), (9.5, 12)),
        kept=periods((3, 5), (20, 21)),
    )
    assert split(past) == {"kept": 2.0, "other_work": 1.5, "below_limit": 4.0}
    assert split(past, Policy(None, None, 1800)) == {"kept": 2.0, "other_work": 1.5, "no_limit": 4.0}
    # A GPU limit applies whatever other work runs.
    assert split(past, Policy(HOUR_S, None, 1800)) == {"kept": 2.0, "below_limit": 5.5}
    assert split(RecordedRun(0, HOUR_S)) == {}
    assert set(idle_seconds(past, LIMIT)) == set(KeptReason)


@pytest.fixture
def gpus(db: None, clock) -> list[Device]:
    clock.move_to(DAY + timedelta(days=1))
    LastPass.objects.create(pk=1, at=DAY, recorded_since=DAY - timedelta(days=9))
    return list(Device.objects.filter(node__pool=local_pool_with(node_info(gpus=4))).order_by("index"))


def hold(workspace: Workspace, devices: list[Device], begin: float, end: float | None) -> None:
    allocation = Allocation.objects.create(
        workspace=workspace, node=devices[0].node, generation=1, flavor="f", cpu_milli=1000, memory_mib=1024,
        granted_at=DAY + timedelta(hours=begin),
        released_at=None if end is None else DAY + timedelta(hours=end),
    )  # fmt: skip
    for device in devices:
        AllocatedDevice.objects.create(allocation=allocation, device=device, milli=1000, active=end is None)


def idle(workspace: Workspace, kind: str, begin: float, end: float) -> None:
    IdlePeriod.objects.create(
        workspace=workspace, generation=1, kind=kind,
        began_at=DAY + timedelta(hours=begin), ended_at=DAY + timedelta(hours=end),
    )  # fmt: skip


def stop(workspace: Workspace, hour: float) -> None:
    entry = events.record(
        actor=SYSTEM, kind=AuditKind.WORKSPACE_STOP, workspace=workspace, message="stopped it",
        cause={"code": "ends_by_idle", "params": {}},
    )  # fmt: skip
    type(entry).objects.filter(pk=entry.pk).update(at=DAY + timedelta(hours=hour))


@pytest.mark.django_db
def test_report_of_a_team_shows_kept_and_reclaimed_time(gpus, bob, team, olga, as_user, settings):
    settings.BERTH_IDLE_GPU_MINUTES, settings.BERTH_RECLAIM_NOTICE_MINUTES = 120, 30
    workspace = WorkspaceFactory(owner=bob, team=team)
    hold(workspace, gpus[:2], 0, 10)
    idle(workspace, IdleKind.GPU, 4, 10)
    idle(workspace, IdleKind.ALL, 6, 10)
    stop(workspace, 10)
    found = idle_gpus.report(actor=olga, since=DAY.date(), until=DAY.date())
    (line,) = found.lines
    assert line.team == team.slug
    amounts = {name: value / HOUR for name, value in line.amounts.kept.items()}
    assert amounts == {"other_work": 4.0, "below_limit": 8.0}
    assert (line.amounts.held / HOUR, line.amounts.idle / HOUR) == (20.0, 12.0)
    assert {code: value / HOUR for code, value in line.amounts.given_back.items()} == {"ends_by_idle": 28.0}
    # Current policies would have stopped it two hours earlier, with two GPUs.
    assert line.amounts.would_give_back / HOUR == pytest.approx(4.0)
    assert found.total == line.amounts
    # The same result as the GPU use report.
    days.write(DAY.date())
    use = GpuDay.objects.get(day=DAY.date(), dimension=Dimension.ALL, key="", team="")
    assert use.reclaimed == found.total.returned
    assert use.held == found.total.held
    body = as_user(olga).get(f"/api/v1/reports/idle-gpus?since={DAY.date()}&until={DAY.date()}").json()
    assert body["total"]["given_back_by"] == [{"reason": "ends_by_idle", "gpu_hours": 28.0}]
    assert body["lines"][0]["amounts"]["kept"][0] == {"reason": "below_limit", "gpu_hours": 8.0}
    page = as_user(olga).get("/reports/gpu-use/").content.decode()
    assert "Reclaimed: 28 GPU-hours, 70 % of all idle time. Kept: 12." in page
    text = as_user(olga).get("/reports/idle-gpus/csv/").content.decode()
    (row,) = csv.DictReader(io.StringIO(text))
    assert (row["team"], row["idle"], row["kept:other_work"]) == (team.slug, "12.0", "4.0")
    assert (row["given_back"], row["given_back:ends_by_idle"], row["would_give_back"]) == (
        "28.0",
        "28.0",
        "4.0",
    )


@pytest.mark.django_db
def test_permission_and_days_of_the_report(gpus, bob, team, olga):
    with pytest.raises(NotAllowed):
        idle_gpus.report(actor=bob)
    MembershipFactory(user=bob, team=TeamFactory(slug="other"), role="owner")
    assert idle_gpus.report(actor=bob, team="other").lines == ()
    with pytest.raises(InvalidInput):
        idle_gpus.report(actor=olga, since=DAY.date() - timedelta(days=31), until=DAY.date())
    with pytest.raises(InvalidInput):
        idle_gpus.report(actor=olga, since=DAY.date(), until=DAY.date() - timedelta(days=1))
    tomorrow = DAY.date() + timedelta(days=5)
    assert idle_gpus.report(actor=olga, since=tomorrow, until=tomorrow).lines == ()


@pytest.mark.django_db
def test_queries_do_not_grow_with_workspaces(gpus, bob, team, olga):
    def queries() -> int:
        with CaptureQueriesContext(connection) as seen:
            idle_gpus.report(actor=olga, since=DAY.date(), until=DAY.date())
        return len(seen)

    def add(number: int) -> None:
        for at in range(number):
            workspace = WorkspaceFactory(owner=bob, team=team)
            hold(workspace, [gpus[at % 4]], at, at + 0.5)
            idle(workspace, IdleKind.GPU, at, at + 0.5)
            stop(workspace, at + 0.5)

    add(1)
    few = queries()
    add(12)
    assert queries() == few <= 10
