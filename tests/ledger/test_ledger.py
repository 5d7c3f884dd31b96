"""GPU-hours: grants, charges, warnings and exhaustion."""

from __future__ import annotations

import random

import pytest
from django.conf import settings as django_settings
from django.db import transaction
from django.utils import timezone
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from portal.common.errors import InvalidInput, NeedsApproval, NotAllowed, NotFound
from portal.common.events.models import Notification
from portal.quota.ledger import services as ledger
from portal.quota.ledger.accounting import GPU_HOUR
from portal.quota.ledger.models import LedgerAccount, LedgerEntry
from portal.quota.ledger.selectors import statement
from portal.quota.ledger.services import account_of
from portal.quota.ledger.spending import UsageInterval, rate_periods
from portal.quota.limits.models import ResourceRate
from portal.workspaces import services
from portal.workspaces.lifecycle import State
from portal.workspaces.models import Workspace
from tests import sites
from tests.suite.choice import examples

pytestmark = pytest.mark.django_db
WORLD = sites.people
H100 = "gpu:simulated-h100"


@pytest.fixture
def priced(pool):
    """Simulated H100s are charged like real ones."""
    ResourceRate.objects.create(resource=H100, rate_milli=1000)
    return pool


def open_for(team, operator, hours=10, period="month"):
    return ledger.set_ledger(actor=operator, team=team, quota=hours * GPU_HOUR, period=period)


def row_of(team):
    return LedgerAccount.objects.get(team=team)


# --- time is charged exactly ---------------------------------------------------------------------------


def test_two_gpus_for_half_an_hour_are_one_gpu_hour(make, alice, olga, team, priced, clock):
    open_for(team, olga)
    make(alice, "sim-h100-x2")
    clock.shift(1800)
    ledger.tick()
    assert row_of(team).spent == GPU_HOUR
    assert statement(team).balance == 9 * GPU_HOUR


def test_use_between_two_ticks_is_charged(make, alice, olga, team, priced, clock, settle):
    open_for(team, olga)
    clock.shift(100)
    short = make(alice, "sim-h100-x1")
    settle(30, resting=lambda: Workspace.objects.get(pk=short.pk).state == State.RUNNING)
    clock.shift(360)
    services.stop(actor=alice, workspace_id=short.pk)
    settle(30)
    allocation = short.allocations.get()
    held_s = int(allocation.released_at.timestamp()) - int(allocation.granted_at.timestamp())
    clock.shift(1000)
    ledger.tick()
    assert row_of(team).spent == held_s * 1000


def test_tick_run_twice_or_late_charges_the_same(make, alice, olga, team, priced, clock):
    open_for(team, olga)
    make(alice, "sim-h100-x1")
    for _ in range(3):
        clock.shift(60)
        ledger.tick()
        ledger.tick()
    clock.shift(3600 - 180)
    ledger.tick()
    assert row_of(team).spent == GPU_HOUR


def test_rates_differ_by_model_and_simulated_gpus_are_free_by_default(make, alice, olga, team, pool, clock):
    open_for(team, olga)
    make(alice, "sim-h100-x1")
    clock.shift(3600)
    ledger.tick()
    assert row_of(team).spent == 0
    ResourceRate.objects.create(resource=H100, rate_milli=2500)
    clock.shift(3600)
    ledger.tick()
    assert row_of(team).spent == GPU_HOUR * 5 // 2


def test_one_entry_for_each_hour(make, alice, olga, team, priced, clock):
    clock.move_to(timezone.now().replace(minute=0, second=0, microsecond=0))
    open_for(team, olga)
    make(alice, "sim-h100-x1")
    for _ in range(5):
        clock.shift(1200)
        ledger.tick()
    spent = LedgerEntry.objects.filter(kind="spent").order_by("at")
    assert [entry.amount for entry in spent] == [-GPU_HOUR * 2 // 3, -GPU_HOUR]
    assert spent.last().balance == account_of(row_of(team)).balance


def test_balance_is_refilled_in_a_new_period(make, alice, olga, team, priced, clock):
    open_for(team, olga, hours=30, period="day")
    make(alice, "sim-h100-x1")
    clock.shift(86_400 + 3600)
    ledger.tick()
    assert row_of(team).spent == GPU_HOUR
    assert LedgerEntry.objects.get(kind="refill").amount == 30 * GPU_HOUR


# --- warnings and exhaustion ----------------------------------------------------------------------


def test_team_is_warned_at_80_and_100_percent_and_the_ledger_stops_nothing(
    make, alice, bob, olga, team, priced, clock, settle
):
    open_for(team, olga, hours=1)
    mine, cpu = make(bob, "sim-h100-x1"), make(bob, "sim-cpu")
    settle(30, resting=lambda: Workspace.objects.get(pk=mine.pk).state == State.RUNNING)
    clock.shift(2880)
    ledger.tick()
    assert {note.user for note in Notification.objects.filter(kind="ledger.warning")} == {alice, bob}
    assert "80 %" in Notification.objects.filter(user=alice).get().title
    ledger.tick()
    assert Notification.objects.filter(kind="ledger.warning").count() == 2, "once each"
    clock.shift(720)
    ledger.tick()
    settle(30)
    assert "no GPU-hours left" in Notification.objects.filter(user=bob).latest("pk").title
    # Reclaim stops GPU workspaces, after a notice.
    for workspace in (mine, cpu):
        assert Workspace.objects.get(pk=workspace.pk).state == State.RUNNING
    with pytest.raises(NeedsApproval):
        make(alice, "sim-h100-x1")
    assert make(alice, "sim-cpu").state == State.PROVISIONING


def test_returned_hours_allow_starts(make, alice, olga, team, priced, clock):
    open_for(team, olga, hours=0)
    with pytest.raises(NeedsApproval):
        make(alice, "sim-h100-x1")
    ledger.credit(actor=olga, team=team, amount=GPU_HOUR, note="for the paper")
    assert make(alice, "sim-h100-x1").state == State.PROVISIONING


@settings(
    max_examples=examples(10),
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(seed=st.integers(0, 2**32 - 1))
def test_balance_is_never_below_zero_by_more_than_one_tick(
    make, alice, olga, team, priced, clock, sent, seed
):
    chance = random.Random(seed)
    with transaction.atomic():
        open_for(team, olga, hours=chance.randrange(0, 3))
        most = 0
        for _ in range(chance.randrange(3, 10)):
            if chance.random() < 0.6:
                try:
                    with transaction.atomic():
                        make(alice, chance.choice(("sim-h100-x1", "sim-h100-x4")))
                except Exception as refused:
                    assert getattr(refused, "code", "") == "needs_approval", refused
            sent.run()
            clock.shift(chance.choice((1, 30, 60, 600, 7200, 100_000)))
            held = sum(
                row.amounts.get(H100, 0) for row in Workspace.objects.exclude(allocations=None).distinct()
            )
            most = max(most, held)
            ledger.tick()
            row = row_of(team)
            assert account_of(row).balance >= -most * django_settings.BERTH_LEDGER_TICK_S
            assert sum(entry.amount for entry in row.entries.filter(kind="spent")) <= 0
        transaction.set_rollback(True)
    sent.clear()


# --- permissions ----------------------------------------------------------------------------------


def test_only_operators_open_and_change_ledgers(alice, olga, team):
    with pytest.raises(NotAllowed):
        open_for(team, alice)
    open_for(team, olga, hours=5)
    open_for(team, olga, hours=7)
    assert [entry.amount for entry in LedgerEntry.objects.order_by("pk")] == [5 * GPU_HOUR, 2 * GPU_HOUR]
    open_for(team, olga, hours=7)
    assert LedgerEntry.objects.count() == 2, "nothing has changed"
    ledger.close_ledger(actor=olga, team=team)
    ledger.close_ledger(actor=olga, team=team)
    assert not LedgerAccount.objects.exists()


def test_approvers_add_and_remove_credit_down_to_zero(alice, petra, olga, team):
    open_for(team, olga)
    with pytest.raises(NotAllowed):
        ledger.credit(actor=alice, team=team, amount=1, note="")
    ledger.credit(actor=petra, team=team, amount=3 * GPU_HOUR, note="conference")
    ledger.credit(actor=petra, team=team, amount=-5 * GPU_HOUR, note="too much")
    assert row_of(team).credit == 0
    assert [entry.amount for entry in LedgerEntry.objects.filter(kind="credit").order_by("pk")] == [
        3 * GPU_HOUR,
        -3 * GPU_HOUR,
    ]


def test_invalid_values_are_refused(olga, team):
    with pytest.raises(NotFound):
        ledger.credit(actor=olga, team=team, amount=1, note="")
    for wrong in ({"quota": -1}, {"quota": 1, "period": "century"}):
        with pytest.raises(InvalidInput):
            ledger.set_ledger(actor=olga, team=team, **wrong)
    open_for(team, olga)
    with pytest.raises(InvalidInput):
        ledger.credit(actor=olga, team=team, amount=0, note="")


# --- splitting time -------------------------------------------------------------------------------


def test_usage_is_split_at_rate_changes():
    held = [
        UsageInterval("gpu:a", 1000, 0, 40),
        UsageInterval("gpu:a", 2000, 20),
        UsageInterval("gpu:a", 500, 60, 60),
    ]
    pieces = rate_periods(held, {"gpu:a": 1000}, 10, 100)
    assert [(piece.start_s, piece.end_s, piece.rate) for piece in pieces] == [
        (10, 20, 1_000_000),
        (20, 40, 3_000_000),
        (40, 100, 2_000_000),
    ]
    assert rate_periods([], {}, 10, 20)[0].rate == 0
