"""Budgets in money: spending, notices, and starts after a budget is spent."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta

import pytest
from django.utils import timezone

from portal.common.errors import InvalidInput, NotAllowed, NotPossible
from portal.common.events.models import Event, Notification
from portal.fleet.inventory.models import Device, Pool
from portal.people.accounts.models import Membership, Role
from portal.quota.ledger import budgets
from portal.quota.ledger.models import Budget
from portal.reports import budgets as reported
from portal.reports.models import Dimension, GpuDay
from portal.scheduling import admission, snapshot_cache
from portal.scheduling.engine.model import Outcome
from portal.workspaces import gpus, services
from portal.workspaces.lifecycle import State
from portal.workspaces.models import Workspace
from tests.factories import FlavorFactory, local_pool_with, node_info
from tests.sweeps import sweep
from tests.workspaces.helpers import answer, run_until_ready

pytestmark = [pytest.mark.django_db, pytest.mark.sqlite]
EURO = 100
"""In hundredths of the currency."""
MONTH = date(2026, 3, 1)


@pytest.fixture
def owner(team, alice):
    Membership.objects.filter(team=team, user=alice).update(role=Role.OWNER)
    return alice


def spend(team, euros: float, day: date | None = None) -> None:
    """Record that the team spent this amount on a day."""
    day = day or timezone.now().astimezone(UTC).date()
    cost = round(euros * EURO * 1000)
    GpuDay.objects.create(day=day, team="", dimension=Dimension.TEAM, key=team.slug, cost=cost)
    # Other rows of the day have the same amount, which counts once.
    GpuDay.objects.create(day=day, team="", dimension=Dimension.ALL, key="", cost=cost)
    GpuDay.objects.create(day=day, team=team.slug, dimension=Dimension.ALL, key="", cost=cost)


def warnings_of(user) -> list[str]:
    return list(
        Notification.objects.filter(user=user, kind="ledger.budget")
        .order_by("pk")
        .values_list("title", flat=True)
    )


# --- levels ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("amount", "spent", "reached"),
    [
        (100, 0, 0),
        (100, 79_999, 0),
        (100, 80_000, 80),
        (100, 99_999, 80),
        (100, 100_000, 100),
        (0, 0, 0),
        (0, 1, 100),
    ],
)
def test_levels_are_reached_exactly(amount, spent, reached):
    assert budgets.level(amount, spent) == reached


# --- spending -------------------------------------------------------------------------------------


def test_spending_is_the_sum_of_the_days_of_the_month(team, olga):
    for day, euros in ((1, 10.0), (31, 2.5)):
        spend(team, euros, MONTH.replace(day=day))
    spend(team, 100, date(2026, 2, 28))
    spend(team, 100, date(2026, 4, 1))
    assert reported.spending_by_team(MONTH) == {team.slug: 1250 * 1000}
    assert reported.spending_by_team(date(2026, 12, 1)) == {}


def test_new_budget_is_current_at_once_and_owners_are_notified_once(team, owner, bob, olga):
    spend(team, 85)
    budgets.set_budget(actor=olga, team=team, amount_cents=100 * EURO)
    found = budgets.statement(team)
    assert (found.spent_cents, found.percent, found.amount_cents) == (85 * EURO, 85, 100 * EURO)
    assert len(warnings_of(owner)) == 1 and "80 %" in warnings_of(owner)[0]
    assert warnings_of(bob) == []
    for _ in range(2):
        reported.run([])
    assert len(warnings_of(owner)) == 1
    GpuDay.objects.update(cost=100 * EURO * 1000)
    reported.run([])
    assert len(warnings_of(owner)) == 2 and "has spent its budget" in warnings_of(owner)[1]
    assert Event.objects.filter(kind__startswith="budget.warned").count() == 2
    # A larger budget warns again at its own levels.
    budgets.set_budget(actor=olga, team=team, amount_cents=200 * EURO)
    assert Budget.objects.get().warned == 0
    Notification.objects.update(read_at=timezone.now())
    GpuDay.objects.update(cost=170 * EURO * 1000)
    reported.run([])
    assert len(warnings_of(owner)) == 3


def test_new_month_starts_at_zero_despite_late_days(team, owner, olga):
    budgets.set_budget(actor=olga, team=team, amount_cents=10 * EURO)
    row = Budget.objects.get()
    row.month, row.spent, row.warned = MONTH, 9_000_000, 80
    row.save()
    assert budgets.statement(team).spent_cents == 0
    spend(team, 11, MONTH.replace(day=31))
    first = datetime(2026, 4, 1, 0, 30, tzinfo=UTC)
    # The last day is summed again after midnight, with a notice.
    assert reported.run([MONTH.replace(day=31), date(2026, 4, 1)], now=first) == 1
    assert "March 2026" in warnings_of(owner)[-1]
    row.refresh_from_db()
    assert (row.month, row.spent, row.warned) == (date(2026, 4, 1), 0, 0)
    assert budgets.store_spending(MONTH, {team.slug: 1}) == 0
    row.refresh_from_db()
    assert (row.month, row.spent) == (date(2026, 4, 1), 0)


def test_only_operators_set_budgets_and_invalid_amounts_are_refused(team, alice, olga):
    with pytest.raises(NotAllowed):
        budgets.set_budget(actor=alice, team=team, amount_cents=1)
    with pytest.raises(NotAllowed):
        budgets.remove_budget(actor=alice, team=team)
    for amount in (-1, 10**13):
        with pytest.raises(InvalidInput):
            budgets.set_budget(actor=olga, team=team, amount_cents=amount)
    assert not Budget.objects.exists()
    budgets.set_budget(actor=olga, team=team, amount_cents=5, blocks=True)
    budgets.set_budget(actor=olga, team=team, amount_cents=5, blocks=True)
    assert Event.objects.filter(kind="budget.set").count() == 1
    for _ in range(2):
        budgets.remove_budget(actor=olga, team=team)
    assert Event.objects.filter(kind="budget.removed").count() == 1


# --- starts ---------------------------------------------------------------------------------------


@pytest.fixture
def priced(catalog):
    """One node with two GPUs, and flavors: priced, unpriced, and priced without GPUs."""
    local_pool_with(node_info(gpus=2))
    Pool.objects.update(hand_out_max_age_hours=0)
    return {
        "dear": FlavorFactory(slug="dear", accelerator_count=1, price_cents=100),
        "free": FlavorFactory(slug="free", accelerator_count=1),
        "cpu": FlavorFactory(slug="cpu", price_cents=100),
    }


def spent(team, olga, *, blocks: bool) -> None:
    spend(team, 10)
    budgets.set_budget(actor=olga, team=team, amount_cents=10 * EURO, blocks=blocks)


def test_spent_budget_without_blocking_stops_no_start(priced, team, make, alice, olga):
    spent(team, olga, blocks=False)
    assert make(alice, "dear").state == State.PROVISIONING


def test_spent_blocking_budget_refuses_only_priced_starts(priced, team, make, alice, olga, sent):
    runs = make(alice, "dear", name="runs")
    run_until_ready(sent, runs)
    spent(team, olga, blocks=True)
    with pytest.raises(NotPossible) as refused:
        make(alice, "dear", name="new")
    assert refused.value.reason.code == "budget_spent"
    for name in ("free", "cpu"):
        assert make(alice, name, name=f"new-{name}").state == State.PROVISIONING
    # The preview agrees, and running workspaces continue.
    verdicts = {
        name: admission.assess(template=runs.template, flavor=flavor, team=team, actor=alice)
        for name, flavor in priced.items()
    }
    assert verdicts["dear"].outcome is Outcome.IMPOSSIBLE
    assert verdicts["dear"].reason.code == "budget_spent"
    assert verdicts["cpu"].outcome is Outcome.FITS_NOW
    assert Workspace.objects.get(pk=runs.pk).state == State.RUNNING
    # Without GPUs it is free and may continue; attaching them counts as a start.
    gpus.release(actor=alice, workspace_id=runs.pk)
    Workspace.objects.filter(pk=runs.pk).update(state=State.RUNNING)
    with pytest.raises(NotPossible):
        gpus.attach(actor=alice, workspace_id=runs.pk)
    budgets.set_budget(actor=olga, team=team, amount_cents=20 * EURO, blocks=True)
    assert make(alice, "dear", name="again").state != State.STOPPED


def test_workspace_queued_before_the_budget_was_spent_still_starts(priced, team, make, alice, olga, sent):
    first = []
    for number in range(2):
        first.append(make(alice, "dear", name=f"first-{number}"))
        run_until_ready(sent, first[-1])
    waits = make(alice, "dear", name="waits")
    assert waits.state == State.PENDING
    spent(team, olga, blocks=True)
    services.stop(actor=alice, workspace_id=first[0].pk)
    assert answer(sent, "stop", "absent")
    Device.objects.update(checking=False)
    snapshot_cache.forget()
    sweep()
    assert Workspace.objects.get(pk=waits.pk).state == State.PROVISIONING


def test_spending_of_another_month_does_not_block(priced, team, make, alice, olga):
    spend(team, 10, timezone.now().astimezone(UTC).date().replace(day=1) - timedelta(days=1))
    budgets.set_budget(actor=olga, team=team, amount_cents=10 * EURO, blocks=True)
    assert make(alice, "dear").state == State.PROVISIONING


# --- pages and REST --------------------------------------------------------------------------------


def test_operator_sets_the_budget_on_the_team_page_and_members_see_it(team, alice, olga, as_user):
    spend(team, 85)
    page = f"/teams/{team.slug}/"
    assert 'id="budget"' not in as_user(alice).get(page).content.decode()
    web = as_user(olga)
    web.post(f"/quotas/teams/{team.slug}/budget/", {"do": "set", "amount": "100,50", "blocks": "on"})
    row = Budget.objects.get()
    assert (row.amount_cents, row.blocks) == (10_050, True)
    seen = as_user(alice).get(page).content.decode()
    assert "85.00 EUR spent" in seen
    assert "100.50 EUR" in seen
    assert "nearly used up" in seen
    report = web.get(f"/reports/gpu-use/?team={team.slug}").content.decode()
    assert "85.00 EUR of 100.50 EUR spent (84 %)" in report
    web.post(f"/quotas/teams/{team.slug}/budget/", {"do": "set", "amount": "much"})
    assert Budget.objects.get().amount_cents == 10_050
    web.post(f"/quotas/teams/{team.slug}/budget/", {"do": "remove"})
    assert not Budget.objects.exists()


def test_budget_over_rest(team, alice, olga, with_token):
    spend(team, 1)
    api = with_token(olga, "quotas:read", "quotas:write")
    there = f"/api/v1/budgets/{team.slug}"
    assert api.get(there).status_code == 404
    given = api.put(there, {"amount_cents": 400, "blocks": True}, content_type="application/json")
    assert given.status_code == 200
    body = given.json()
    assert (body["spent_cents"], body["percent"], body["blocks"], body["currency"]) == (100, 25, True, "EUR")
    assert with_token(alice, "quotas:read").get(there).json()["amount_cents"] == 400
    assert [result["team"] for result in api.get("/api/v1/budgets").json()["results"]] == [team.slug]
    assert api.delete(there).status_code == 204
    assert api.delete(there).status_code == 204
